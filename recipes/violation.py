"""What is said of a recipe that can't run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slime_swe.errors import UserError


@dataclass(frozen=True)
class Violation:
    """A rule that a recipe breaks.

    field: dotted key of the value that is wrong, or that is the easiest to change.
    message: the value, and why it is not allowed.
    fix: what is allowed instead.
    """

    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.message}: {self.fix}"


def refuse(violations: Sequence[Violation]) -> None:
    """Raise `UserError` with all of them, one a line; nothing where there are none."""
    if len(violations) == 1:
        raise UserError(str(violations[0]))
    if violations:
        lines = "".join(f"\n- {violation}" for violation in violations)
        raise UserError(f"{len(violations)} things of this recipe are not allowed:{lines}")


def listed(values: Iterable[object]) -> str:
    """`1, 2 or 4`."""
    *first, last = [str(value) for value in values]
    return f"{', '.join(first)} or {last}" if first else last


def divisors(number: int, limit: int | None = None) -> list[int]:
    """The sizes that divide a positive number, up to a limit."""
    return [size for size in range(1, (limit or number) + 1) if number % size == 0]
