"""What real `git apply` and real GNU patch make of odd patches, and that the guard sees every file that they change."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from slime_swe.patches import header_paths
from slime_swe.rewards.swebench.harness import _BY_PATCH, _commands

pytestmark = pytest.mark.skipif(shutil.which("patch") is None, reason="GNU patch is not installed here")

HUNK = "@@ -1 +1 @@\n-a\n+b\n"
FILES = ("conftest.py", "sub dir/conftest.py", "tests/test_a.py")
TOOLS = {"git": ["git", "apply"], "patch": ["patch", "--batch", "--forward", "--fuzz=5", "-p1", "-i"]}


def headed(old: str, new: str, indent: str = "") -> str:
    return "".join(f"{indent}{line}\n" for line in (old, new, *HUNK.splitlines()))


# name → the patch, and the tools that take it
ODD = {
    "plain": (headed("--- a/conftest.py", "+++ b/conftest.py"), {"git", "patch"}),
    "indented by blanks": (headed("--- a/conftest.py", "+++ b/conftest.py", "    "), {"patch"}),
    "indented by a tab": (headed("--- a/conftest.py", "+++ b/conftest.py", "\t"), {"patch"}),
    "indented by letters": (headed("--- a/conftest.py", "+++ b/conftest.py", "X"), {"patch"}),
    "with a date": (
        headed("--- a/conftest.py 2024-01-01 10:00:00 +0000", "+++ b/conftest.py 2024-01-02 10:00:00 +0000"),
        {"git", "patch"},
    ),
    "with a date after a tab": (
        headed("--- a/conftest.py\t2024-01-01 10:00:00 +0000", "+++ b/conftest.py\t2024-01-02 10:00:00 +0000"),
        {"git", "patch"},
    ),
    "with words": (headed("--- a/conftest.py in words", "+++ b/conftest.py in words"), {"patch"}),
    "with two slashes": (headed("--- a//conftest.py", "+++ b//conftest.py"), {"patch"}),
    "with blanks before the name": (headed("--- \ta/conftest.py", "+++ \ta/conftest.py"), {"patch"}),
    "with blanks in the name": (headed("--- a/sub dir/conftest.py\t", "+++ b/sub dir/conftest.py\t"), {"git", "patch"}),
    "quoted": (headed('--- "a/conf\\164est.py"', '+++ "b/conf\\164est.py"'), {"git", "patch"}),
    "named by an index line": (f"Index: a/conftest.py\n{HUNK}", {"patch"}),
    "named by an index line without a blank": (f"Index:a/conftest.py\n{HUNK}", {"patch"}),
    "of two names": (headed("--- a/nothing.py", "+++ b/conftest.py"), {"git", "patch"}),
    "in the old form": (
        "*** a/conftest.py\n--- b/conftest.py\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n",
        {"patch"},
    ),
    "renames": (
        "diff --git a/tests/test_a.py b/moved.py\nsimilarity index 100%\nrename from tests/test_a.py\n"
        "rename to moved.py\n",
        {"git", "patch"},
    ),
}


def changed(tool: str, patch: str, folder: Path) -> set[str]:
    """The paths of a repository that differ once a tool was given the patch."""
    folder.mkdir()
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("a\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    (folder.parent / "odd.diff").write_text(patch)
    subprocess.run([*TOOLS[tool], folder.parent / "odd.diff"], cwd=folder, capture_output=True, check=False, timeout=30)
    status = ["git", "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames"]
    said = subprocess.run(status, cwd=folder, capture_output=True, text=True, check=True).stdout
    return {entry[3:] for entry in said.split("\0") if entry}


@pytest.mark.parametrize("name", ODD)
def test_the_guard_sees_what_is_changed(name: str, tmp_path: Path) -> None:
    patch, takers = ODD[name]
    found = {tool: changed(tool, patch, tmp_path / tool) for tool in TOOLS}
    assert {tool for tool, paths in found.items() if paths & set(FILES)} == takers
    assert set().union(*found.values()) <= header_paths(patch)


SCRIPT = "1d\n.\n!touch owned\nw\nq\n"
COMMANDS = {
    "a script": f"--- a/conftest.py\n+++ b/conftest.py\n{SCRIPT}",
    "an indented script": "".join(f"  {line}\n" for line in f"Index: a/conftest.py\n{SCRIPT}".splitlines()),
    "a script, blanks behind its commands": "--- a/conftest.py\n+++ b/conftest.py\n" + SCRIPT.replace("1d", "1d \t"),
    "a lettered script": "".join(f"X{line}\n" for line in f"Index: a/conftest.py\n{SCRIPT}".splitlines()),
    "a link": "diff --git a/link b/link\nnew file mode 120000\n--- /dev/null\n+++ b/link\n@@ -0,0 +1 @@\n+/etc\n",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_gnu_patch_would_do_beyond_a_diff_is_not_given_to_it(name: str) -> None:
    patch = COMMANDS[name]
    assert _BY_PATCH not in _commands(patch, header_paths(patch))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.endswith("script")])
def test_gnu_patch_takes_such_a_script(name: str, tmp_path: Path) -> None:
    """So it is right not to be given one, even where this version's ed runs no commands of the shell."""
    assert changed("patch", COMMANDS[name], tmp_path / "repository")


@pytest.mark.parametrize("path", ["conftest.py", ".gitignore"])
@pytest.mark.parametrize("prose", ["", "3d plots are broken\n2,4 changed\n1d\tis one\n"])
def test_a_diff_is_given_to_gnu_patch_too(path: str, prose: str) -> None:
    patch = prose + headed(f"--- a/{path}", f"+++ b/{path}")
    assert _commands(patch, header_paths(patch))[-1] == _BY_PATCH
