"""Patches, with git as the judge."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_swe.patches import (
    OVERSIZED,
    PatchError,
    added_paths,
    apply_patch,
    binary_paths,
    bounded_patch,
    changed_lines,
    header_paths,
    make_patch,
    paths_of,
    read_patch,
    reverse_patch,
    write_patch,
)
from tests.effort import FACTOR, assert_linear

Files = dict[str, bytes]
# Few distinct lines, so that changes share context; the odd ones are what naive line splitting and parsing trip over.
LINES = st.sampled_from(
    ["a\n", "b\n", "c\n", "\n", " \n", "-- x\n", "+++ y\n", "@@ -1 +1 @@\n", "é\r\n", "\x0b\u2028\n", "diff --git\n"]
)
TEXT = st.tuples(st.lists(LINES, max_size=30), st.sampled_from(["", "", "end", "\\ no"])).map(
    lambda parts: ("".join(parts[0]) + parts[1]).encode()
)
LATIN = TEXT.map(lambda text: text + b"caf\xe9\n")
BINARY = st.tuples(st.binary(max_size=40), st.integers(0, 30)).map(lambda parts: b"\0" + parts[0] * parts[1])
NAMES = st.sampled_from(
    ["a.py", "b c.txt", "pkg/mod.py", "pkg/é.py", 'q"uote.py', "tab\there", "back\\slash", "de ep/er/x", "n\udcff.py",
     "tests/test größe ü.py", "a/a", "b/x y"]
)  # fmt: skip
TEXT_FILES = st.dictionaries(NAMES, TEXT, max_size=5)
GIT = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": "/tmp"}
SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class File:
    content: bytes
    executable: bool = False


Tree = dict[str, File]


@st.composite
def trees(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A tree and what became of it: files changed, moved, copied, added, deleted, with other modes."""
    file = st.builds(File, st.one_of(TEXT, LATIN, BINARY), st.booleans())
    before: Tree = draw(st.dictionaries(NAMES, file, max_size=6))
    after = dict(before)
    for path in draw(st.lists(st.sampled_from(sorted(before)), unique=True)) if before else ():
        change = draw(st.sampled_from(["write", "append", "mode", "move", "copy", "delete"]))
        old, target = after[path], draw(NAMES)
        if change in ("delete", "move"):
            del after[path]
        if change == "write":
            after[path] = draw(file)
        elif change == "mode":
            after[path] = File(old.content, not old.executable)
        elif change in ("append", "move", "copy"):
            content = old.content + draw(st.sampled_from([b"", b"more\n"]))
            after[path if change == "append" else target] = File(content, old.executable)
    return before, after | draw(st.dictionaries(NAMES, file, max_size=2))


def run_git(*arguments: str, folder: Path, stdin: bytes | None = None, **environment: str) -> bytes:
    command = ["git", "-c", "core.autocrlf=false", *arguments]
    done = subprocess.run(command, cwd=folder, input=stdin, env=GIT | environment, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


class Repository:
    """Makes git's own diffs, and applies patches by git, of trees in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        run_git("init", "-q", "--bare", str(folder / "git"), folder=folder)

    def write(self, tree: Tree) -> Path:
        self._count += 1
        root = self.folder / f"tree-{self._count}"
        root.mkdir()
        for path, file in tree.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(file.content)
            (root / path).chmod(0o755 if file.executable else 0o644)
        return root

    def diff(self, before: Tree, after: Tree, *arguments: str) -> str:
        first, second = (self._hash(tree) for tree in (before, after))
        found = run_git("diff-tree", "-p", "--full-index", *arguments, first, second, folder=self.folder / "git")
        return found.decode("utf-8", "surrogateescape")

    def apply(self, tree: Tree, patch: str, *arguments: str) -> Tree:
        root = self.write(tree)
        if patch:
            text = patch.encode("utf-8", "surrogateescape")
            run_git("apply", "--whitespace=nowarn", *arguments, "-", folder=root, stdin=text)
        return read_tree(root)

    def _hash(self, tree: Tree) -> str:
        root, index = self.write(tree), str(self.folder / f"index-{self._count}")
        places = {"GIT_INDEX_FILE": index, "GIT_DIR": str(self.folder / "git"), "GIT_WORK_TREE": str(root)}
        run_git("add", "-A", folder=root, **places)
        return run_git("write-tree", folder=root, **places).decode().strip()


def read_tree(root: Path) -> Tree:
    paths = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): File(path.read_bytes(), bool(path.stat().st_mode & 0o100)) for path in paths}


def contents(tree: Tree) -> Files:
    return {path: file.content for path, file in tree.items()}


def is_tree(tree: Tree) -> bool:
    """No file is also a folder of another."""
    return not any(f"{path}/".startswith(f"{other}/") for path in tree for other in tree if path != other)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("patches"))


@settings(SETTINGS, max_examples=60)
@given(trees().filter(lambda both: is_tree(both[0]) and is_tree(both[1])), st.booleans())
def test_git_s_patches_are_read_written_applied_and_reversed(repository: Repository, both, copies: bool):
    before, after = both
    finding = ["-C", "--find-copies-harder"] if copies else ["-M"]
    patch = repository.diff(before, after, "--binary", *finding)
    changes = read_patch(patch)
    written = write_patch(changes)
    assert read_patch(written) == changes
    assert apply_patch(contents(before), patch) == apply_patch(contents(before), written) == contents(after)
    assert repository.apply(before, written) == after
    assert set(paths_of(patch)) <= header_paths(patch)
    if any(change.copied for change in changes):
        with pytest.raises(PatchError, match="is copied"):
            reverse_patch(patch)
        return
    reverse = reverse_patch(patch)
    assert apply_patch(contents(after), reverse) == contents(before)
    assert repository.apply(after, reverse) == before
    assert read_patch(reverse_patch(reverse)) == changes


@settings(SETTINGS, max_examples=25)
@given(TEXT_FILES, TEXT_FILES)
def test_git_applies_what_we_make_and_we_what_git_makes_without_prefixes(repository: Repository, before, after):
    old, new = ({path: File(text) for path, text in files.items()} for files in (before, after))
    assert contents(repository.apply(old, make_patch(before, after))) == after
    if not any(path[1:2] == "/" for path in (*before, *after)):  # `a/a` could be `a` with a prefix
        bare = repository.diff(old, new, "--no-prefix", "--no-renames")
        assert apply_patch(before, bare) == after == contents(repository.apply(old, bare, "-p0"))


@given(TEXT_FILES, TEXT_FILES)
def test_apply_undoes_make(before: Files, after: Files):
    patch = make_patch(before, after)
    assert apply_patch(before, patch) == after
    assert (patch == "") == (before == after)
    assert write_patch(read_patch(patch)) == patch
    assert apply_patch(after, reverse_patch(patch)) == before


@settings(SETTINGS, max_examples=200)
@given(st.lists(LINES, max_size=60), st.lists(LINES, max_size=60))
def test_a_made_patch_is_no_longer_than_a_whole_replacement(old, new):
    patch = make_patch({"x": "".join(old)}, {"x": "".join(new)})
    changed = [line for line in changed_lines(patch)]
    assert len(changed) <= len(old) + len(new)
    assert apply_patch({"x": "".join(old)}, patch) == {"x": "".join(new).encode()}


def test_the_form_is_git_s():
    assert make_patch({"a.py": "x\ny"}, {"a.py": "x\nz\n", "new": ""}) == (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x\n-y\n\\ No newline at end of file\n+z\n"
        "diff --git a/new b/new\nnew file mode 100644\n"
    )
    assert make_patch({}, {"é/\udcff.py": "1\n"}).startswith('diff --git "a/é/\\377.py" "b/é/\\377.py"\n')


def test_a_change_in_a_long_file_is_small():
    lines = [f"    value = {number % 7}\n" for number in range(2_000)]
    changed = [*lines[:500], "new\n", *lines[500:1_500], *lines[1_501:]]
    patch = make_patch({"x": "".join(lines)}, {"x": "".join(changed)})
    assert len(list(changed_lines(patch))) == 2


@pytest.mark.parametrize(
    "patch",
    [
        "--- a/x\t2020-01-01\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n",
        "--- a/x 2024-01-01 10:00:00 +0000\n+++ b/x 2024-01-02 10:00:00.5 +0000\n@@ -1 +1 @@\n-1\n+2\n",
        "--- x\n+++ x\n@@ -1 +1 @@\n-1\n+2\n",
        '--- "a/\\170"\n+++ "b/\\170"\n@@ -1 +1 @@\n-1\n+2',
        "3d plots are broken\n@ you\n--- a list\n+++ b\nFrom me\n\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n-- \n2.39\n",
        "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@ def f():\n-1\n+2\n",
    ],
)
def test_odd_forms_that_git_takes(patch: str, repository: Repository):
    assert apply_patch({"x": "1\n"}, patch) == {"x": b"2\n"}
    if patch.endswith("\n"):  # git wants the last line to end
        how = ["-p0"] if patch.startswith("--- x") else []
        assert contents(repository.apply({"x": File(b"1\n")}, patch, *how)) == {"x": b"2\n"}


def test_a_binary_change_of_ours_is_stated_and_not_carried():
    patch = make_patch({"a": b"\xff", "b": "1\n"}, {"a": b"\xfe", "b": "2\n", "c": b"\0"})
    assert "Binary files a/a and b/a differ" in patch
    assert binary_paths(patch) == ["a", "c"]
    assert apply_patch({"a": b"\xff", "b": "1\n"}, patch) == {"a": b"\xff", "b": b"2\n"}
    with pytest.raises(PatchError, match="c is a binary change"):
        reverse_patch(patch)


def test_paths_and_lines():
    patch = make_patch({"a.py": "one\n--- three\n", "gone": "x\n"}, {"a.py": "one\n++ three\n", "ü n.py": "new\n"})
    assert paths_of(patch) == ("a.py", "gone", "ü n.py")
    assert added_paths(patch) == ("ü n.py",)
    assert list(changed_lines(patch)) == [
        ("a.py", "---- three"), ("a.py", "+++ three"), ("gone", "-x"), ("ü n.py", "+new"),
    ]  # fmt: skip
    quoted = 'diff --git "a/tests/t\\303\\251.py" "b/tests/t\\303\\251.py"\nnew file mode 100644\n'
    assert paths_of(quoted) == ("tests/té.py",)
    assert paths_of("") == added_paths("") == ()
    assert header_paths("--- a/.gitignore\n+++ b/.gitignore\n").isdisjoint({".git", "a/.git"})


def test_a_patch_that_is_too_large_is_left_out():
    assert bounded_patch({"x": "1\n"}, {"x": "2\n"}) == make_patch({"x": "1\n"}, {"x": "2\n"})
    assert bounded_patch({}, {str(number): "1\n" * 10_000 for number in range(100)}) == OVERSIZED
    assert apply_patch({"x": "1\n"}, OVERSIZED) == {"x": b"1\n"}


def numbered(count: int) -> list[str]:
    return [f"line {number}\n" for number in range(count)]


LONG: dict[str, Callable[[int], tuple[str, str]]] = {
    "a line after each": lambda n: ("".join(numbered(n)), "x\n".join([*numbered(n), ""])),
    "few lines, all over": lambda n: ("a\n" * 2 * n + "b\n", "b\n" + "a\n" * (2 * n - 99)),
    "in the other order": lambda n: ("".join(numbered(n)), "".join(reversed(numbered(n)))),
    "unique only once it is cut": lambda n: (
        "".join(f"{number + 1}\n{number}\n" for number in range(n // 2)),
        "".join(f"{number}\nx\n{number + 1}\n" for number in range(n // 2)),
    ),
    "short blocks of alike lines": lambda n: (
        "".join(f"{number}\n" + "a\nb\n" * 40 for number in range(n // 25)),
        "".join(f"{number}\n" + "b\nb\na\n" * 40 for number in range(n // 25)),
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_any_change_takes_time_that_grows_with_it(name: str):
    lines = 4_000
    sides = {count: [{"x": text.encode()} for text in LONG[name](count)] for count in (lines, FACTOR * lines)}
    before, after = sides[FACTOR * lines]
    patch = make_patch(before, after)
    assert apply_patch(before, patch) == after
    if name == "a line after each":
        assert len(list(changed_lines(patch))) == FACTOR * lines
    assert_linear(lambda count: apply_patch(sides[count][0], make_patch(*sides[count])), lines, name)


BOMB = (
    f"diff --git a/b b/b\nnew file mode 100644\nindex {'0' * 40}..{'1' * 40}\n"
    "GIT binary patch\nliteral 999999999\nzcmZ\n\n"
)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("@@ -1 +1 @@\n-1\n+2\n", "without the file"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-2\n+3\n", "does not have the lines"),
        ("--- a/x\n+++ b/x\n@@ -7 +7 @@\n-1\n+3\n", "does not have the lines"),
        ("--- a/x\n+++ b/x\n@@ -9,0 +9 @@\n+3\n", "does not have the lines"),
        ("--- a/x\n+++ b/x\n@@ -0 +1 @@\n-1\n+3\n", "begins before the first line"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-1\n", "ends too early"),
        ("--- a/x\n+++ b/x\n@@ -nonsense\n", "malformed hunk"),
        (f"--- a/x\n+++ b/x\n@@ -{'9' * 5_000} +1 @@\n-1\n", "malformed hunk"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\ndiff --git\n", "ends before its header"),
        ("--- a/no\n+++ b/no\n@@ -1 +1 @@\n-1\n+2\n", "is not there"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+2\n", "exists already"),
        ("--- a/x\n+++ /dev/null\n@@ -1 +1 @@\n-1\n+2\n", "would be deleted"),
        ("--- /dev/null\n+++ b/../y\n@@ -0,0 +1 @@\n+2\n", "not a path inside"),
        ("--- /dev/null\n+++ b//etc/passwd\n@@ -0,0 +1 @@\n+2\n", "not a path inside"),
        ("--- /dev/null\n+++ b/.Git/config\n@@ -0,0 +1 @@\n+2\n", "not a path inside"),
        ("--- /dev/null\n+++ b/x/y\n@@ -0,0 +1 @@\n+2\n", "both a file and a folder"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+x\n", "not supported"),
        ("diff --git a/x b/y\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-1\n+2\n", "names different files"),
        ("diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", "does not say which file"),
        ("diff --git a/x b/x\nnew file mode 99\n", "of no known form"),
        ("diff --git a/x b/x\nGIT binary patch\nnothing\n", "without its data"),
        (BOMB, "can't be read"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+\ud800\n", "no text"),
    ],
)
def test_what_does_not_fit_is_refused(patch: str, message: str):
    with pytest.raises(PatchError, match=message):
        apply_patch({"x": "1\n"}, patch)


def test_a_patch_has_bounds():
    many = "".join(f"diff --git a/{n} b/{n}\nnew file mode 100644\n" for n in range(10_001))
    with pytest.raises(PatchError, match="more than 10000"):
        apply_patch({}, many)
    deep = "".join(f"diff --git a/{n}/{'a/' * 99}x b/{n}/{'a/' * 99}x\nnew file mode 100644\n" for n in range(101))
    with pytest.raises(PatchError, match="more than 10000 folders"):
        apply_patch({}, deep)


def test_a_small_patch_can_not_grow_without_bound():
    copies = "".join(f"diff --git a/x b/{n}\ncopy from x\ncopy to {n}\n" for n in range(100))
    with pytest.raises(PatchError, match="would grow by more than"):
        apply_patch({"x": b"1" * 1_000_000}, copies)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec=None)), st.sampled_from(["", "--- a/x\n+++ b/x\n", "diff --git ", BOMB[:80]]))
def test_any_text_is_a_patch_or_a_patch_error(text: str, start: str):
    for read in (read_patch, lambda patch: apply_patch({"x": "1\n"}, patch), reverse_patch, header_paths):
        with contextlib.suppress(PatchError):
            read(start + text)
