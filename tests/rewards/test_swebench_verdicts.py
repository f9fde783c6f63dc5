"""The official harness on Docker, and ours on Docker and on overlay, say the same of every kind of patch."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import Task
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.swebench.harness import oracle_of
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import Sandboxes
from tests.real_packages.images import as_task, build, in_folder, place, task_for
from tests.real_packages.instances import Instance, instances
from tests.real_packages.packages import DownloadError, definitions
from tests.real_packages.shapes import SHAPES, Shape
from tests.rewards.swebench_here import harness_python, need_docker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

NUMBERS = range(len(definitions()["instances"]))
Verdict = tuple[str, bool, dict[str, bool]]  # outcome, solved, test → passed


@dataclass
class Graders:
    """What there is to grade with."""

    docker: SandboxPool
    overlay: SandboxPool

    async def verdicts(
        self, instance: Instance | Shape, task: Task, patch: str, *, control: bool = True
    ) -> tuple[Verdict, ...]:
        """Of the official harness, of ours on Docker and of ours on overlay."""
        ours = GradingSettings(harness_python=harness_python(), negative_control=control)
        official = GradingSettings(harness_python=harness_python(), harness="official")
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
    async with SandboxPool("docker", concurrency=2) as docker, SandboxPool("overlay", concurrency=2) as overlay:
        yield Graders(docker, overlay)
        await close_loop_scope()


@pytest.fixture(scope="module")
def downloaded() -> list[Instance]:
    """Those of real packages. The other tests make their own repositories, and need no network."""
    try:
        return instances(place())
    except DownloadError as error:
        pytest.skip(f"PyPI can't be reached: {error}")


async def test_there_are_enough_of_them() -> None:
    given = definitions()["instances"]
    assert len(given) >= 12
    assert len({instance["package"] for instance in given}) >= 4


@pytest.mark.extended("tests/rewards/test_swebench_verdicts.py::test_verdicts_on_awkward_shapes_are_identical")
@pytest.mark.parametrize("number", NUMBERS)
async def test_verdicts_are_identical(graders: Graders, downloaded: list[Instance], number: int) -> None:
    instance, found = downloaded[number], {}
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


# What a patch of some kinds is worth, whatever the shape; of the others, the three have to agree.
WORTH = {
    "gold": "solved", "empty": "empty_patch", "wrong": "failed", "unappliable": "unappliable_patch", "syntax": "failed",
    "other way": "solved", "edits the tests": "solved", "deletes the tests": "solved", "deletes": "failed",
    "without git's line": "solved", "in prose": "solved", "by GNU patch, with .gitignore": "solved",
    "new files": "solved",
}  # fmt: skip
FEW = ("wrong", "by GNU patch, with .gitignore")  # that does not solve it, and one that does
ALL = tuple(SHAPES[0].patches)
KINDS = 5  # of a row, which takes less than 20 s
ODD_PATHS = ("blanks in names", "odd names", "quotes", "linked tests", "doctest", "unittest", "tests beside the code")
FIRST_GROUP = ("plain", SHAPES[1].name, *ODD_PATHS)  # no other test builds the rest: another worker can grade in them
# Each kind on six shapes: a third of them on each but the first.
THIRDS = [ALL if number == 0 else ALL[number % 3 :: 3] for number in range(len(SHAPES))]
ROWS = [
    pytest.param(
        shape,
        kinds[start : start + KINDS],
        marks=[
            pytest.mark.extended("verdicts on awkward shapes"),
            *([] if shape.name in FIRST_GROUP else [pytest.mark.xdist_group("verdicts on other shapes")]),
        ],
        id=f"{shape.name}-{start}",
    )
    for shape, kinds in zip(SHAPES, THIRDS, strict=True)
    for start in range(0, len(kinds), KINDS)
]


@pytest.mark.parametrize(("shape", "kinds"), [pytest.param(SHAPES[1], FEW, id="few"), *ROWS])
async def test_verdicts_on_awkward_shapes_are_identical(graders: Graders, shape: Shape, kinds: Sequence[str]) -> None:
    """Without the negative control, which the harness does not have."""
    build(shape)
    task = as_task(shape.record())
    found, differ = {}, []
    for kind in kinds:
        official, docker, overlay = await graders.verdicts(shape, task, shape.patches[kind], control=False)
        found[kind] = official[0]
        differ += [] if docker == overlay == official else [(kind, official, docker, overlay)]
    assert not differ
    assert found == {**found, **{kind: WORTH[kind] for kind in kinds if kind in WORTH}}


async def test_there_are_enough_shapes_and_kinds() -> None:
    assert len(SHAPES) >= 12
    assert len(ALL) >= 50


def _printing(shape: Shape, code: str, log: str, then: str = "") -> str:
    """A patch whose code writes this to the log when it is imported, past whatever captures the output of tests."""
    write = f"for fd in range(1, 40):\n    try: os.write(fd, {log.encode()!r})\n    except OSError: pass\n"
    return shape.patch(f"{code}import os\n{write}{then}\n")


def _shape(name: str) -> tuple[Shape, Task]:
    shape = next(shape for shape in SHAPES if shape.name == name)
    build(shape)
    return shape, as_task(shape.record())


@pytest.mark.parametrize(
    "name",
    [
        ODD_PATHS[0],
        *(pytest.param(name, marks=pytest.mark.extended("forged logs on odd paths")) for name in ODD_PATHS[1:]),
    ],
)
async def test_a_forged_log_on_an_odd_path_is_believed_by_the_harness_alone(graders: Graders, name: str) -> None:
    shape, task = _shape(name)
    passed = "{} ... ok" if shape.parser == "parse_log_django" else "PASSED {}"
    log = "".join(f"\n{passed.format(test)}\n" for test in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass))
    forging = _printing(shape, shape.wrong, log, "os._exit(0)")
    official, *ours = await graders.verdicts(shape, task, forging)
    assert official[:2] == ("solved", True)
    assert {verdict[:2] for verdict in ours} == {("forged", False)}
    gold = await graders.verdicts(shape, task, shape.patches["gold"])
    assert [solved for _, solved, _ in gold] == [True, True, True]


async def test_a_log_that_the_harness_fails_at_is_the_policy_s_failure(graders: Graders) -> None:
    """It has no report, so that nothing is solved."""
    shape, task = _shape("plain")
    patch = _printing(shape, shape.text, f"\n>>>>> Test Exit Code: {'9' * 5_000}\n")
    for verdict in await graders.verdicts(shape, task, patch):
        assert verdict[:2] == ("failed", False)


async def test_a_change_that_the_harness_can_not_decode_is_the_policy_s_failure(graders: Graders) -> None:
    """The official harness reads the changes as UTF-8; ours does not read them."""
    shape, task = _shape("plain")
    old, new = shape.repository["README"], b"caf\xe9\n"
    blobs = [hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest() for content in (old, new)]
    packed = zlib.compress(new)
    line = f"{chr(ord('A') + len(packed) - 1)}{base64.b85encode(packed, pad=True).decode()}"
    patch = (
        f"{shape.patches['gold']}diff --git a/README b/README\nindex {'..'.join(blobs)} 100644\nGIT binary patch\n"
        f"literal {len(new)}\n{line}\n\n"
    )
    outcomes = [verdict[:2] for verdict in await graders.verdicts(shape, task, patch)]
    assert outcomes == [("failed", False), ("solved", True), ("solved", True)]


async def _verdict(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Verdict:
    score = await grade(task, patch, sandboxes, replace(settings, mode="fraction"))
    return score.evidence["outcome"], score.solved, score.evidence.get("tests", {})


def _official() -> GradingSettings:
    return GradingSettings(harness_python=harness_python(), harness="official")


def _slept(task: Task, seconds: float) -> Task:
    """The same, whose tests take a minute, of these seconds."""
    oracle = oracle_of(task)
    script = oracle.eval_script.replace("python3 -B", "sleep 60; python3 -B")
    return replace(task, oracle=replace(oracle, eval_script=script, timeout_seconds=seconds))


async def test_gradings_of_one_instance_at_once_do_not_mix(graders: Graders) -> None:
    """The harness names its reports and its loggers by the instance."""
    instance, task = _shape("plain")
    kinds = ["gold", "wrong", "unappliable", "gold"]
    patches = [instance.patches[kind] for kind in kinds]
    found = await asyncio.gather(*(_verdict(task, patch, graders.docker, _official()) for patch in patches))
    assert [outcome for outcome, _, _ in found] == ["solved", "failed", "unappliable_patch", "solved"]


async def test_hanging_tests_are_a_timeout_of_the_official_harness_too(graders: Graders) -> None:
    instance, task = _shape("plain")
    outcome, solved, tests = await _verdict(_slept(task, 2), instance.patches["gold"], graders.docker, _official())
    assert (outcome, solved, any(tests.values())) == ("timeout", False, False)


async def test_a_cancelled_official_grading_leaves_no_container(graders: Graders) -> None:
    instance, task = _shape("plain")
    task = replace(_slept(task, 300), id="cancelled__cancelled-1", metadata={})
    grading = asyncio.create_task(_verdict(task, instance.patches["gold"], graders.docker, _official()))
    await _until(lambda: _containers(task.id), 60)
    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading
    await _until(lambda: not _containers(task.id), 60)


def _containers(instance: str) -> list[str]:
    command = ["docker", "ps", "--all", "--quiet", "--filter", f"name=sweb.eval.{instance}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


async def _until(reached: Callable[[], object], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(reached):
            await asyncio.sleep(0.2)
