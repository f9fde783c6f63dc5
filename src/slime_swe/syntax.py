"""Python's text as a syntax tree, in code beside which other threads may parse too.

CPython 3.11 keeps one count of how deep it is in a tree for all threads of a process: two of them that make trees at
once may each end in `SystemError: AST constructor recursion depth mismatch`
(https://github.com/python/cpython/issues/106905). Graders parse in threads. So one thread parses at a time. A traceback
that is formatted meanwhile, in another thread or by the collector, parses too, as Python 3.11 underlines a part of its
lines, and waits for nobody: then the text is parsed again.
"""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_TRIES = 10  # each is disturbed only if a traceback is formatted within it, as by a thread that logs all the time
_ONE_AT_A_TIME = threading.Lock()


def parse(text: str | bytes) -> ast.Module:
    """Parse as `ast.parse` does, with its errors."""
    return _undisturbed(lambda: ast.parse(text))


def literal_eval(text: str) -> Any:
    """Read a text as `ast.literal_eval` does, with its errors."""
    return _undisturbed(lambda: ast.literal_eval(text))


def _undisturbed(read: Callable[[], T]) -> T:
    with _ONE_AT_A_TIME:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(SystemError):
                return read()
        return read()
