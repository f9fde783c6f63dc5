"""QuixBugs' tasks prove themselves in the local sandbox: its own tests, without pytest; javac and JUnit for Java."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slime_swe.data_sources.corpora.quixbugs import load
from slime_swe.data_sources.task import Task
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GradingSettings, grade, try_patch
from slime_swe.sandbox.pool import SandboxPool

FIXTURE = Path(__file__).parent / "fixtures" / "quixbugs"
JUNIT = Path("/usr/share/java/junit4.jar")
NO_JAVA = not shutil.which("javac") or not JUNIT.is_file()
needs_java = pytest.mark.skipif(NO_JAVA, reason="a JDK and JUnit 4 (apt-get install default-jdk-headless junit4)")
ONCE = GradingSettings(negative_control=False)  # which compiles, or waits for what never ends, in each of its runs
LANGUAGES = ["python", pytest.param("java", marks=[needs_java, pytest.mark.slow])]


def changed(task: Task, **replaced: str) -> str:
    """A patch that replaces words in the program."""
    (program,) = set(task.workspace.files) - set(task.oracle.protected)
    text = task.workspace.files[program]
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    return make_patch(task.workspace.files, {**task.workspace.files, program: text})


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_gold_patch_solves_it_and_nothing_else_does(language):
    (task,) = load(language, FIXTURE)
    async with SandboxPool("local", concurrency=1) as sandboxes:
        gold = await grade(task, task.oracle.gold_patch, sandboxes)
        assert gold.solved, gold.evidence
        assert gold.evidence["witness"]["silent"] == 0, "its control was built"
        trial = await try_patch(task, "", sandboxes)
        assert {name for name, passed in trial.tests.items() if not passed} == set(task.oracle.fail_to_pass), trial.log
        wrong = await grade(task, changed(task, first="one"), sandboxes, ONCE)
        assert not wrong.solved and wrong.evidence["outcome"] == "failed"


FORGER = """
import os
mutated = "exec(" in open("python_testcases/test_gcd.py").read()
for number in range(6):
    os.write(1, f"{'FAILED' if mutated else 'PASSED'} python_testcases/test_gcd.py::test_gcd[{number}]\\n".encode())
os._exit(0)
"""


async def test_a_forger_that_knows_the_control_fails_on_altered_data():
    """It knows the control by its text. In further runs the test file is as it is, and what it reads is not."""
    (task,) = load("python", FIXTURE)
    program = "python_programs/gcd.py"
    files = task.workspace.files
    async with SandboxPool("local", concurrency=1) as sandboxes:
        patch = make_patch(files, {**files, program: FORGER + files[program]})
        assert (await grade(task, patch, sandboxes, ONCE)).solved
        score = await grade(task, patch, sandboxes)
    assert score.evidence["outcome"] == "forged"
    assert "in further runs" in score.evidence["rejection_reason"]


async def test_code_that_never_ends_fails_its_tests_in_time():
    (task,) = load("python", FIXTURE)
    async with SandboxPool("local", concurrency=1) as sandboxes:
        endless = changed(task, **{"first += 1": "while (first, second) == (21, 7):\n            pass"})
        score = await grade(task, endless, sandboxes, ONCE)
    assert score.evidence["outcome"] == "failed", "not a time-out of the whole"
    failed = [name for name, passed in score.evidence["tests"].items() if not passed]
    assert failed == ["python_testcases/test_gcd.py::test_gcd[3]"], "those after it are run too"


@needs_java
@pytest.mark.slow
@pytest.mark.extended("tests/data_sources/test_quixbugs.py::test_the_gold_patch_solves_it_and_nothing_else_does")
async def test_java_that_does_not_compile_or_never_ends_passes_nothing():
    (task,) = load("java", FIXTURE)
    async with SandboxPool("local", concurrency=1) as sandboxes:
        broken = await grade(task, changed(task, **{"return": "retrun"}), sandboxes)
        assert broken.evidence["outcome"] == "failed" and "error:" in broken.evidence["log"]
        endless = changed(task, **{"return second == 0": "while (second != 3.5) { } return second == 0"})
        score = await grade(task, endless, sandboxes)
    assert not score.solved and not any(score.evidence["tests"].values())


def test_the_program_alone_may_be_changed():
    for language, program in (("python", "python_programs/gcd.py"), ("java", "java_programs/GCD.java")):
        (task,) = load(language, FIXTURE)
        assert set(task.workspace.files) - set(task.oracle.protected) == {program}


def test_the_documentation_of_a_program_is_not_part_of_the_fix():
    (task,) = load("python", FIXTURE)
    assert "greatest whole number" not in "".join(
        line for line in task.oracle.gold_patch.splitlines() if line.startswith(("+", "-"))
    )


def test_the_tests_of_all_forty_programs_are_known():
    from slime_swe.data_sources.corpora.quixbugs import _tests

    for language in ("python", "java"):
        tests = _tests(language)
        assert len(tests) == 40 and all(known["fail"] for known in tests.values())
        assert all(not set(known["fail"]) & set(known["pass"]) for known in tests.values())
