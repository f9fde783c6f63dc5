"""What is read out of a patch, and the patch that undoes one; git is the judge."""

from __future__ import annotations

import subprocess

import pytest

from data_sources.patches import added_paths, changed_lines, paths_of, reverse
from rollout.patch import apply_patch

BEFORE = {"a.py": "one\ntwo\n--- three\n", "gone.py": "was here\n", "dir/b.txt": "no newline"}
AFTER = {"a.py": "one\n2\n++ three\nfour\n", "new.py": "is here\n", "dir/b.txt": "no newline still"}


def git(folder, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def write(folder, files) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture
def patch(tmp_path) -> str:
    """git's own diff from BEFORE to AFTER."""
    git(tmp_path, "init", "-q")
    write(tmp_path, BEFORE)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "before")
    (tmp_path / "gone.py").unlink()
    write(tmp_path, AFTER)
    (tmp_path / "a.py").chmod(0o755)
    git(tmp_path, "add", "-A")
    return git(tmp_path, "diff", "--cached", "--no-renames")


def test_the_paths(patch):
    assert paths_of(patch) == ("a.py", "dir/b.txt", "gone.py", "new.py")
    assert added_paths(patch) == ("new.py",)
    assert paths_of("") == ()


def test_paths_of_what_has_no_hunks():
    renamed = "diff --git a/x/old.py b/y/new.py\nsimilarity index 100%\nrename from x/old.py\nrename to y/new.py\n"
    assert paths_of(renamed) == ("x/old.py", "y/new.py")
    assert added_paths(renamed) == ("y/new.py",)
    assert paths_of(
        "diff --git a/i.png b/i.png\nnew file mode 100644\nBinary files /dev/null and b/i.png differ\n"
    ) == ("i.png",)
    assert paths_of("--- plain.c\t2020-01-01\n+++ plain.c\t2020-01-02\n@@ -1 +1 @@\n-a\n+b\n") == ("plain.c",)


def test_lines_that_look_like_headers_are_lines(patch):
    lines = list(changed_lines(patch))
    assert ("a.py", "---- three") in lines
    assert ("a.py", "+++ three") in lines
    assert ("gone.py", "-was here") in lines
    assert ("new.py", "+is here") in lines
    assert len(lines) == 9


def test_the_reverse_undoes_it_for_git(tmp_path, patch):
    (tmp_path / "reverse.diff").write_text(reverse(patch))
    git(tmp_path, "apply", "reverse.diff")
    (tmp_path / "reverse.diff").unlink()
    git(tmp_path, "add", "-A")
    assert git(tmp_path, "diff", "--cached") == ""


def test_the_reverse_undoes_it_for_us(patch):
    after = {path: text.encode() for path, text in AFTER.items()}
    assert apply_patch(BEFORE, patch) == after
    assert apply_patch(AFTER, reverse(patch)) == {path: text.encode() for path, text in BEFORE.items()}
    assert reverse(reverse(patch)) == patch


def test_what_can_not_be_reversed():
    with pytest.raises(ValueError, match="renames"):
        reverse("diff --git a/x b/y\nrename from x\nrename to y\n")
