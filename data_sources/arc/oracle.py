"""ARC's rule as an oracle: every hidden output must be given by one of two attempts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from slime_swe.data_sources.arc.tool.forms import grid_of
from slime_swe.data_sources.arc.tool.program import MODULES
from slime_swe.data_sources.task import Oracle
from slime_swe.fields import Meta

Grid = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Pair:
    """A grid and what the task's rule makes of it: rows of cells, each a colour from 0 to 9."""

    input: Grid
    output: Grid


@dataclass(frozen=True)
class ArcOracle(Oracle):
    """Graded by what `solution.py` gives for the inputs of `test`, whose outputs never enter a sandbox.

    train: the pairs that the statement shows. test: the pairs whose outputs are hidden. modules: that the program may
    import. functions: those that it may call by name, beside its own; none for all. A program that uses others is run
    all the same, and its score says so (`dsl`). timeout_seconds: of all calls together, and of what starts them.
    """

    kind: ClassVar[str] = "arc"
    grader: ClassVar[str] = "slime_swe.rewards.arc.try_patch"

    fail_to_pass: tuple[str, ...] = ("answer",)
    train: tuple[Pair, ...] = ()
    test: tuple[Pair, ...] = ()
    modules: tuple[str, ...] = MODULES
    functions: tuple[str, ...] = ()
    timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        for name, pairs in (("train", self.train), ("test", self.test)):
            if not pairs:
                yield f"{name} must be at least one pair, got []"
            for number, pair in enumerate(pairs):
                for side in ("input", "output"):
                    try:
                        grid_of(getattr(pair, side))
                    except ValueError as error:
                        yield f"{name}[{number}].{side}: {error}"
