"""Patches that put something in the way of files that the grader restores, or reach files by links: in a repository
without `tests/__init__.py`. None of it is a failure of the grader."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import HarnessOracle, Image, Task, TestsOracle, Workspace
from slime_swe.patches import PatchError
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.room import image_limits
from slime_swe.rewards.swebench.harness import Applied, apply_in
from slime_swe.rewards.test_log import patch_image
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import Sandbox
from tests.rewards.image_backend import committed, sandboxes_with
from tests.sandbox.test_many_files import Counted

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "run.py": "import sys\nsys.path.insert(0, '.')\nimport tests.test_calc as t\nt.test_add()\n"
    "print('PASSED tests/test_calc.py::test_add')\n",
    "tests/test_calc.py": TEST,
    "tests/deep/er/test_more.py": "",
    "lib/conftest.py": "x = 1\n",
    "conftest.py": "",
    "docs/guide/intro.txt": "a\n",
}
PROTECTED = ("run.py", "tests/test_calc.py", "tests/deep/er/test_more.py")
GOLD = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
ORACLE = TestsOracle(("tests/test_calc.py::test_add",), (), PROTECTED, "python3 -B run.py", GOLD)


def _delete(folder: Path, name: str) -> None:
    subprocess.run(["rm", "-rf", "--", name], cwd=folder, check=True)


def _file(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        _delete(folder, name)
        (folder / name).write_text("in the way\n")

    return change


def _link(name: str, target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        _delete(folder, name)
        (folder / name).symlink_to(target)

    return change


def _folder(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        _delete(folder, name)
        (folder / name).mkdir(parents=True)
        (folder / name / "x").write_text("in the way\n")

    return change


def _both(first: Callable[[Path], None], second: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        first(folder)
        second(folder)

    return change


# What a patch does to the repository, and the files that it may then change in spite of the grader.
OBSTRUCTIONS: dict[str, Callable[[Path], None]] = {
    "a file where the folder of the tests is": _file("tests"),
    "a link where it is": _link("tests", "docs"),
    "a link to nothing": _link("tests", "absent"),
    "a link out of the repository": _link("tests", "/tmp"),
    "a link to itself": _link("tests", "tests"),
    "a file in the middle": _file("tests/deep"),
    "a link in the middle": _link("tests/deep", "../docs"),
    "a link upwards": _link("tests/deep/er", "../../lib"),
    "a folder where a test is": _folder("tests/test_calc.py"),
    "a link where a test is": _link("tests/test_calc.py", "../docs/guide/intro.txt"),
    "a link to a test of the same text": _both(_file("docs/copy"), _link("run.py", "docs/copy")),
    "a file where a guarded file's folder is": _file("lib"),
    "a link where a guarded file's folder is": _link("lib", "docs"),
    "a folder where a guarded file is": _folder("conftest.py"),
    "another case": _both(_file("Tests"), _file("TESTS")),
    "no tests at all": lambda folder: _delete(folder, "tests"),
}


def patch_of(change: Callable[[Path], None], folder: Path) -> str:
    """Git's own patch of a change, with the right solution."""
    folder.mkdir()
    for name, content in committed(FILES).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=folder, check=True)
    change(folder)
    subprocess.run(["git", "apply", "-"], cwd=folder, input=GOLD.encode(), check=True)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    diff = ["git", "diff", "--cached", "--no-renames", "HEAD"]
    return subprocess.run(diff, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with sandboxes_with("obstructed", FILES) as pool:
        yield pool


@asynccontextmanager
async def opened(sandboxes: SandboxPool, setup: str = "true") -> AsyncIterator[Sandbox]:
    async with sandboxes.open({}, image_limits(60), Image("obstructed")) as sandbox:
        assert (await sandbox.exec(f"git checkout -q -- . && {setup}")).exit_code == 0
        yield sandbox


async def _apply(sandbox: Sandbox, patch: str) -> Applied:
    oracle = HarnessOracle(("t",), (), PROTECTED, eval_script="x", log_parser="x", gold_patch=GOLD)
    return await apply_in(sandbox, oracle, patch)


async def _state(sandbox: Sandbox, path: str) -> bytes:
    """The content of a plain file that is behind no link."""
    shown = await sandbox.exec(f'[ "$(realpath -- {path})" = "$PWD/{path}" ] || echo no')
    assert not shown.output, f"{path} is a link, or behind one"
    return await sandbox.read_file(path)


@pytest.mark.parametrize("name", OBSTRUCTIONS)
async def test_what_is_in_the_way_is_undone_for_the_harness(sandboxes: SandboxPool, name: str, tmp_path: Path):
    patch = patch_of(OBSTRUCTIONS[name], tmp_path / "repository")
    async with opened(sandboxes) as sandbox:
        applied = await _apply(sandbox, patch)
        for path in (*PROTECTED, "lib/conftest.py", "conftest.py"):
            assert await _state(sandbox, path) == FILES[path].encode(), path
        assert b"a + b" in await sandbox.read_file("calc.py")
        assert (await sandbox.read_file("docs/guide/intro.txt")) == b"a\n"
        untouched = await sandbox.exec("git status --porcelain --no-renames -- tests run.py lib conftest.py")
        assert not untouched.output
    assert applied.ignored or name == "another case"


@pytest.mark.parametrize("name", OBSTRUCTIONS)
@pytest.mark.parametrize("in_image", [True, False], ids=["image", "files"])
async def test_a_grading_by_a_log_is_never_broken(sandboxes: SandboxPool, name: str, in_image: bool, tmp_path: Path):
    """Links are refused, the rest is undone: the solution counts."""
    patch = patch_of(OBSTRUCTIONS[name], tmp_path / "repository")
    where = Workspace({}, Image("obstructed")) if in_image else Workspace(FILES)
    task = Task("obstructed", "add subtracts", where, ORACLE)
    score = await grade(task, patch, sandboxes, GradingSettings(negative_control=False))
    expected = "unappliable_patch" if "120000" in patch else "solved"
    assert score.evidence["outcome"] == expected, score.evidence


@pytest.mark.parametrize(
    ("setup", "patch"),
    [
        (
            "ln -s tests alias",
            "--- a/alias/test_calc.py\n+++ b/alias/test_calc.py\n@@ -5 +5 @@\n-    assert add(1, 2) == 3\n+\n",
        ),
        ("ln -s ../run.py docs/other.py", "--- /dev/null\n+++ b/docs/other.py\n@@ -0,0 +1 @@\n+print('PASSED')\n"),
        ("ln -s tests alias", "--- /dev/null\n+++ b/alias/test_new.py\n@@ -0,0 +1 @@\n+x\n"),
        ("ln -s /tmp outside", "--- /dev/null\n+++ b/outside/x\n@@ -0,0 +1 @@\n+x\n"),
    ],
)
async def test_a_link_of_the_repository_leads_to_no_test(sandboxes: SandboxPool, setup: str, patch: str):
    """Where a name behind a link was read or written, the file that it leads to was another, which no guard saw."""
    commit = "git add -A && git -c user.name=a -c user.email=a@b commit -qm links"
    async with opened(sandboxes, f"{setup} && {commit}") as sandbox:
        task = Task("t", "s", Workspace({}, Image("obstructed")), ORACLE)
        with pytest.raises(PatchError):
            await patch_image(sandbox, task, patch)
        with pytest.raises(PatchError):
            await _apply(sandbox, patch)
        changed = await sandbox.exec("git status --porcelain; ls /tmp/x")
        assert "M " not in changed.output and "?? " not in changed.output.replace("?? .", ""), changed.output


async def test_thousands_of_guarded_files_are_removed_at_once(sandboxes: SandboxPool):
    patch = "".join(f"--- /dev/null\n+++ b/f{n}/conftest.py\n@@ -0,0 +1 @@\n+x\n" for n in range(4_000)) + GOLD
    async with opened(sandboxes) as sandbox:
        applied = await _apply(sandbox, patch)
        assert len(applied.ignored) == 4_000
        assert (await sandbox.exec("ls -d f*/conftest.py")).exit_code != 0


async def test_thousands_of_files_are_patched_in_a_few_messages(sandboxes: SandboxPool):
    """New ones and some that are there, as the same patch would leave them one by one."""
    new = "".join(f"--- /dev/null\n+++ b/n{n % 50}/f{n}\n@@ -0,0 +1 @@\n+{n}\n" for n in range(4_000))
    old = "".join(f"--- a/o/f{n}\n+++ b/o/f{n}\n@@ -1 +1,2 @@\n {n}\n+x\n" for n in range(1_000))
    setup = "mkdir o && for n in $(seq 0 999); do echo $n >o/f$n; done; chmod 755 o/f7"
    task = Task("t", "s", Workspace({}, Image("obstructed")), ORACLE)
    async with opened(sandboxes, setup) as sandbox:
        counted = Counted(sandbox)
        assert await patch_image(counted, task, new + old + GOLD) == []
        assert counted.calls.total() <= 10
        found = await sandbox.exec(
            "find n* -type f | xargs cat | sort -n | md5sum; find o -size 0; seq 0 3999 | md5sum"
        )
        assert len(set(found.output.splitlines())) == 1
        found = await sandbox.exec("cat o/f7; find o -type f | xargs cat | grep -c x; stat -c %a o/f7 o/f8 n1/f1")
        assert found.output == "7\nx\n1000\n755\n644\n644\n"
        assert b"a + b" in await sandbox.read_file("calc.py")


@pytest.mark.parametrize("path", ["x" * 300, "/".join(["y" * 200] * 30)])
@pytest.mark.parametrize("where", [Workspace({}, Image("obstructed")), Workspace(FILES)], ids=["image", "files"])
async def test_a_name_that_no_system_opens_is_the_policy_s_failure(sandboxes: SandboxPool, where: Workspace, path: str):
    patch = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    score = await grade(Task("t", "s", where, ORACLE), patch, sandboxes, GradingSettings(negative_control=False))
    assert score.evidence["outcome"] == "unappliable_patch"
