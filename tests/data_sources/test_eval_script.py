"""The eval script for corpora without one, run by bash on a real repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slime_swe.data_sources.corpora.swegym import FOLDER, files_to_test, with_test_patch

OLD, NEW = "def test_old():\n    pass\n", "def test_new():\n    assert True\n"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path) -> tuple[Path, str, str]:
    """A repository, its commit, and a patch that changes one test file and adds another in a folder of its own."""
    folder = tmp_path / "repository"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_a.py").write_text(OLD)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    (folder / "tests" / "test_a.py").write_text(OLD + "\n\n" + NEW)
    (folder / "tests" / "more stuff").mkdir()
    (folder / "tests" / "more stuff" / "test_b.py").write_text("it's `new` $HOME\n")
    git(folder, "add", "-A")
    patch = git(folder, "diff", "--cached") + "\n"
    git(folder, "reset", "-q", "--hard")
    return folder, git(folder, "rev-parse", "HEAD"), patch


def run(folder: Path, commit: str, patch: str) -> str:
    """What stands between the markers, where the tests would run."""
    command = 'cat tests/test_a.py "tests/more stuff/test_b.py"'
    script = with_test_patch(commit, patch, command, ["export BEFORE=1"]).replace(FOLDER, str(folder))
    variables = {"HOME": str(folder.parent), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, env=variables, cwd=folder, check=False
    )
    assert "+ export BEFORE=1" in done.stderr
    assert done.stderr.index(": '>>>>> Start Test Output'") < done.stderr.index(": '>>>>> End Test Output'")
    return done.stdout


@pytest.mark.parametrize(
    "meddling", ["", "rm -rf tests", "echo x > tests/test_a.py; mkdir -p tests/more\\ stuff/test_b.py"]
)
def test_the_tests_are_those_of_the_patch_whatever_was_done_to_them(repository, meddling):
    folder, commit, patch = repository
    subprocess.run(["bash", "-c", meddling], cwd=folder, check=True)
    assert run(folder, commit, patch) == OLD + "\n\n" + NEW + "it's `new` $HOME\n"


def test_the_tests_that_run_are_those_that_are_there_after_the_patch(repository):
    """Renamed with a change, copied, deleted, new, and changed; pytest would stop at a name that is not there."""
    folder, _, _ = repository
    for name in ("b", "c", "d"):
        (folder / "tests" / f"test_{name}.py").write_text(OLD + "\n" * 20 + f"# {name}\n" * 20)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "more")
    git(folder, "mv", "tests/test_b.py", "tests/test_e.py")
    git(folder, "rm", "-q", "tests/test_d.py")
    for source, name in (("e", "e"), ("c", "f"), ("c", "c")):
        text = (folder / "tests" / f"test_{source}.py").read_text()
        (folder / "tests" / f"test_{name}.py").write_text(text + NEW)
    (folder / "tests" / "data.json").write_text("{}")
    git(folder, "add", "-A")
    patch = git(folder, "diff", "--cached", "--find-copies-harder", "-M", "-C") + "\n"
    assert "rename from" in patch
    assert "copy from" in patch
    git(folder, "reset", "-q", "--hard")
    files = files_to_test(patch)
    script = with_test_patch(git(folder, "rev-parse", "HEAD"), patch, f"ls {files}").replace(FOLDER, str(folder))
    variables = {"HOME": str(folder.parent), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, env=variables, check=False)
    assert done.stdout.split() == files.split() == [f"tests/test_{name}.py" for name in ("c", "e", "f")]
    assert git(folder, "status", "--porcelain") == ""


def test_the_files_are_put_back_afterwards(repository):
    folder, commit, patch = repository
    (folder / "code.py").write_text("the agent's\n")
    run(folder, commit, patch)
    assert git(folder, "status", "--porcelain") == "?? code.py"


def test_a_patch_that_only_adds_files_resets_nothing_else(repository):
    folder, commit, patch = repository
    added = patch[: patch.index("diff --git a/tests/test_a.py")]
    assert "new file mode" in added
    (folder / "code.py").write_text("x\n")
    git(folder, "add", "-A")
    assert run(folder, commit, added) == OLD + "it's `new` $HOME\n"
    assert (folder / "code.py").exists()
