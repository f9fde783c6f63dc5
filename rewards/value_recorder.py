"""Records values in the sandbox; they are compared outside of it (`rewards.withheld`).

Only a digest of a value's canonical text is recorded, so a record has a fixed size. A value without such a text, which
equals no literal, has its `repr` in the place of it, without addresses. This file is put into test files as text (for
Python 3.6 or newer), behind that of `rewards.canonical`, and is never imported.
"""

import collections.abc
import hashlib
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slime_swe.rewards.canonical import DIGITS, digest

OF_A_SITE = 256  # different values that one process records of one place


def failure() -> BaseException:
    """Return what ends a test: in a run of pytest without a traceback, which would take as long as the test."""
    if "PYTEST_CURRENT_TEST" in os.environ and "pytest" in sys.modules:
        return sys.modules["pytest"].fail.Exception("withheld", pytrace=False)  # type: ignore[no-any-return]
    return AssertionError("withheld")


def digest_of_any(value: "Any") -> str:
    """Return a value's digest, or that of its `repr` where it has no plain form; `?` where it has no `repr` either."""
    found = digest(value)
    if found != "?":
        return found
    try:
        shown = re.sub(r"\b0x[0-9a-fA-F]+", "", repr((type(value).__name__, value)))
        return "r" + hashlib.sha256(shown.encode("utf-8", "backslashreplace")).hexdigest()[:DIGITS]
    except Exception:
        return "?"


def recorder(path: str) -> "collections.abc.Callable[[int, Any], bool]":
    """Return a function that appends the number of a place in tests, and the digest of a value there, to this file."""
    known: dict[int, set[str]] = {}
    opened = open  # a test may put something else in its place

    def record(site: int, value: "Any") -> bool:
        """Record a value, and return True, so that the test goes on."""
        found, seen = digest_of_any(value), known.setdefault(site, set())
        if found not in seen and len(seen) < OF_A_SITE:
            seen.add(found)
            try:
                with opened(path, "a") as file:
                    file.write(f"{site} {found}\n")
            except OSError:
                pass
        return True

    return record
