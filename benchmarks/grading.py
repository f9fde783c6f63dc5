"""What grading costs beyond the tests themselves: ours on Docker and on overlay, beside SWE-bench's own harness.

The tests of real packages are run bare (the eval script alone, in a container that is up), then graded by ours on
Docker, by ours on overlay and by the harness's `run_instance`, one after the other in every round. The overhead of each
is what it took beyond the bare run in the same kind of container. Figures are medians over all rounds, in milliseconds.

Ours is timed without and with the negative control (`rewards.negative_control`), which is the default: another run of
the tests before the one that counts. The harness has none. `…_controlled_whole` is the time of a whole grading with it,
as a share of the harness's, and so for each package: where a FAIL_TO_PASS test has no value that could be withheld,
up to seven more runs bound how often luck is rewarded. The controls of a task itself, which all its patches share, are
made in the round that warms up.

Docker has a spare container of each image started, as it has from the second patch of a group on, and the test files of
a task are known, as they are from its first patch on; `docker_cold` is without a spare.

The images stop at once (`STOPSIGNAL SIGKILL`): without, the harness waits another fifteen seconds for each container.

    python -m benchmarks.grading [--rounds N] [--json] [--check] [--save]

Needs a Docker daemon, bubblewrap, swebench (here, in .venv-swebench or at $SLIME_SWE_HARNESS_PYTHON) and PyPI.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack

from benchmarks.command import Figures, run
from slime_swe.data_sources.task import Task
from slime_swe.rewards.grade import GradingSettings, try_patch
from slime_swe.rewards.swebench.grader import Evaluation
from slime_swe.rewards.swebench.harness import harness_for, instance_of, oracle_of
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.docker.backend import DockerBackend
from tests.real_packages.images import build, in_folder, place, task_for
from tests.real_packages.instances import Instance, instances
from tests.rewards.swebench_here import find_harness_python

LIMITS = {
    "docker_ratio": 0.3,  # of the official overhead
    "overlay_ratio": 0.1,
    "docker_controlled_whole": 2.5,  # of the official time
    "overlay_controlled_whole": 2.2,
}
CONTROLLED = {"docker_controlled": "docker", "overlay_controlled": "overlay"}
OURS = {"docker": "docker", "docker_cold": "benchmarks.grading.cold_docker", "overlay": "overlay", **CONTROLLED}
SETTLE_SECONDS = 0.7

Laps = dict[str, list[float]]  # seconds, by what was timed


async def measure(rounds: int) -> Figures:
    """Raises `SandboxError`, `UserError` where something that is needed is not there."""
    python = find_harness_python() or ""
    laps: Laps = defaultdict(list)
    figures: Figures = {}
    async with AsyncExitStack() as stack:
        pools = {
            name: await stack.enter_async_context(SandboxPool(backend, concurrency=1 + (name in CONTROLLED)))
            for name, backend in OURS.items()
        }
        tasks = await _tasks(pools["overlay"])
        for task in tasks:
            own: Laps = defaultdict(list)
            for number in range(rounds + 1):
                await _round(task, pools, python, own if number else defaultdict(list))  # the first warms up
            figures |= _shares(own, task["docker"].id.partition("__")[0])
            for name, seconds in own.items():
                laps[name] += seconds
    return {"instances": len(tasks), "rounds": rounds, **_figures(laps), **figures}


def cold_docker() -> DockerBackend:
    """Docker without containers started ahead of need."""
    return DockerBackend(warm=0)


async def _tasks(overlay: SandboxPool) -> list[dict[str, Task]]:
    """One of each package, by the kind of sandbox."""
    made: dict[str, Instance] = {}
    for instance in instances(place()):
        made.setdefault(instance.package.name, instance)
    tasks = []
    for instance in made.values():
        build(instance)
        task = await task_for(instance, overlay)
        tasks.append({"docker": task, "overlay": in_folder(task, instance)})
    return tasks


async def _round(tasks: Mapping[str, Task], pools: Mapping[str, SandboxPool], python: str, laps: Laps) -> None:
    harness = await harness_for(python)
    script = await harness.script(instance_of(tasks["docker"]))
    for kind, pool in (("docker", pools["docker_cold"]), ("overlay", pools["overlay"])):
        evaluation = Evaluation(tasks[kind], script, pool)
        laps[f"bare_{kind}"].append(await _bare(evaluation))
    for name, pool in pools.items():
        settings = GradingSettings(harness_python=python, negative_control=name in CONTROLLED)
        laps[name].append(await _ours(tasks[_kind(name)], pool, settings))
    task = tasks["docker"]
    answer = await harness.run(instance_of(task), task.oracle.gold_patch, oracle_of(task).timeout_seconds)
    assert answer["report"]["resolved"], answer
    laps["official"].append(answer["seconds"])


async def _ours(task: Task, pool: SandboxPool, settings: GradingSettings) -> float:
    await asyncio.sleep(SETTLE_SECONDS)  # what the lap before began in the background
    started = time.perf_counter()
    trial = await try_patch(task, task.oracle.gold_patch, pool, settings)
    assert trial.solved and not trial.rejected, trial
    return time.perf_counter() - started


async def _bare(evaluation: Evaluation) -> float:
    """Seconds of the eval script in a container that is up, with the gold patch applied."""
    async with evaluation.sandboxes.open({}, image=evaluation.image) as sandbox:
        await sandbox.write_file("/tmp/gold.diff", evaluation.oracle.gold_patch.encode())
        applied = await sandbox.exec("git apply /tmp/gold.diff")
        assert applied.exit_code == 0, applied
        await asyncio.sleep(SETTLE_SECONDS)
        result = await evaluation.run_in(sandbox)
        assert not result.timed_out, result
        return result.seconds


def _figures(laps: Laps) -> Figures:
    figures = {f"{name}_ms": statistics.median(seconds) * 1e3 for name, seconds in laps.items()}
    for name in ("official", *OURS):
        if name in CONTROLLED:
            figures[f"{name}_whole"] = figures[f"{name}_ms"] / figures["official_ms"]
            continue
        beyond = [total - bare for total, bare in zip(laps[name], laps[f"bare_{_kind(name)}"], strict=True)]
        figures[f"{name}_overhead_ms"] = statistics.median(beyond) * 1e3
        figures[f"{name}_ratio"] = figures[f"{name}_overhead_ms"] / figures["official_overhead_ms"]
    return figures


def _shares(laps: Laps, package: str) -> Figures:
    """What whole gradings of one package took with the control, as a share of the harness's."""
    official = statistics.median(laps["official"])
    return {f"{name}_whole_{package}": statistics.median(laps[name]) / official for name in CONTROLLED}


def _kind(name: str) -> str:
    """Of the container that a grader uses."""
    return "overlay" if name.startswith("overlay") else "docker"


if __name__ == "__main__":
    sys.exit(run(__doc__, "grading", measure, limits=LIMITS, rounds=5))
