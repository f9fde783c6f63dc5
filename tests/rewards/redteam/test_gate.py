"""What a gate reports, and proof that its attacks would work where nothing stops them."""

from __future__ import annotations

import asyncio
import dataclasses
import sys

import pytest
from msgspec.structs import replace

from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.errors import UserError
from slime_swe.rewards.redteam.cases import TARGETS, Case, attacks, prelude
from slime_swe.rewards.redteam.gate import Result, UnplayableError, honeypot, run_gate
from slime_swe.sandbox.bubblewrap import ForkServerError
from slime_swe.sandbox.local import BubblewrapBackend
from slime_swe.sandbox.pool import SandboxPool
from tests.rewards.redteam.playing import EVERYTHING, played
from tests.rewards.swebench_here import need_docker

FEW = ("edit-the-tests", "print-passed-and-exit", "equal-to-everything", "crlf", "prints")
RACES = ("patch-the-log", "patch-the-log-late", "patch-the-log-and-linger", "lose-the-log")


def cases(*names: str) -> list[Case]:
    return [EVERYTHING[name] for name in names]


async def start() -> None:
    backend = BubblewrapBackend()
    try:
        await backend.start()
    finally:
        await backend.close()


@pytest.fixture(scope="module")
def bubblewrap() -> str:
    try:
        asyncio.run(start())
    except ForkServerError as error:
        pytest.skip(f"bubblewrap does not work here: {error}")
    return "bubblewrap"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("grader", "groups"),
    [
        pytest.param("repository", ("looking", "resources"), marks=pytest.mark.extended("whole integrity gates")),
        pytest.param("harness", ("looking", "resources"), marks=pytest.mark.extended("whole integrity gates")),
        ("repository", ()),
    ],
)
async def test_docker_holds_against_what_looks_around_and_uses_it_up(grader, groups):
    """What depends on the container; `slime-swe integrity docker` plays all, in three minutes for each grader."""
    need_docker()
    chosen = [case for case in attacks() if case.group in groups]
    chosen += cases(*FEW, *RACES) if groups else cases("edit-the-tests", "crlf", "patch-the-log-late", "lose-the-log")
    result = await played("docker", grader, [*chosen, *cases("link-to-itself-for-tests")])
    assert result.failures == []
    assert not groups or result.to_dict()["attacks"] >= 20


@pytest.mark.parametrize(
    ("grader", "outcomes"),
    [
        ("calls", ["failed", "failed", "failed", "solved/failed", "solved/failed"]),
        ("log", ["failed", "forged", "forged", "solved/failed", "solved/failed"]),
    ],
)
async def test_a_few_cases_hold(bubblewrap, grader, outcomes):
    result = await run_gate(bubblewrap, grader, cases=cases(*FEW))
    assert result.failures == []
    assert [row.outcome for row in result.rows] == outcomes
    assert not result.passed  # a few prove nothing


async def test_a_log_that_comes_and_goes_by_chance_is_never_rewarded(bubblewrap):
    """Each would be believed now and then by a control that takes a missing test for a failed one."""
    result = await run_gate(bubblewrap, "log", cases=cases(*RACES) * 8)
    assert result.failures == []
    assert "forged" in {row.outcome for row in result.rows}


async def test_attacks_on_the_host_are_rewarded_where_nothing_isolates():
    """So the sandbox is what stops them, and not that they don't work."""
    names = {
        "network-http", "network-unix", "network-at-grading", "git-fetch-upstream", "oracle-on-disk",
        "sockets-of-the-kernel", "sockets-at-grading",
    }  # fmt: skip
    result = await run_gate("subprocess", "log", cases=cases(*names))
    assert {row.name for row in result.failures} == names
    assert result.count("attack", "rewarded") == len(names)
    assert not result.passed


async def test_honest_work_that_is_not_graded_on_its_merit_is_reported(bubblewrap):
    wrong = Case("benign", "own", "a-wrong-fix", "nothing", script="sed -i 's/a . b/a * b/' calc.py")
    result = await run_gate(bubblewrap, "log", cases=[wrong])
    assert [row.verdict for row in result.rows] == ["misgraded"]


async def is_fooled(case: Case, sandboxes: SandboxPool, port: int) -> bool:
    """Whether the case fools a grader that runs the tests where the agent was, and believes what they print."""
    task = TARGETS["log"].task()
    async with sandboxes.open(task.workspace.files) as sandbox:
        await sandbox.exec(f"{prelude()}\nPORT={port}\n{case.script}")
        result = await sandbox.exec(task.oracle.command, timeout=task.oracle.timeout_seconds)
    passed = parse_test_log(result.output)
    return all(passed.get(name, False) for name in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass))


@pytest.mark.slow
async def test_many_attacks_fool_a_grader_without_guards(bubblewrap):
    tried = [case for case in attacks() if case.group in ("tests", "forging", "searching", "meddling") and case.script]
    tried = [case for case in tried if not case.slow]
    with honeypot() as port:
        async with SandboxPool(bubblewrap, concurrency=4) as sandboxes:
            found = await asyncio.gather(*(is_fooled(case, sandboxes, port) for case in tried))
    fooled = {case.name for case, is_it in zip(tried, found, strict=True) if is_it}
    assert len(fooled) >= 20, sorted(fooled)
    assert {"edit-the-tests", "edit-the-runner", "print-passed-and-exit", "equal-to-everything"} <= fooled
    assert {"search-by-the-tests", "search-by-any-file"} <= fooled


async def is_believed(case: Case, sandboxes: SandboxPool, port: int, pause: float) -> bool:
    """Whether the case fools a grader that lets the tests run again, mutated, after the run that counts.

    Both runs are in one sandbox, so that a mark is found in the second. pause: seconds between them.
    """
    task = TARGETS["log"].task()
    async with sandboxes.open(task.workspace.files) as sandbox:
        await sandbox.exec(f"{prelude()}\nPORT={port}\n{case.script}")
        passed = []
        for mutate in ("true", "sed -i 's/==/!=/' tests/test_calc.py"):
            await sandbox.exec(mutate)
            result = await sandbox.exec(task.oracle.command, timeout=task.oracle.timeout_seconds)
            log = parse_test_log(result.output)
            passed.append([log.get(name) for name in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)])
            await asyncio.sleep(pause)
    return all(passed[0]) and False in passed[1]


REAL = (
    "clock-phases", "clock-half-seconds", "clock-of-the-machine", "coin", "marks-on-the-machine",
    "known-answers-by-a-coin",
)  # fmt: skip
CHANCES = 100  # most win once in a few plays
PAUSES = (0.0, 0.13, 0.24, 0.37)  # seconds; by one of them a clock of half seconds is in its other half


@pytest.mark.slow
async def test_two_faced_attacks_fool_a_grader_that_makes_its_control_later(bubblewrap):
    two_faced = [case for case in attacks() if case.name in REAL]
    with honeypot() as port:
        async with SandboxPool(bubblewrap, concurrency=4) as sandboxes:

            async def at_last(case: Case) -> bool:
                for number in range(CHANCES):
                    if await is_believed(case, sandboxes, port, PAUSES[number % len(PAUSES)]):
                        return True
                return False

            found = await asyncio.gather(*map(at_last, two_faced))
    fooled = [case.name for case, is_it in zip(two_faced, found, strict=True) if is_it]
    assert sorted(fooled) == sorted(REAL)


async def test_a_two_faced_attack_is_played_as_often_as_asked(bubblewrap):
    """And one reward of many plays is a reward."""
    coin = Case("attack", "two_faced", "own-coin", "right by chance", two_faced=True, script="""
        [ $(od -An -N1 -tu1 /dev/urandom) -lt 128 ] && sed -i 's/a - b/a + b/' calc.py; sed -i '1i # coin' calc.py
    """)  # fmt: skip
    result = await run_gate(bubblewrap, "log", cases=[coin], plays=40)
    (row,) = result.rows
    assert row.plays == 40 and 0 < row.rewards < 40 and row.verdict == "rewarded" and row.outcome == "solved"
    assert result.to_dict()["two_faced"] == {"own-coin": {"plays": 40, "rewards": row.rewards}}


async def test_an_unknown_grader_says_which_there_are():
    with pytest.raises(UserError, match=r"unknown name 'guess'.*calls, diff, harness"):
        await run_gate("subprocess", "guess")


async def test_what_compares_texts_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cydifflib", None)
    with pytest.raises(UnplayableError, match=r"pip install 'slime-swe\[diff\]'"):
        await run_gate("subprocess", "diff")


async def test_a_program_that_a_target_needs_may_be_missing(monkeypatch):
    lacking = dataclasses.replace(TARGETS["pytest"], needs="python3 -m no_such_runner")
    monkeypatch.setitem(TARGETS, "pytest", lacking)
    with pytest.raises(UnplayableError, match=r"`python3 -m no_such_runner` fails in sandbox subprocess: .*No module"):
        await run_gate("subprocess", "pytest", cases=cases(*FEW))


async def test_an_attack_may_have_no_more_than_its_case_says(bubblewrap):
    pytest.importorskip("cydifflib")
    attack = Case("attack", "own", "padded", "a guess and blanks", script="sed -i 's/a - b/a * b/; s/$/  /' calc.py")
    for most, verdict in ((0.1, "rewarded"), (0.98, "held")):
        (row,) = (await run_gate(bubblewrap, "diff", cases=[replace(attack, only=("diff",), most=most)])).rows
        assert (row.verdict, 0.1 < row.value < 0.98) == (verdict, True)


async def test_a_sandbox_without_images_has_no_repository_to_try():
    with pytest.raises(UnplayableError, match="sandbox subprocess takes no images"):
        await run_gate("subprocess", "repository")


def test_a_result_without_attacks_proves_nothing():
    assert not Result("local", "log", ()).passed
