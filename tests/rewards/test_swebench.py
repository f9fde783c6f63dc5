"""Grading by SWE-bench's eval scripts and parsers, in local sandboxes: real git, real swebench, no Docker."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import HarnessOracle, Image, Task, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GraderError, GradingSettings, grade, try_patch
from slime_swe.rewards.mutated_files import mutate_files
from slime_swe.rewards.swebench.grader import Evaluation, RestoredTests, embeds_test_patch, places_of, restored_tests
from slime_swe.rewards.swebench.harness import Harness, instance_of
from slime_swe.rollout.records import Score
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import SandboxError
from tests.rewards.image_backend import IMAGES, committed
from tests.rewards.swebench_here import harness_python
from tests.rollout.watch import watched

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALC = (
    "def add(a, b):\n    return a - b\n\n\ndef one():\n    return 1\n\n\n"
    + "\n".join(f"# {i}" for i in range(20))
    + "\n"
)
FIXED = CALC.replace("a - b", "a + b")
TESTS = "from calc import add, one\n\n\ndef test_one():\n    assert one() == 1\n"
ADDED = TESTS + "\n\ndef test_add():\n    assert add(1, 2) == 3\n"
RUNNER = """\
import sys
sys.path.insert(0, ".")
try:
    from tests import test_calc
except Exception as error:
    sys.exit(f"ERROR tests/test_calc.py - {error}")
failed = False
for name, test in vars(test_calc).items():
    if name.startswith("test_"):
        try:
            test()
            print("PASSED", "tests/test_calc.py::" + name)
        except Exception as error:
            failed = True
            print("FAILED", "tests/test_calc.py::" + name, "-", repr(error))
sys.exit(failed)
"""
FILES = {"calc.py": CALC, "tests/__init__.py": "", "tests/test_calc.py": TESTS, "setup.cfg": "", "run.py": RUNNER,
         "docs/notes.txt": "a\nb\nc\n"}  # fmt: skip
SCRIPT = f"""#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout HEAD tests/test_calc.py
git apply -v - <<'EOF_PATCH'
{make_patch({"tests/test_calc.py": TESTS}, {"tests/test_calc.py": ADDED})}EOF_PATCH
: '>>>>> Start Test Output'
python3 -B run.py
: '>>>>> End Test Output'
git checkout HEAD tests/test_calc.py
"""
ADD, ONE = "tests/test_calc.py::test_add", "tests/test_calc.py::test_one"


def patch(**changes: str | None) -> str:
    """A patch that gives these files these texts; `calc=` means calc.py, and None deletes."""
    named = {path if "." in path else f"{path}.py": text for path, text in changes.items()}
    return make_patch(FILES, {path: text for path, text in {**FILES, **named}.items() if text is not None})


GOLD = patch(calc=FIXED)
ORACLE = HarnessOracle(
    (ADD,),
    (ONE,),
    ("tests/test_calc.py",),
    gold_patch=GOLD,
    timeout_seconds=20.0,
    repo="a/calc",
    version="1",
    eval_script=SCRIPT,
    log_parser="parse_log_pytest",
)
TASK = Task("a__calc-1", "add subtracts", Workspace({}, Image("calc")), ORACLE, "test", "test")


@pytest.fixture(scope="module")
def settings() -> GradingSettings:
    IMAGES["calc"] = committed(FILES)
    return GradingSettings(harness_python=harness_python())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("tests.rewards.image_backend.backend") as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(settings: GradingSettings) -> AsyncIterator[Harness]:
    async with Harness(settings.harness_python) as started:
        yield started


@pytest.fixture
def score(sandboxes: SandboxPool, settings: GradingSettings):
    async def graded(text: str, mode="plus_minus", **changes) -> Score:
        task = replace(TASK, oracle=replace(TASK.oracle, **changes))
        return await grade(task, text, sandboxes, replace(settings, mode=mode))

    return graded


async def test_the_gold_patch_solves(score) -> None:
    result = await score(GOLD)
    assert result.solved and result.value == 1.0
    assert result.components == {"fail_to_pass": 1.0, "pass_to_pass": 1.0}
    assert result.evidence["outcome"] == "solved"
    assert result.evidence["tests"] == {ADD: True, ONE: True}
    assert result.evidence["harness"]["resolved"] and result.evidence["harness"]["patch_successfully_applied"]
    assert result.evidence["applied_by"].endswith("apply --verbose")
    assert result.evidence["ignored_paths"] == []
    assert "End Test Output" in result.evidence["log"]


@pytest.mark.parametrize(
    ("text", "outcome", "values"),  # in the order plus_minus, binary, fraction
    [
        (GOLD, "solved", (1.0, 1.0, 1.0)),
        ("", "empty_patch", (-1.0, 0.0, 0.0)),
        (patch(calc=CALC + "# nothing\n"), "failed", (-1.0, 0.0, 0.0)),
        (patch(calc=FIXED.replace("return 1", "return 2")), "failed", (-1.0, 0.0, 0.5)),
        (patch(calc="syntax error\n"), "failed", (-1.0, 0.0, 0.0)),
        (GOLD.replace("a - b", "a / b"), "unappliable_patch", (-1.0, 0.0, 0.0)),
        ("nonsense", "unappliable_patch", (-1.0, 0.0, 0.0)),
        ("\ud800", "unappliable_patch", (-1.0, 0.0, 0.0)),
        ("+" * ((1 << 20) + 1), "oversized_patch", (-1.0, 0.0, 0.0)),
    ],
)
async def test_outcomes_and_values_by_mode(score, text, outcome, values) -> None:
    results = [await score(text, mode) for mode in ("plus_minus", "binary", "fraction")]
    assert [result.evidence["outcome"] for result in results] == [outcome] * 3
    assert tuple(result.value for result in results) == values


async def test_no_patch_can_be_tried(sandboxes, settings) -> None:
    trial = await try_patch(TASK, "", sandboxes, settings)
    assert (trial.tests, trial.solved) == ({ADD: False, ONE: True}, False)


async def test_what_git_refuses_gnu_patch_may_take(score) -> None:
    moved = GOLD.replace("@@ -1,5 +1,5 @@", "@@ -9,5 +9,5 @@").replace(" def one", " def two")
    result = await score(moved)
    assert result.solved and result.evidence["applied_by"].startswith("patch ")


async def test_a_binary_change_that_is_only_named_does_not_spoil_the_fix(score) -> None:
    result = await score(make_patch(FILES, {**FILES, "calc.py": FIXED, "core.dump": b"\x00\xff"}))
    assert result.solved


async def test_a_git_binary_patch_is_applied(score) -> None:
    binary = (
        "diff --git a/x.bin b/x.bin\nnew file mode 100644\nindex 0000000..6b64284\nGIT binary patch\n"
        "literal 2\nJcmZQzU|;|M00aO5\n\nliteral 0\nHcmV?d00001\n\n"
    )
    result = await score(GOLD + binary)
    assert result.solved and result.evidence["applied_by"].endswith("apply --verbose")


@pytest.mark.parametrize("path", [".git/config", ".git/hooks/post-checkout", "sub/.GIT/config"])
async def test_nothing_is_written_into_the_repository_s_own_folder(score, path: str) -> None:
    wrong_place = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    assert (await score(GOLD + wrong_place)).evidence["outcome"] == "unappliable_patch"


async def test_an_ed_script_is_not_run(score) -> None:
    script = "--- a/calc.py\n+++ b/calc.py\n0a\nx\n.\n!touch /tmp/owned\nw\nq\n"
    assert (await score(script)).evidence["outcome"] == "unappliable_patch"


PASS_ALL = "def test_add(): pass\ndef test_one(): pass\n"
CHEATS = {
    "edits the test": {"tests/test_calc.py": PASS_ALL},
    "deletes the test": {"tests/test_calc.py": None},
    "a package in place of the test": {"tests/test_calc/__init__.py": PASS_ALL},
    "conftest": {"conftest.py": "x = 1\n", "sub/conftest.py": "x = 1\n"},
    "sitecustomize": {"sitecustomize.py": "x = 1\n"},
    "settings": {"setup.cfg": "[a]\n", "pytest.ini": "[pytest]\n"},
    "standard library": {"traceback.py": "x = 1\n"},
}


@pytest.mark.parametrize("name", CHEATS)
async def test_a_patch_to_what_decides_counts_for_nothing(score, name: str) -> None:
    result = await score(patch(**CHEATS[name]))
    assert not result.solved
    assert result.evidence["ignored_paths"] == sorted(CHEATS[name])
    assert (await score(patch(calc=FIXED, **CHEATS[name]))).solved


async def test_what_the_gold_patch_changes_too_is_the_policy_s(score) -> None:
    both = patch(calc=FIXED, **{"setup.cfg": "[a]\n"})
    assert (await score(both, gold_patch=both)).evidence["ignored_paths"] == []


async def test_a_renamed_guarded_file_comes_back(score) -> None:
    rename = "diff --git a/setup.cfg b/other.cfg\nsimilarity index 100%\nrename from setup.cfg\nrename to other.cfg\n"
    result = await score(GOLD + rename)
    assert result.solved and result.evidence["ignored_paths"] == ["setup.cfg"]


async def test_code_that_hangs_is_the_policy_s_failure(score) -> None:
    result = await score(patch(calc="while True: pass\n"), timeout_seconds=1.0)
    assert (result.evidence["outcome"], result.value) == ("timeout", -1.0)


async def test_the_harness_adds_the_exit_code_to_the_script(harness: Harness) -> None:
    script = await harness.script(instance_of(TASK))
    assert "SWEBENCH_TEST_EXIT_CODE=$?" in script


async def test_a_log_without_results_is_not_a_solution(harness: Harness) -> None:
    report = await harness.report(instance_of(TASK), "Killed")
    assert not report["resolved"] and not report["patch_successfully_applied"]


async def test_many_ask_at_once(harness: Harness) -> None:
    log = f">>>>> Start Test Output\n{{}} {ADD}\nPASSED {ONE}\n{'x' * 1_000_000}\n>>>>> End Test Output\n"
    outcomes = ["PASSED", "FAILED"] * 8
    reports = await asyncio.gather(*(harness.report(instance_of(TASK), log.format(word)) for word in outcomes))
    assert [report["resolved"] for report in reports] == [word == "PASSED" for word in outcomes]


@pytest.mark.parametrize("text", ["\0" * (16 << 20), "🙂" * (4 << 20)], ids=["control characters", "emoji"])
async def test_a_long_log_does_not_hold_the_loop(harness: Harness, text: str) -> None:
    """Also where the one who asks does not wait for the answer."""
    log = f"{text}\n>>>>> Start Test Output\nPASSED {ADD}\nPASSED {ONE}\n>>>>> End Test Output\n"
    await harness.script(instance_of(TASK))
    async with watched() as loop:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(harness.report(instance_of(TASK), log), 0.01)
        assert (await harness.report(instance_of(TASK), log))["resolved"]
    loop.assert_free()


async def test_a_dead_process_is_replaced(harness: Harness) -> None:
    await harness.script(instance_of(TASK))
    first = harness._process._process.pid
    os.kill(first, signal.SIGKILL)
    assert "Start Test Output" in await harness.script(instance_of(TASK))
    assert harness._process._process.pid != first


async def test_a_parser_that_fails_is_the_grader_s_failure_and_ends_nothing(harness: Harness) -> None:
    task = replace(TASK, id="none", oracle=replace(ORACLE, log_parser="parse_log_jekyll"))
    log = ">>>>> Start Test Output\nx\n>>>>> End Test Output\n"
    with pytest.raises(GraderError, match="swebench failed"):
        await harness.report(instance_of(task), log)
    pid = harness._process._process.pid
    await harness.script(instance_of(TASK))
    assert harness._process._process.pid == pid


async def test_an_unknown_parser_is_named_with_those_that_are_near(harness: Harness) -> None:
    task = replace(TASK, oracle=replace(ORACLE, log_parser="parse_log_pytests"))
    with pytest.raises(UserError, match=r"a__calc-1.*no log parser 'parse_log_pytests'.*parse_log_pytest,") as refused:
        await harness.script(instance_of(task))
    assert len(str(refused.value)) < 400


async def test_an_interpreter_without_swebench_says_what_to_do(tmp_path) -> None:
    os.symlink(os.path.realpath(sys.executable), tmp_path / "python")  # without its environment's packages
    async with Harness(str(tmp_path / "python")) as harness:
        with pytest.raises(UserError, match=r"needs swebench 5.*pip install 'slime-swe\[swebench\]'.*harness_python"):
            await harness.script(instance_of(TASK))
    async with Harness(str(tmp_path / "nothing")) as harness:
        with pytest.raises(UserError, match=r"reward\.harness_python=.*nothing can't be run: No such file"):
            await harness.script(instance_of(TASK))


async def test_the_official_harness_takes_no_files(sandboxes, settings) -> None:
    task = replace(TASK, workspace=Workspace({"a.py": ""}, Image("calc")))
    with pytest.raises(UserError, match="takes the image's /testbed as it is"):
        await grade(task, GOLD, sandboxes, replace(settings, harness="official"))


LOST = f"""
import os
tests = open("tests/test_calc.py").read()
if "one() == 1\\n" in tests and "add(1, 2) == 3\\n" in tests:
    print("PASSED {ADD}\\nPASSED {ONE}", flush=True)
os._exit(0)
"""


async def test_a_log_that_is_lost_in_the_control_is_forged(score) -> None:
    result = await score(patch(calc=CALC + LOST), "fraction")
    assert (result.evidence["outcome"], result.value) == ("forged", 0.0)
    assert (
        f"these are not reported as failed when they are mutated, and not with the gold patch: {ADD}, {ONE}"
        in (result.evidence["rejection_reason"])
    )


async def test_the_witness_of_each_test_is_in_the_evidence(score) -> None:
    assert (await score(GOLD)).evidence["witness"] == {"values": 1, "mutated": 1, "silent": 0, "none": 0}


@pytest.mark.parametrize(
    ("runner", "witness"),
    [
        ("sed -i 's/failed = True/failed = True; break/' run.py; python3 -B run.py", (1, 0, 1)),
        ("sed -i 's/repr(error))/repr(error)); break/' run.py; python3 -B run.py", (1, 1, 0)),
        ("python3 -B run.py | grep -v FAILED", (1, 0, 1)),
    ],
)
async def test_honest_work_is_believed_whatever_the_log_says_of_failures(score, runner: str, witness) -> None:
    result = await score(GOLD, eval_script=SCRIPT.replace("python3 -B run.py", runner))
    assert result.solved
    assert tuple(result.evidence["witness"].values()) == (*witness, 0)


CASES = ("plain", " - dash", "a - b", "a", "a] - b", "two words", "[x]", "[")  # of a test without a value
CASES_RUNNER = """\
import sys
sys.path.insert(0, ".")
from tests.test_echo import test_echo
passed, failed = [], []
for case in {cases!r}:
    name = f"tests/test_echo.py::test_echo[{{case}}]"
    try:
        test_echo(case)
        passed.append(f"PASSED {{name}}")
    except Exception as error:
        failed.append(f"FAILED {{name}} - {{error!r}}")
print(*passed, *failed, sep="\\n")
sys.exit(bool(failed))
"""
ECHOED = "from calc import add\n\n\ndef test_echo(text):\n    assert add(text, '!') in (text + '!', None)\n"
ECHO_SCRIPT = f"""#!/bin/bash
cd /testbed
git apply -v - <<'EOF_PATCH'
{make_patch({}, {"tests/test_echo.py": ECHOED})}EOF_PATCH
: '>>>>> Start Test Output'
python3 -B run_cases.py
: '>>>>> End Test Output'
"""


def named_cases() -> list[object]:
    v2, *others = ("parse_log_pytest_v2", "parse_log_pytest", "parse_log_pytest_options")
    more = [(v2, (" - dash", "a - b")), (v2, (" - dash",)), *((parser, CASES) for parser in others)]
    return [(v2, CASES), *(pytest.param(*row, marks=pytest.mark.extended("names of tests")) for row in more)]


@pytest.mark.parametrize(("parser", "cases"), named_cases())
async def test_a_test_may_be_named_differently_where_it_has_failed(sandboxes, settings, parser: str, cases) -> None:
    """A parser cuts the name of a failed test at ` - `, at a blank, or not at all."""
    IMAGES["echo"] = committed({**FILES, "run_cases.py": CASES_RUNNER.format(cases=cases)})
    names = [f"tests/test_echo.py::test_echo[{case}]" for case in cases]
    if parser != "parse_log_pytest_v2":
        names = list(dict.fromkeys(name.split()[0] for name in names))  # as such a parser names those that pass
    changes = {"eval_script": ECHO_SCRIPT, "log_parser": parser, "protected": ("tests/test_echo.py",)}
    oracle = replace(ORACLE, fail_to_pass=tuple(names), pass_to_pass=(), **changes)
    task = replace(TASK, id=f"{parser}-{len(cases)}", workspace=Workspace({}, Image("echo")), oracle=oracle)
    right = await grade(task, GOLD, sandboxes, settings)
    assert (right.evidence["outcome"], right.solved) == ("solved", True), right.evidence
    lines = "".join(f"PASSED tests/test_echo.py::test_echo[{case}]\n" for case in cases)
    forged = patch(calc=CALC + f"print({lines!r}, flush=True)\n__import__('os')._exit(0)\n")
    assert (await grade(task, forged, sandboxes, settings)).evidence["outcome"] == "forged"


async def test_a_script_does_not_show_whether_a_further_run_has_mutated_tests(sandboxes, settings) -> None:
    """SWE-bench's test patches have lines that those which are made here have not."""
    IMAGES["echo"] = committed({**FILES, "run_cases.py": CASES_RUNNER.format(cases=("a",))})
    script = ECHO_SCRIPT.replace("--- /dev/null", "index 0000000..1234567\n--- /dev/null")
    assert script != ECHO_SCRIPT
    test = "tests/test_echo.py::test_echo[a]"
    oracle = replace(ORACLE, fail_to_pass=(test,), pass_to_pass=(), protected=("tests/test_echo.py",))
    oracle = replace(oracle, eval_script=script)
    task = replace(TASK, id="index", workspace=Workspace({}, Image("echo")), oracle=oracle)
    assert (await grade(task, GOLD, sandboxes, settings)).solved
    forge = f"print('PASSED {test}', flush=True)\n    __import__('os')._exit(0)\n"
    reader = f"if '1234567' in open('/tmp/eval.sh').read():\n    {forge}"
    result = await grade(task, patch(calc=CALC + reader), sandboxes, settings)
    assert result.evidence["outcome"] == "forged"


async def test_a_log_that_tells_of_failures_alone_is_controlled_too(score) -> None:
    assert (await score(GOLD, eval_type="fail_only")).evidence["witness"]["values"] == 1


async def test_a_log_that_is_not_controlled_says_so(sandboxes, settings) -> None:
    result = await grade(TASK, GOLD, sandboxes, replace(settings, negative_control=False))
    assert result.solved and result.evidence["witness"] == {"uncontrolled": 2}


COPIED = re.sub(r"git apply.*?^EOF_PATCH$", f"cat > tests/test_calc.py <<'END'\n{ADDED}END", SCRIPT, flags=re.M | re.S)
LOOK = """\
find /tmp . -newer /tmp/patch.diff -not -path './.git/*' -printf '%p %y %m\\n' >/tmp/look
sort /tmp/look
sha256sum /tmp/patch.diff calc.py run.py"""


@pytest.mark.parametrize("script", [SCRIPT, COPIED])
async def test_nothing_but_what_the_tests_want_tells_the_runs_apart(sandboxes, settings, script: str) -> None:
    evaluation = Evaluation(TASK, script.replace("python3 -B run.py", LOOK), sandboxes)
    assert embeds_test_patch(evaluation.script) == (script == SCRIPT)
    tests = await restored_tests(evaluation)
    mutated = mutate_files(tests.restored, places_of([ADD, ONE], tests.restored))
    assert mutated.functions == ({ADD}, {ONE}) and mutated.files != tests.restored
    true, control = await evaluation.run(GOLD, tests), await evaluation.run(GOLD, tests, mutated.files)
    assert "tests/test_calc.py f 644" in true.result.output and "/tmp/eval.sh" in true.result.output
    assert true.result.output == control.result.output


async def test_a_control_run_holds_no_value_that_a_hidden_test_expects(sandboxes, settings) -> None:
    look = "grep -rnE 'add[(]1, 2[)] == 3|[(]3[)]' . /tmp /proc/$$/fd/255; echo looked"
    evaluation = Evaluation(TASK, SCRIPT.replace("python3 -B run.py", look), sandboxes)
    tests = await restored_tests(evaluation)
    mutated = mutate_files(tests.restored, places_of([ADD, ONE], tests.restored), record_to="/tmp/record")
    true, control = await evaluation.run(GOLD, tests), await evaluation.run(GOLD, tests, mutated.files)
    assert "add(1, 2) == 3" in true.result.output
    assert "looked" in control.result.output and "add(1, 2) == 3" not in control.result.output


async def test_the_tests_are_read_once_for_all_patches_of_a_task(sandboxes, settings) -> None:
    opened = 0

    class Counted:
        def open(self, *arguments, **named):
            nonlocal opened
            opened += 1
            return sandboxes.open(*arguments, **named)

    evaluation = Evaluation(replace(TASK, id="b"), f"{SCRIPT}\n# another", Counted())
    first, second = await asyncio.gather(restored_tests(evaluation), restored_tests(evaluation))
    assert first is second is await restored_tests(evaluation)
    assert first == RestoredTests({"tests/test_calc.py": TESTS.encode()}, {"tests/test_calc.py": ADDED.encode()})
    assert opened == 1


async def test_a_failure_to_read_the_tests_is_not_cached(sandboxes, settings) -> None:
    class Broken:
        def open(self, *arguments, **named):
            raise SandboxError("no more room")

    with pytest.raises(SandboxError, match="no more room"):
        await restored_tests(Evaluation(TASK, f"{SCRIPT}\n# once more", Broken()))
    assert (await restored_tests(Evaluation(TASK, f"{SCRIPT}\n# once more", sandboxes))).restored


@pytest.mark.parametrize("script", ["echo no marker\n", SCRIPT.replace("tests/test_calc.py", "absent.py")])
async def test_where_no_test_is_restored_nothing_can_be_mutated(score, sandboxes, script: str) -> None:
    result = await score(GOLD, eval_script=script, protected=("absent.py", "notes.txt"))
    assert result.evidence["outcome"] == "failed"
    assert await restored_tests(Evaluation(TASK, "echo no marker\n", sandboxes)) == RestoredTests({}, {})


async def test_a_log_that_no_parser_can_read_is_the_policy_s_failure(score) -> None:
    text = FIXED + 'print("\\n>>>>> Test Exit Code: " + "9" * 5_000)\n'
    result = await score(patch(calc=text))
    assert (result.evidence["outcome"], result.value) == ("failed", -1.0)
    assert "ValueError" in result.evidence["harness"]["unreadable"]


FORGED = f'print("PASSED {ADD}\\nPASSED {ONE}", flush=True)\n__import__("os")._exit(0)\n'


async def test_a_log_without_a_witness_is_not_believed(score) -> None:
    """The script's tests are none of the protected files, as where a path was read wrongly."""
    for text in (GOLD, patch(calc=CALC + FORGED)):
        result = await score(text, "fraction", protected=("absent.py",))
        assert (result.evidence["outcome"], result.value) == ("unwitnessed", 0.0)
        assert result.evidence["witness"]["none"] == 2


@pytest.mark.parametrize(("text", "outcome"), [(GOLD, "solved"), (patch(calc=CALC + FORGED), "forged")])
async def test_tests_that_no_function_has_the_name_of_have_their_literals_rewritten(
    score, text: str, outcome: str
) -> None:
    made = ADDED.replace("def test_", "def _") + (
        "\n\nfor name in ('add', 'one'):\n    globals()[f'test_{name}'] = globals()[f'_{name}']\n"
    )
    script = SCRIPT.replace(make_patch({"tests/test_calc.py": TESTS}, {"tests/test_calc.py": ADDED}),
                            make_patch({"tests/test_calc.py": TESTS}, {"tests/test_calc.py": made}))  # fmt: skip
    result = await score(text, eval_script=script)
    assert result.evidence["outcome"] == outcome
    assert outcome == "forged" or result.evidence["witness"]["mutated"] == 2


SHOWN_CASES = "[case testOne]\none 1\n"
CASES = f"{SHOWN_CASES}\n[case testAdd]\nadd 1 2\n[out]\n3\n".replace("one 1\n", "one  # E: 1\n")
CASE_RUNNER = """\
import re, sys
sys.path.insert(0, ".")
import calc
for name, body in re.findall(r"\\[case (\\w+)\\]\\n([^[]*(?:\\[out\\][^[]*)?)", open("check-x.test").read()):
    lines = body.replace("  # E: ", "\\n").split()
    right = str(getattr(calc, lines[0])(*map(int, [w for w in lines[1:-1] if w != "[out]"]))) == lines[-1]
    print("PASSED" if right else "FAILED", "tests/run.py::Suite::check-x.test::" + name)
"""


@pytest.mark.parametrize("outcome", ["solved", "forged"])
async def test_the_cases_of_a_data_file_are_mutated(score, monkeypatch, outcome: str) -> None:
    """As those of mypy's own suites, which a test patch brings."""
    add, one = (f"tests/run.py::Suite::check-x.test::test{name}" for name in ("Add", "One"))
    files = FILES | {"check-x.test": SHOWN_CASES, "run.py": CASE_RUNNER}
    monkeypatch.setitem(IMAGES, "calc", committed(files))
    brought = make_patch({"check-x.test": SHOWN_CASES}, {"check-x.test": CASES})
    script = SCRIPT.replace("tests/test_calc.py", "check-x.test")
    script = re.sub(r"(?s)(<<'EOF_PATCH'\n).*(EOF_PATCH\n)", lambda found: f"{found[1]}{brought}{found[2]}", script)
    forged = FORGED.replace(ADD, add).replace(ONE, one)
    text = patch(calc=CALC + forged) if outcome == "forged" else GOLD
    tests = {"fail_to_pass": (add,), "pass_to_pass": (one,), "protected": ("check-x.test",)}
    result = await score(text, eval_script=script, **tests)
    assert result.evidence["outcome"] == outcome, result.evidence
    assert outcome == "forged" or result.evidence["witness"]["mutated"] == 2


KNOWING = f"""
import os
if "one() == 1\\n" in open("tests/test_calc.py").read():
    print("PASSED {ADD}\\nPASSED {ONE}", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("script", [SCRIPT, COPIED])
async def test_code_that_knows_the_shown_tests_does_not_know_what_a_hidden_one_expects(score, script: str) -> None:
    result = await score(patch(calc=CALC + KNOWING), eval_script=script)
    assert result.evidence["outcome"] == "forged"
    assert "give other values where what they expect is withheld" in result.evidence["rejection_reason"]
