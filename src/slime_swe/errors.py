"""The two errors that end a command with one paragraph and no traceback; everything else is a bug of ours."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A person's input is wrong or missing: the message says what was given, what is allowed, what to do."""


class InfrastructureError(RuntimeError):
    """The machine failed, not the policy and not the request: a host, a daemon, an engine, a disk, the network."""


def unknown(what: str, given: str, allowed: Iterable[str]) -> str:
    """Return the message for a name that is not among `allowed`: the nearest one first, then all of them.

    >>> unknown("args.swe_agent", "aidr", ["native", "aider"])
    "args.swe_agent: unknown name 'aidr'. Did you mean 'aider'? Available: aider, native"
    """
    names = sorted(allowed)
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{what}: unknown name {given!r:.80}.{hint} Available: {', '.join(names)}"
