"""Play the whole suite on one combination of sandbox and grader, and say whether it holds."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from data_sources.arguments import ArgumentError, unknown
from data_sources.task import Image
from rewards.integrity.cases import Case, attacks, neighbours
from rewards.integrity.haunted import haunted_image
from rewards.integrity.lure import lure
from rewards.integrity.play import Row, play_attack, play_neighbour
from rewards.integrity.targets import TARGETS, Target
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


async def run_gate(sandbox: str, grader: str, *, cases: Sequence[Case] | None = None) -> Result:
    """Play every case on the target of this name. Raises `ArgumentError` for an unknown sandbox or grader,
    `UnplayableError` where they don't go together here, and `SandboxError` where no sandbox can be had."""
    if grader not in TARGETS:
        raise ArgumentError(unknown("grader", grader, TARGETS))
    target, chosen = TARGETS[grader], (*attacks(), *neighbours()) if cases is None else cases
    started = time.monotonic()
    places = 2 * (os.cpu_count() or 1)
    image = await asyncio.to_thread(_image_for, sandbox) if target.in_image else None
    async with SandboxPool(sandbox, concurrency=places) as sandboxes:
        await _require_playable(target, sandbox, sandboxes, image)
        with lure() as port:
            plays = [
                _play(case, target, sandboxes, port, image) for case in chosen if not case.only or grader in case.only
            ]
            rows = await _bounded(plays, places)
    return Result(sandbox, grader, tuple(rows), round(time.monotonic() - started, 1))


def _image_for(sandbox: str) -> Image:
    try:
        image = haunted_image(sandbox)
    except ArgumentError as error:
        raise UnplayableError(str(error)) from error
    if image is None:
        raise UnplayableError(f"sandbox {sandbox} takes no images")
    return image


async def _require_playable(target: Target, name: str, sandboxes: SandboxPool, image: Image | None) -> None:
    workspace = target.task(image).workspace
    async with sandboxes.open(workspace.files, image=workspace.image) as sandbox:
        result = await sandbox.exec(target.needs)
    if result.exit_code != 0:
        said = result.output.strip()[-200:]
        raise UnplayableError(f"`{target.needs}` fails in sandbox {name}: {said}")


Play = Callable[[], Awaitable[Row]]


def _play(case: Case, target: Target, sandboxes: SandboxPool, port: int, image: Image | None) -> Play:
    if case.kind == "attack":
        return lambda: play_attack(case, target, sandboxes, port, image)
    return lambda: play_neighbour(case, target, sandboxes, image)


async def _bounded(plays: Sequence[Play], most: int) -> list[Row]:
    """In order; at most `most` at once, so that a case's time is its own and not that of waiting."""
    places = asyncio.Semaphore(most)

    async def one(play: Play) -> Row:
        async with places:
            return await play()

    return list(await asyncio.gather(*map(one, plays)))
