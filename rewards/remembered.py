"""Results that are the same for all patches of a task: made once in an event loop, and kept for the last tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from slime_swe.rollout.loop_scope import opened_once

KEPT = 128  # of a kind whose results may be whole files

T = TypeVar("T")


async def remembered(
    kind: str,
    key: Hashable,
    make: Callable[[], Awaitable[T]],
    keep: Callable[[T], bool] = lambda _: True,
    most: int = KEPT,
) -> T:
    """What `make` gives. The first caller with this key makes it for all. A failure is not remembered, nor what is not
    worth to `keep`. most: results of this kind that are kept, those that were asked for last."""
    known: OrderedDict[Hashable, asyncio.Future[T]] = await opened_once(
        ("remembered", kind), lambda: contextlib.nullcontext(OrderedDict())
    )
    if key not in known:
        known[key] = asyncio.ensure_future(make())
        while len(known) > most:
            known.popitem(last=False)
    known.move_to_end(key)
    future, kept = known[key], False
    try:
        result = await asyncio.shield(future)  # a cancelled caller must not break the others
        kept = keep(result)
        return result
    finally:
        if not kept and future.done() and known.get(key) is future:
            del known[key]
