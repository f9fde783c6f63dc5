"""The official harness on Docker, and ours on Docker and on overlay, say the same of every kind of patch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from data_sources.task import Task
from rewards.grade import HarnessSettings, grade
from rewards.verdict import Sandboxes
from rollout.loop_scope import close_loop_scope
from rollout.sandbox import SandboxPool
from tests.real_packages.images import build, in_folder, place, task_for
from tests.real_packages.instances import Instance, instances
from tests.real_packages.packages import DownloadError, definitions
from tests.rewards.swebench_here import harness_python, need_docker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

NUMBERS = range(len(definitions()["instances"]))
Verdict = tuple[str, bool, dict[str, bool]]  # outcome, solved, test → passed


@dataclass
class Graders:
    """What there is to grade with, and the instances."""

    instances: list[Instance]
    docker: SandboxPool
    overlay: SandboxPool

    async def verdicts(self, instance: Instance, task: Task, patch: str) -> tuple[Verdict, ...]:
        """Of the official harness, of ours on Docker and of ours on overlay."""
        ours = HarnessSettings(harness_python())
        official = HarnessSettings(harness_python(), official=True)
        return tuple(
            await asyncio.gather(
                _verdict(task, patch, self.docker, official),
                _verdict(task, patch, self.docker, ours),
                _verdict(in_folder(task, instance), patch, self.overlay, ours),
            )
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def graders() -> AsyncIterator[Graders]:
    need_docker()
    harness_python()
    try:
        made = instances(place())
    except DownloadError as error:
        pytest.skip(f"PyPI can't be reached: {error}")
    async with SandboxPool("docker", concurrency=2) as docker, SandboxPool("overlay", concurrency=2) as overlay:
        yield Graders(made, docker, overlay)
        await close_loop_scope()


async def test_there_are_enough_of_them() -> None:
    given = definitions()["instances"]
    assert len(given) >= 12
    assert len({instance["package"] for instance in given}) >= 4


@pytest.mark.parametrize("number", NUMBERS)
async def test_verdicts_are_identical(graders: Graders, number: int) -> None:
    instance, found = graders.instances[number], {}
    build(instance)
    task = await task_for(instance, graders.overlay)
    for kind, patch in instance.patches.items():
        official, docker, overlay = await graders.verdicts(instance, task, patch)
        assert docker == official, kind
        assert overlay == official, kind
        found[kind] = official
    _check_kinds(found, task)


def _check_kinds(verdicts: dict[str, Verdict], task: Task) -> None:
    """Each patch is of the kind that it is meant to be."""
    assert {kind for kind, (_, solved, _) in verdicts.items() if solved} == {"gold", "edits the tests"}
    assert verdicts["empty"][0] == "empty_patch"
    assert verdicts["unappliable"][0] == "unappliable_patch"
    tests = {kind: found for kind, (_, _, found) in verdicts.items()}
    assert not any(tests["wrong"][name] for name in task.oracle.fail_to_pass)
    partly = [tests["partial"][name] for name in task.oracle.fail_to_pass]
    assert any(partly) and not all(partly)
    still = [tests["breaks tests"][name] for name in task.oracle.pass_to_pass]
    assert any(still) and not all(still)
    assert not any(tests["breaks syntax"].values())


async def _verdict(task: Task, patch: str, sandboxes: Sandboxes, settings: HarnessSettings) -> Verdict:
    score = await grade(task, patch, sandboxes, "fraction", settings)
    return score.evidence["outcome"], score.solved, score.evidence.get("tests", {})
