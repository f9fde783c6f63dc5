from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout.patch import OVERSIZED, PatchError, apply_patch, binary_paths, bounded_patch, make_patch

# Few distinct lines, so that changes share context; the odd ones are what naive line splitting and parsing trip over.
LINES = st.sampled_from(
    ["a\n", "b\n", "c\n", "\n", " \n", "-- x\n", "+++ y\n", "@@ -1 +1 @@\n", "é\r\n", "\x0b\u2028\n"]
)
CONTENT = st.tuples(st.lists(LINES, max_size=30), st.sampled_from(["", "", "end", "\\ no"])).map(
    lambda parts: "".join(parts[0]) + parts[1]
)
NAMES = st.sampled_from(
    ["a.py", "b c.txt", "pkg/mod.py", "pkg/é.py", 'q"uote.py', "tab\there", "back\\slash", "deep/er/x", "n\udcff.py"]
)
FILES = st.dictionaries(NAMES, CONTENT, max_size=5)


def encoded(files: dict[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())


def read(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and ".git" not in p.parts
    }


@given(FILES, FILES)
def test_apply_undoes_make(before: dict[str, str], after: dict[str, str]) -> None:
    patch = make_patch(before, after)
    assert apply_patch(before, patch) == encoded(after)
    assert (patch == "") == (before == after)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, FILES)
def test_git_applies_what_we_make(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, str], after: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    write(folder, before)
    patch = make_patch(before, after)
    if patch:
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], input=patch.encode(), cwd=folder, check=True, timeout=20
        )
    assert read(folder) == encoded(after)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, FILES)
def test_we_apply_what_git_makes(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, str], after: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("trees")
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    write(folder / "a", before)
    write(folder / "b", after)
    command = ["git", "diff", "--no-index", "--no-renames", "--no-prefix", "a", "b"]
    diff = subprocess.run(command, cwd=folder, capture_output=True, timeout=20).stdout.decode()
    assert apply_patch(before, diff) == encoded(after)


def test_the_form_is_git_s() -> None:
    assert make_patch({"a.py": "x\ny"}, {"a.py": "x\nz\n", "new": ""}) == (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x\n-y\n\\ No newline at end of file\n+z\n"
        "diff --git a/new b/new\nnew file mode 100644\n"
    )


def test_a_plain_diff_without_git_s_header_applies() -> None:
    assert apply_patch({"x": "1\n"}, "--- a/x\t2020-01-01\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n") == {"x": b"2\n"}


def test_a_patch_that_lost_its_last_newline_applies() -> None:
    patch = make_patch({"x": "1\n2\n"}, {"x": "1\n3\n"})
    assert apply_patch({"x": "1\n2\n"}, patch.strip()) == {"x": b"1\n3\n"}


def test_a_binary_change_is_stated_and_not_carried() -> None:
    patch = make_patch({"a": b"\xff", "b": "1\n"}, {"a": b"\xfe", "b": "2\n", "c": b"\0"})
    assert "Binary files a/a and b/a differ" in patch
    assert binary_paths(patch) == ["a", "c"]
    assert apply_patch({"a": b"\xff", "b": "1\n"}, patch) == {"a": b"\xff", "b": b"2\n"}


def test_a_name_that_is_no_utf_8_is_written_as_git_does() -> None:
    patch = make_patch({}, {"é/\udcff.py": "1\n"})
    assert patch.startswith('diff --git "a/é/\\377.py" "b/é/\\377.py"\n')
    assert apply_patch({}, patch) == {"é/\udcff.py": b"1\n"}


def test_a_patch_that_is_too_large_is_left_out() -> None:
    assert bounded_patch({"x": "1\n"}, {"x": "2\n"}) == make_patch({"x": "1\n"}, {"x": "2\n"})
    assert bounded_patch({}, {str(number): "1\n" * 10_000 for number in range(100)}) == OVERSIZED
    assert apply_patch({"x": "1\n"}, OVERSIZED) == {"x": b"1\n"}


def test_a_huge_rewrite_takes_no_quadratic_time() -> None:
    before, after = {"x": "a\n" * 30_000 + "b\n"}, {"x": "b\n" + "a\n" * 29_000}
    assert apply_patch(before, make_patch(before, after)) == encoded(after)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("@@ -1 +1 @@\n-1\n+2\n", "without the file"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-2\n+3\n", "does not have the lines"),
        ("--- a/x\n+++ b/x\n@@ -7 +7 @@\n-1\n+3\n", "does not have the lines"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-1\n", "ends too early"),
        ("--- a/x\n+++ b/x\n@@ nonsense\n", "malformed hunk"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\ndiff --git\n", "ends before its header"),
        ("--- a/no\n+++ b/no\n@@ -1 +1 @@\n-1\n+2\n", "is not there"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+2\n", "exists already"),
        ("--- a/x\n+++ /dev/null\n@@ -0,0 +0,0 @@\n", "would be deleted"),
        ("--- /dev/null\n+++ b/../y\n@@ -0,0 +1 @@\n+2\n", "not a path inside"),
        ("--- /dev/null\n+++ b//etc/passwd\n@@ -0,0 +1 @@\n+2\n", "not a path inside"),
        ("--- /dev/null\n+++ b/x/y\n@@ -0,0 +1 @@\n+2\n", "both a file and a folder"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "not supported"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+x\n", "not supported"),
    ],
)
def test_what_does_not_fit_is_refused(patch: str, message: str) -> None:
    with pytest.raises(PatchError, match=message):
        apply_patch({"x": "1\n"}, patch)


@given(st.text())
def test_any_text_is_a_patch_or_a_patch_error(text: str) -> None:
    for patch in (text, "--- a/x\n+++ b/x\n" + text, "diff --git " + text):
        with contextlib.suppress(PatchError):
            apply_patch({"x": "1\n"}, patch)
