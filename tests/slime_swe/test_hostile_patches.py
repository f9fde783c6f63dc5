"""Patches that a policy wrote to do harm: no error but `PatchError`, time and memory that grow with them and no faster,
and no more is taken than git takes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from slime_swe.patches import (
    PatchError,
    apply_patch,
    binary_paths,
    changed_lines,
    header_paths,
    paths_of,
    read_patch,
    reverse_patch,
    write_patch,
)
from tests.effort import FACTOR, assert_linear
from tests.slime_swe.mutated_patches import FILES, Repository, mutated

READERS: tuple[Callable[[str], object], ...] = (
    header_paths,
    paths_of,
    binary_paths,
    reverse_patch,
    lambda patch: apply_patch(FILES, patch),
    lambda patch: list(changed_lines(patch)),
    lambda patch: write_patch(read_patch(patch)),
)
SHARES = [0, *(pytest.param(n, marks=pytest.mark.extended("mutated patches")) for n in range(1, 40))]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}.items():
            patch.setenv(name, value)
        return Repository(tmp_path_factory.mktemp("hostile") / "repository")


@pytest.mark.parametrize("share", SHARES)
def test_a_mutated_patch_raises_its_own_error_only(repository: Repository, share: int):
    """2,500 of the 100,000."""
    rng = random.Random(share)
    patches = repository.patches(rng, 30)
    raised = Counter[bool]()
    for _, patch in zip(range(2_500), mutated(patches, rng), strict=False):
        for read in READERS:
            failed = True
            with contextlib.suppress(PatchError):
                read(patch)
                failed = False
            raised[failed] += 1
    assert min(raised[True], raised[False]) > 1_000


@pytest.mark.parametrize("share", SHARES)
def test_what_we_apply_git_applies_with_the_same_result(repository: Repository, share: int):
    rng = random.Random(1_000 + share)
    applied = 0
    for _, text in zip(range(2_000), mutated(repository.patches(rng, 30), rng), strict=False):
        patch = text.rstrip("\n") + "\n"  # git wants the last line to end
        try:
            ours = apply_patch(FILES, patch)
            if binary_paths(patch) or not read_patch(patch):  # stated and not carried; no patch at all
                continue
        except PatchError:
            continue
        applied += 1
        assert ours in _by_git(repository, patch), repr(patch)
    assert applied > 50


def _by_git(repository: Repository, patch: str) -> Iterator[dict[str, bytes]]:
    """What it makes of the patch: of names with prefixes, and of names without."""
    for names in ("-p1", "-p0"):
        repository.restore()
        command = ["git", "apply", "--whitespace=nowarn", names, "-"]
        data = patch.encode("utf-8", "surrogateescape")
        done = subprocess.run(command, cwd=repository.folder, input=data, capture_output=True, check=False)
        if done.returncode == 0:
            yield repository.files()


@pytest.mark.skipif(shutil.which("patch") is None, reason="GNU patch is not installed here")
@pytest.mark.parametrize("share", SHARES)
def test_every_path_that_a_program_changes_is_seen(repository: Repository, share: int):
    """By git or by GNU patch, whether it then takes the whole patch or not."""
    rng = random.Random(2_000 + share)
    seen: Counter[str] = Counter()
    for number, text in zip(range(100), mutated(repository.patches(rng, 30), rng), strict=False):
        if "\ud800" in text:  # no text, and refused as such
            continue
        tool = ("patch", "git")[number % 2]
        changed = _changed_by(tool, repository, text)
        seen[tool] += bool(changed)
        assert changed <= header_paths(text), repr(text)
    assert min(seen["patch"], seen["git"]) > 2


def _changed_by(tool: str, repository: Repository, patch: str) -> set[str]:
    repository.restore()
    file = repository.folder.parent / "hostile.diff"
    file.write_bytes(patch.encode("utf-8", "surrogateescape"))
    commands = {
        "git": ["git", "apply", "--reject", str(file)],
        "patch": ["patch", "--batch", "--forward", "--fuzz=5", "-p1", "-i", str(file)],
    }
    subprocess.run(commands[tool], cwd=repository.folder, capture_output=True, check=False, timeout=30)
    after = repository.files()
    changed = {path for path in {*FILES, *after} if FILES.get(path) != after.get(path)}
    left = {path for path in changed if path not in FILES and path.endswith((".rej", ".orig"))}
    return {os.fsencode(path).decode("utf-8", "surrogateescape") for path in changed - left}


LARGE = {
    "an unclosed quote after each character": lambda n: "--- " + '"\\' * n,
    "two names, quotes that never close": lambda n: "diff --git " + '"\\ ' * n,
    "a folder in each folder": lambda n: f"--- /dev/null\n+++ b/{'a/' * n}x\n@@ -0,0 +1 @@\n+x\n",
    "folders as deep as a path may be": lambda n: "".join(
        f"--- /dev/null\n+++ b/{number}/{'a/' * 2_000}x\n@@ -0,0 +1 @@\n+x\n" for number in range(n // 4_000)
    ),
    "one file in many changes": lambda n: "--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n+b\n a\n a\n a\n" * (n // 40),
    "many hunks": lambda n: "--- a/x\n+++ b/x\n" + "@@ -1 +1 @@\n-1\n+2\n" * (n // 15),
    "many files": lambda n: "".join(
        f"diff --git a/{number} b/{number}\nnew file mode 100644\n" for number in range(n // 50)
    ),
    "empty lines": lambda n: "\n" * (2 * n),
    "headers of several names": lambda n: "--- a b c d\n" * (n // 12),
    "names that are not quoted": lambda n: "diff --git a b c\n" * (n // 20),
    "a header of many names": lambda n: "diff --git " + "a " * n + "\n",
    "many headers of many names": lambda n: ("diff --git " + "a " * 4_000 + "\n") * (n // 8_000),
    "a rename of many names": lambda n: ("rename from " + "X\t" * 99) * (n // 200),
    "one letter": lambda n: "X" * n,
}  # fmt: skip
SIZE = 1 << 15  # characters, about


def tried(patch: str) -> None:
    for read in READERS:
        with contextlib.suppress(PatchError):
            read(patch)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_patch_takes_time_that_grows_with_it(name: str):
    patches = {size: LARGE[name](size) for size in (SIZE, FACTOR * SIZE)}
    assert_linear(lambda size: tried(patches[size]), SIZE, name)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_patch_takes_memory_that_grows_with_it(name: str):
    """Beside what the folders of a patch may take, which are bounded."""
    patch = LARGE[name](SIZE // 2)
    tracemalloc.start()
    try:
        tried(patch)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 256 * len(patch) + (64 << 20)  # a square would be 256 << 20
