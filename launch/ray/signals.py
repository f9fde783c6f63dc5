"""Signals for as long as something of ours runs that must be stopped again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def heeding() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `KeyboardInterrupt` as Ctrl-C does, which a shell's background jobs would ignore."""
    with _handlers(signal.default_int_handler):
        yield


@contextmanager
def deferring() -> Iterator[None]:
    """None of the three ends what is inside: for clean-up whose time is bounded."""
    with _handlers(signal.SIG_IGN):
        yield


@contextmanager
def _handlers(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may have handlers, and only it is interrupted
        return
    before = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
