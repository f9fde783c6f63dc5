"""One rehearsal from beginning to end."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from slime_swe.launch.output import duration, table_console
from slime_swe.launch.progress import Bar
from slime_swe.launch.rehearse.checks import Check, run_checks
from slime_swe.launch.rehearse.differences import Difference
from slime_swe.launch.rehearse.phases import PHASES, Rehearsal
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.toy import layout_of
from slime_swe.recipes.base import Recipe


def rehearse(recipe: Recipe, platform: Platform, folder: Path) -> Outcome:
    """Play every phase in `folder`, and check what they leave there.

    Raises `InfrastructureError` where a phase ends before it is done, and `UserError` for a flag of the rehearsal that
    differs from the recipe's without a stated reason.
    """
    started = time.monotonic()
    with platform.computing(), Bar("rehearsing", len(PHASES) + 1) as progress:
        progress.say(f"{recipe.name} · {folder}")
        rehearsal = Rehearsal(recipe, platform, folder, progress)
        differing = rehearsal.differences()
        evidence = asyncio.run(rehearsal.play())
        checking = time.monotonic()
        checks = tuple(run_checks(evidence))
        phases = {**rehearsal.seconds, "checks": time.monotonic() - checking}
        progress.advance("checks", keep=True)
    return Outcome(
        recipe=recipe.name,
        where=platform.name,
        when=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(time.monotonic() - started, 1),
        phases={name: round(value, 1) for name, value in phases.items()},
        checks=checks,
        differing_flags=tuple(_without_folders(one, folder) for one in differing),
        smaller=layout_of(recipe, platform).halved,
        template=_shortened(rehearsal.template, folder),
    )


# The outcome of a rehearsal: one JSON document, or tables for people.
MARKS = {True: "[green]ok[/]", False: "[red]FAILED[/]", None: "[yellow]not made[/]"}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """smaller: parts of the layout that are smaller than the recipe's. template: where the toy's chat template is from.

    where: `cpu` or `gpu`. when: the day, in UTC. phases: seconds of each, some of them beside each other.
    """

    recipe: str
    where: str
    when: str
    seconds: float
    phases: dict[str, float]
    checks: tuple[Check, ...]
    differing_flags: tuple[Difference, ...]
    smaller: tuple[str, ...]
    template: str

    @property
    def ok(self) -> bool:
        return not any(check.ok is False for check in self.checks)


def document(outcome: Outcome) -> dict[str, Any]:
    """What is printed and kept. JSON has no infinity and no NaN: such a value is a string."""
    found = {"ok": outcome.ok, **dataclasses.asdict(outcome)}
    found["checks"] = [{**check, "value": _written(check["value"])} for check in found["checks"]]
    return found


def _written(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def show(outcome: Outcome) -> None:
    console = table_console()
    console.print(_flags(outcome.differing_flags))
    for line in outcome.smaller:
        console.print(f"smaller than the recipe's: {line}", markup=False, highlight=False)
    console.print(f"chat template: {outcome.template}", markup=False, highlight=False)
    console.print(_checks(outcome.checks))
    for check in outcome.checks:
        if check.ok is not True:
            what = "look at" if check.ok is False else "not made:"
            console.print(f"{check.name}: {what} {check.look_at}", markup=False, highlight=False)
    phases = " · ".join(f"{name} {duration(seconds)}" for name, seconds in outcome.phases.items())
    console.print(f"{duration(outcome.seconds)}: {phases}", markup=False, highlight=False)


def _checks(checks: Sequence[Check]) -> Table:
    table = Table("check", "", "value", "limit")
    for check in checks:
        table.add_row(check.name, MARKS[check.ok], figure(check.value), figure(check.limit))
    return table


def _flags(found: Sequence[Difference]) -> Table:
    table = Table("differing flag", "recipe", "rehearsed", title="The recipe's own command line, but for")
    for reason, group in _by_reason(found):
        table.add_row(f"[bold]{reason}[/]", end_section=False)
        for one in group:
            table.add_row(one.flag, _short(one.own), _short(one.rehearsed))
        table.add_section()
    return table


def _by_reason(found: Sequence[Difference]) -> Iterator[tuple[str, list[Difference]]]:
    for reason in dict.fromkeys(one.reason for one in found):
        yield reason, [one for one in found if one.reason == reason]


def figure(value: float | None) -> str:
    """Two digits. Near 1 they are those of the distance to it: a share of 0.999 is not all."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if 0 < abs(1 - value) < 0.1:
        return f"{1 - float(f'{1 - value:.2g}'):.12g}"
    return f"{value:.0f}" if value in (0, 1) or (value > 1 and value == round(value)) else f"{value:.2g}"


def _short(text: str | None) -> str:
    if text is None:
        return "–"
    return text or "set" if len(text) <= 40 else f"…{text[-39:]}"


def _without_folders(one: Difference, folder: Path) -> Difference:
    own, rehearsed = (text and _shortened(text, folder) for text in (one.own, one.rehearsed))
    return Difference(one.flag, own, rehearsed, one.reason)


def _shortened(text: str, folder: Path) -> str:
    """With the rehearsal's folder as RUN, and the current one as `.`: the same on every machine."""
    return text.replace(str(folder.resolve()), "RUN").replace(str(Path.cwd()), ".")
