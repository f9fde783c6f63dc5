"""The text of a program that runs in sandboxes, behind that of `rewards.canonical`, which it uses."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def sandbox_source(name: str) -> str:
    """name: of a file of this folder. Every grading needs it, so it is read from disk once."""
    folder = resources.files("slime_swe.rewards")
    return "".join((folder / file).read_text(encoding="utf-8") for file in ("canonical.py", name))
