"""The outcome of a drill: what SLiME did, what was lost, how `--resume` went on, and each promise with its figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from slime_swe.launch.output import table_console
from slime_swe.launch.rehearse.checks import Check
from slime_swe.launch.rehearse.faults.evidence import Seen
from slime_swe.launch.rehearse.faults.promises import again, compare, replayed, resumes_from
from slime_swe.launch.rehearse.show import figure

GOES_ON, HANGS = "goes on", "hangs"


@dataclass(frozen=True)
class Outcome:
    """ending: `goes on`, `hangs`, or the code that the run ended with. seconds: from the fault to the run's end.

    lost_episodes, lost_steps: played and made again, after they were written. resumed_from: what a resumption begins
    with; empty where there was none. processes: titles of those that outlived the run.
    """

    part: str
    moment: str
    recipe: str
    when: str
    ending: str
    seconds: float
    lost_episodes: int
    lost_steps: int
    resumed_from: str
    processes: tuple[str, ...]
    promises: tuple[Check, ...]

    @property
    def broken(self) -> list[Check]:
        return [check for check in self.promises if not check.ok]

    @property
    def ok(self) -> bool:
        return not self.broken


def judge(seen: Seen, recipe: str, when: str) -> Outcome:
    went_on = seen.resumed is None
    return Outcome(
        part=seen.drill.part,
        moment=seen.drill.moment,
        recipe=recipe,
        when=when,
        ending=GOES_ON if went_on else HANGS if seen.code is None else f"ends with code {seen.code}",
        seconds=round(seen.seconds, 1),
        lost_episodes=len(replayed(seen)),
        lost_steps=len(again(seen)),
        resumed_from="" if went_on else resumes_from(seen.at_end),
        processes=seen.processes,
        promises=tuple(compare(seen)),
    )


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {"ok": all(one.ok for one in outcomes), "drills": [record(one) for one in outcomes]}


def record(outcome: Outcome) -> dict[str, Any]:
    """Of one drill, as `benchmarks/baselines/faults` keeps it."""
    return {"ok": outcome.ok, **dataclasses.asdict(outcome)}


def show(outcomes: Sequence[Outcome]) -> None:
    console = table_console()
    table = Table("fails", "during", "SLiME", "seconds", "episodes lost", "steps lost", "resumed from", "promises")
    for one in outcomes:
        kept = f"{len(one.promises) - len(one.broken)} of {len(one.promises)}"
        lost = (str(one.lost_episodes), str(one.lost_steps))
        table.add_row(one.part, one.moment, one.ending, f"{one.seconds:.0f}", *lost, one.resumed_from or "–", kept)
    console.print(table)
    for one in outcomes:
        for check in one.broken:
            values = f"{figure(check.value)}, at most {figure(check.limit)}"
            line = f"{one.part}.{one.moment}: {check.name} is {values}: {check.look_at}"
            console.print(line, markup=False, highlight=False)
