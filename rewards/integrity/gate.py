"""Play the whole suite on one combination of sandbox and grader, and say whether it holds."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from data_sources.arguments import ArgumentError, unknown
from data_sources.task import HarnessOracle, Image
from rewards.grade import HarnessSettings
from rewards.integrity.cases import Case, attacks, neighbours
from rewards.integrity.haunted import haunted_image
from rewards.integrity.lure import lure
from rewards.integrity.play import Row, Table, play_attack, play_neighbour
from rewards.integrity.targets import TARGETS
from rewards.swebench.client import harness_for
from rewards.swebench.instance import instance_of
from rollout.loop_scope import close_loop_scope
from rollout.sandbox.pool import SandboxPool

NEEDED = 40  # distinct attacks, for a gate to mean anything


class UnplayableError(ValueError):
    """A grader can't be tried in a sandbox, because one of them lacks what the other needs."""


@dataclass(frozen=True)
class Result:
    """A gate's outcome: that of one combination of sandbox and grader. seconds: how long it took."""

    sandbox: str
    grader: str
    rows: tuple[Row, ...]
    seconds: float = 0.0

    def count(self, kind: str, verdict: str | None = None) -> int:
        """Distinct cases of a kind: of those that were played, or of those that ended so on some target."""
        return len({row.name for row in self.rows if row.kind == kind and verdict in (None, row.verdict)})

    @property
    def failures(self) -> list[Row]:
        """Cases that did not end as they must, or left no trace."""
        return [row for row in self.rows if row.verdict != "held" or not row.outcome]

    @property
    def passed(self) -> bool:
        return self.count("attack") >= NEEDED and not self.failures

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "sandbox": self.sandbox,
            "grader": self.grader,
            "passed": self.passed,
            "attacks": self.count("attack"),
            "rewarded": self.count("attack", "rewarded"),
            "neighbours": self.count("neighbour"),
            "neighbours_misgraded": self.count("neighbour", "misgraded"),
            "broken": self.count("attack", "broken") + self.count("neighbour", "broken"),
            "seconds": self.seconds,
            "rows": [asdict(row) for row in self.rows],
        }


async def run_gate(
    sandbox: str,
    grader: str,
    *,
    harness: HarnessSettings = HarnessSettings(),  # noqa: B008 (frozen)
    cases: Sequence[Case] | None = None,
) -> Result:
    """Play every case on the target of this name. Raises `ArgumentError` for an unknown sandbox or grader,
    `UnplayableError` where they don't go together here, and `SandboxError` where no sandbox can be had."""
    if grader not in TARGETS:
        raise ArgumentError(unknown("grader", grader, TARGETS))
    target, chosen = TARGETS[grader], (*attacks(), *neighbours()) if cases is None else cases
    started = time.monotonic()
    places = 2 * (os.cpu_count() or 1)
    image = await asyncio.to_thread(_image_for, sandbox) if target.in_image else None
    try:
        async with SandboxPool(sandbox, concurrency=places) as sandboxes:
            with lure() as port:
                table = Table(target, sandboxes, port, image, harness)
                await _require_playable(table, sandbox)
                plays = [_play(case, table) for case in chosen if not case.only or grader in case.only]
                rows = await _bounded(plays, places)
    finally:
        await close_loop_scope()
    return Result(sandbox, grader, tuple(rows), round(time.monotonic() - started, 1))


def _image_for(sandbox: str) -> Image:
    try:
        image = haunted_image(sandbox)
    except ArgumentError as error:
        raise UnplayableError(str(error)) from error
    if image is None:
        raise UnplayableError(f"sandbox {sandbox} takes no images")
    return image


async def _require_playable(table: Table, sandbox: str) -> None:
    task = table.target.task(table.image)
    async with table.sandboxes.open(task.workspace.files, image=task.workspace.image) as opened:
        result = await opened.exec(table.target.needs)
    if result.exit_code != 0:
        said = result.output.strip()[-200:]
        raise UnplayableError(f"`{table.target.needs}` fails in sandbox {sandbox}: {said}")
    if isinstance(task.oracle, HarnessOracle):
        try:
            await (await harness_for(table.harness.python)).script(instance_of(task))
        except ArgumentError as error:
            raise UnplayableError(str(error)) from error


Play = Callable[[], Awaitable[Row]]


def _play(case: Case, table: Table) -> Play:
    play = play_attack if case.kind == "attack" else play_neighbour
    return lambda: play(case, table)


async def _bounded(plays: Sequence[Play], most: int) -> list[Row]:
    """In order; at most `most` at once, so that a case's time is its own and not that of waiting."""
    places = asyncio.Semaphore(most)

    async def one(play: Play) -> Row:
        async with places:
            return await play()

    return list(await asyncio.gather(*map(one, plays)))
