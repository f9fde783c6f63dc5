"""A command's output as an agent sees it."""

from __future__ import annotations


def render(head: bytes, tail: bytes, missing: int) -> str:
    """The text; where `missing` bytes were dropped between head and tail, with a marker that says how many."""
    if not missing:
        return (head + tail).decode("utf-8", "replace")
    marker = f"\n[truncated: {missing} bytes missing here]\n"
    return head.decode("utf-8", "ignore") + marker + tail.decode("utf-8", "ignore")
