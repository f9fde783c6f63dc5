"""What the calls of an endpoint cost: counted as its replies say, kept in a file, and held against a budget."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from slime_swe.errors import UserError
from slime_swe.files import writing

SPENDING = "spending.jsonl"
_MILLION = 1_000_000


class Usage(msgspec.Struct, frozen=True):
    """Tokens of model calls. `cached` ones are among those of the prompts."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.completion + other.completion, self.cached + other.cached)


@dataclass(frozen=True)
class Prices:
    """Dollars for a million tokens."""

    prompt: float
    completion: float
    cached: float

    def dollars(self, used: Usage) -> float:
        uncached = (used.prompt - used.cached) * self.prompt
        return (uncached + used.cached * self.cached + used.completion * self.completion) / _MILLION


@dataclass(frozen=True)
class Budget:
    """What may be spent; None: no limit."""

    dollars: float | None = None
    tokens: float | None = None

    def __bool__(self) -> bool:
        return self.dollars is not None or self.tokens is not None


@dataclass
class Spending:
    """Every model call that was answered, those of episodes that infrastructure broke or a kill cut short included.

    file: a line for each, so that a later attempt goes on counting. Not covered: a machine that loses its power, with
    the lines of the last seconds.
    """

    file: Path
    _: KW_ONLY
    prices: Prices | None = None
    budget: Budget = Budget()
    used: Usage = field(default_factory=Usage)

    @classmethod
    def of(cls, file: Path, prices: Prices | None = None, budget: Budget = Budget()) -> Self:
        """With what earlier attempts have spent."""
        spending = cls(file, prices=prices, budget=budget)
        written = file.read_bytes() if file.exists() else b""
        if written and not written.endswith(b"\n"):
            spending._append(b"\n")
        for line in written.splitlines():
            try:
                spending.used += msgspec.json.decode(line, type=Usage)
            except msgspec.DecodeError:
                continue  # cut short by a crash
        return spending

    @property
    def dollars(self) -> float | None:
        """None where no prices are given."""
        return self.prices.dollars(self.used) if self.prices else None

    @property
    def is_spent(self) -> bool:
        """Whether the budget is."""
        dollars, tokens = self.budget.dollars, self.budget.tokens
        spent = self.dollars
        too_dear = dollars is not None and spent is not None and spent >= dollars
        return too_dear or (tokens is not None and self.used.total >= tokens)

    def add(self, used: Usage | None) -> None:
        """Count a call. Raises `UserError` where the endpoint does not say what it used, and that is to be counted."""
        if used is None:
            if self.prices or self.budget:
                raise UserError(
                    "the endpoint's replies have no `usage`, so that nothing can be counted: leave out --price and "
                    "--budget"
                )
            return
        self.used += used
        self._append(msgspec.json.encode(used) + b"\n")

    def _append(self, line: bytes) -> None:
        with writing(self.file), self.file.open("ab") as file:
            file.write(line)
