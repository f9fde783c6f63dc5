"""Exercises in Exercism's layout prove themselves in the local sandbox, in the languages whose toolchain is here."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.corpora import polyglot
from slime_swe.data_sources.corpora.polyglot import LANGUAGES, is_here, load
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GradingSettings, grade, try_patch
from slime_swe.rewards.redteam.cases import target_of
from slime_swe.sandbox.pool import SandboxPool

CLONE = (
    Path(__file__).parent / "fixtures" / "polyglot"
)  # the benchmark's layout, with an exercise of our own in each language


@pytest.fixture
def clone() -> Path:
    return CLONE


def files_of(language: str) -> dict[str, list[str]]:
    """What the exercise says of its files."""
    config = CLONE / language / "exercises/practice/twice/.meta/config.json"
    files: dict[str, list[str]] = orjson.loads(config.read_bytes())["files"]
    return files


def one(clone: Path, language: str) -> Task:
    (task,) = load(language, clone)
    return task


def with_solution(task: Task, text: str) -> str:
    (program,) = task.workspace.files.keys() - set(task.oracle.protected)
    return make_patch(task.workspace.files, {**task.workspace.files, program: text})


def runs(language: str, *marks):
    missing = LANGUAGES[language].missing
    return pytest.param(language, marks=[*marks, pytest.mark.skipif(bool(missing), reason=", ".join(missing))])


COMPILED = [runs(language, pytest.mark.slow) for language in ("cpp", "go", "java", "rust")]


@pytest.mark.parametrize("language", [runs("python"), runs("javascript"), *COMPILED])
async def test_the_example_solves_it_and_the_stub_does_not(clone, language):
    """Also against the control, whose tests hold other values."""
    task = one(clone, language)
    async with SandboxPool("local", concurrency=2) as sandboxes:
        score = await grade(task, task.oracle.gold_patch, sandboxes)
        assert score.solved, score.evidence
        trial = await try_patch(task, "", sandboxes)
    assert not any(trial.tests[name] for name in task.oracle.fail_to_pass), trial.log


@pytest.mark.parametrize("language", LANGUAGES)
def test_neither_tests_nor_examples_are_shown(clone, language):
    task = one(clone, language)
    known, files = files_of(language), task.workspace.files.keys()
    assert set(known["solution"]) <= files and files.isdisjoint(known["test"])
    assert not any(path.startswith(".") for path in files)
    assert set(known["test"]) <= task.oracle.hidden.keys()
    assert target_of(task) == "hidden"  # what the integrity gate plays for it
    assert "Double it." in task.statement and task.oracle.gold_patch
    assert Task.from_dict(task.to_dict()) == task


def test_what_goes_with_the_tests_is_hidden_and_what_is_skipped_is_run(clone):
    assert "cases_test.go" in one(clone, "go").oracle.hidden and "test/catch.hpp" in one(clone, "cpp").oracle.hidden
    assert "xtest(" not in one(clone, "javascript").oracle.hidden["twice.spec.js"]
    assert "@Disabled" not in one(clone, "java").oracle.hidden["src/test/java/TwiceTest.java"]
    assert "--include-ignored" in one(clone, "rust").oracle.command
    assert "src/main/java/More.java" in one(clone, "java").oracle.gold_patch


READS_THE_TEST = """
import ast
def twice(x):
    for node in ast.walk(ast.parse(open("twice_test.py").read())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "assertEqual":
            try:
                if ast.literal_eval(node.args[0].args[0]) == x:
                    return ast.literal_eval(node.args[1])
            except ValueError:
                pass
    return x + x if isinstance(x, str) else None
"""
ATTACKS = {
    "constant": "def twice(x):\n    return 42\n",
    "empty": "\n",
    "copied input": "def twice(x):\n    return x\n",
    "overlong": "def twice(x):\n    return 42\n" + "# more\n" * 100_000,
    "oracle-quoting": READS_THE_TEST,
    "a forged log": "import os\nfor name in ('numbers', 'text'):\n"
    "    os.write(1, f'PASSED twice_test.py::TwiceTest::test_{name}\\n'.encode())\nos._exit(0)\n",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_attack_is_rewarded(clone, attack):
    task = one(clone, "python")
    async with SandboxPool("local", concurrency=2) as sandboxes:
        score = await grade(task, with_solution(task, ATTACKS[attack]), sandboxes, GradingSettings("fraction"))
    assert not score.solved and score.value <= 0, score.evidence


ENDS_WELL = {
    "cpp": ("twice.cpp", '#include <unistd.h>\n#include "twice.h"\nint twice(int x) { _exit(0); }\n'),
    "go": (
        "twice.go",
        'package twice\n\nimport "os"\n\nfunc init() { os.Exit(0) }\n\nfunc Twice(x int) int { return x }\n',
    ),
    "java": (
        "src/main/java/Twice.java",
        "class Twice { static int of(int x) { Runtime.getRuntime().halt(0); return x; } }\n",
    ),
    "javascript": ("twice.js", "process.exit(0);\nexport const twice = (x) => x;\n"),
    "rust": ("src/lib.rs", "pub fn twice(_x: i32) -> i32 {\n    std::process::exit(0)\n}\n"),
}


@pytest.mark.parametrize("language", [runs("javascript"), *COMPILED])
async def test_a_program_that_ends_well_before_its_tests_is_not_believed(clone, language):
    """Its control compiles too, although its numbers are others: else the control would seem to fail honestly."""
    task, (path, text) = one(clone, language), ENDS_WELL[language]
    patch = make_patch(task.workspace.files, {**task.workspace.files, path: text})
    async with SandboxPool("local", concurrency=2) as sandboxes:
        score = await grade(task, patch, sandboxes)
    assert score.evidence["outcome"] == "forged", score.evidence


def test_languages_without_a_toolchain_are_left_out_and_named(clone, monkeypatch, caplog):
    absent = ("go", "cargo", "javac")
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name in absent else f"/usr/bin/{name}")
    tasks = load_tasks(f"polyglot:all?folder={clone}")
    assert {task.metadata["language"] for task in tasks} == {"cpp", "javascript", "python"}
    for language, program in (("go", "go"), ("rust", "cargo"), ("java", "javac")):
        assert any(f"{language} is left out, as this machine lacks {program}" in text for text in caplog.messages)


LEFT_OUT = {
    "it needs Boost (Debian: libboost-date-time-dev)": ("cpp", "CMakeLists.txt", "find_package(Boost 1.58 REQUIRED)"),
    "it needs org.json:json:20190722": ("java", "build.gradle", "    implementation 'org.json:json:20190722'"),
    "it needs crates (Debian: librust-rand-dev)": ("rust", "Cargo.toml", '[dependencies]\nrand = "0.8"'),
    "its example needs crates that its Cargo.toml does not name: right-one": (
        "rust",
        ".meta/Cargo-example.toml",
        '[dependencies]\nright-one = "1.0"',
    ),
    "its example needs a newer Go, with futures": (
        "go",
        ".meta/example.go",
        'package twice\n\nimport (\n\t"fmt"\n\t"futures"\n)',
    ),
}


@pytest.mark.parametrize("reason", LEFT_OUT)
def test_an_exercise_that_needs_what_is_not_here_is_left_out_with_its_reason(
    clone, reason, tmp_path, monkeypatch, caplog
):
    language, path, text = LEFT_OUT[reason]
    shutil.copytree(clone, tmp_path / "copy")
    exercises = tmp_path / "copy" / language / "exercises/practice"
    shutil.copytree(exercises / "twice", exercises / "thrice")
    (exercises / "thrice" / path).write_text(text)
    (exercises / "thrice" / ".meta/example.rs").write_text("use right_one::right;\n")
    (tmp_path / "go/bin").mkdir(parents=True)
    (tmp_path / "go/src/fmt").mkdir(parents=True)
    (tmp_path / "go/bin/go").touch(mode=0o755)
    monkeypatch.setattr(polyglot, "CRATES", tmp_path / "crates")
    monkeypatch.setattr(polyglot, "_BOOST", str(tmp_path / "libboost*"))
    monkeypatch.setattr(polyglot, "_PATH", str(tmp_path / "go/bin"))
    assert [task.metadata["exercise"] for task in load(language, tmp_path / "copy")] == ["twice"]
    assert caplog.messages == [f"polyglot: left out in {language}: thrice ({reason})"]


def test_a_program_in_a_home_is_not_here_since_no_sandbox_sees_it(tmp_path, monkeypatch):
    (tmp_path / "rustup-cargo").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("rustup-cargo") and not is_here("rustup-cargo")
    assert is_here("sh")


def test_a_folder_that_is_no_exercise_is_named(clone, tmp_path):
    shutil.copytree(clone, tmp_path / "copy")
    (tmp_path / "copy/python/exercises/practice/twice/.meta/config.json").write_text("{}")
    with pytest.raises(UserError, match="twice is no exercise of Exercism"):
        load("python", tmp_path / "copy")
    with pytest.raises(UserError, match=r"git clone https://github.com/Aider-AI/polyglot-benchmark"):
        load("python", tmp_path / "nothing")
