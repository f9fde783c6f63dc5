"""One rehearsal from beginning to end."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

from slime_swe.launch.progress import Bar
from slime_swe.launch.rehearse.checks import run_checks
from slime_swe.launch.rehearse.differences import Difference
from slime_swe.launch.rehearse.phases import PHASES, Rehearsal
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.scaled import layout_of
from slime_swe.launch.rehearse.show import Outcome
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


def _without_folders(one: Difference, folder: Path) -> Difference:
    own, rehearsed = (text and _shortened(text, folder) for text in (one.own, one.rehearsed))
    return Difference(one.flag, own, rehearsed, one.reason)


def _shortened(text: str, folder: Path) -> str:
    """With the rehearsal's folder as RUN, and the current one as `.`: the same on every machine."""
    return text.replace(str(folder.resolve()), "RUN").replace(str(Path.cwd()), ".")
