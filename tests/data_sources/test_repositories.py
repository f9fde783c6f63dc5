"""One commit of a repository, by real git over `file://`."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import threading
from pathlib import Path

import pytest

from slime_swe.data_sources.repositories import checkout, remove
from slime_swe.errors import InfrastructureError, UserError


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def serve(folder: Path) -> None:
    """As the public hosts do: single commits by their hash, and commits without their files."""
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(folder, "config", "uploadpack.allowFilter", "true")


@pytest.fixture
def upstream(tmp_path) -> tuple[str, list[str]]:
    """The address of a repository with three commits, and their hashes."""
    folder = tmp_path / "up stream.git"
    folder.mkdir()
    git(folder, "init", "-q")
    commits = []
    for number in range(3):
        (folder / "package").mkdir(exist_ok=True)
        (folder / "package" / "code.py").write_text(f"VERSION = {number}\n")
        (folder / f"only-{number}.txt").write_text("x")
        (folder / "run.sh").write_text("#!/bin/sh\n")
        (folder / "run.sh").chmod(0o755)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"commit {number}: the secret is {number}")
        git(folder, "tag", f"v{number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    serve(folder)
    return folder.as_uri(), commits


def test_the_files_are_those_of_the_commit(upstream, tmp_path):
    url, commits = upstream
    folder = checkout(url, commits[1], tmp_path / "cache")
    assert (folder / "package" / "code.py").read_text() == "VERSION = 1\n"
    assert (folder / "only-1.txt").exists() and not (folder / "only-2.txt").exists()
    assert (folder / "run.sh").stat().st_mode & 0o111


def test_no_other_commit_is_there(upstream, tmp_path):
    url, commits = upstream
    folder = checkout(url, commits[1], tmp_path / "cache")
    assert git(folder, "rev-list", "--all", "HEAD") == commits[1]
    assert git(folder, "for-each-ref") == ""
    objects = git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)").splitlines()
    assert [name for line in objects for kind, name in [line.split()] if kind == "commit"] == [commits[1]]
    assert not any(commits[2] in path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_it_is_read_only_and_can_be_removed(upstream, tmp_path):
    url, commits = upstream
    folder = checkout(url, commits[0], tmp_path / "cache")
    modes = {path.stat().st_mode & 0o222 for path in folder.rglob("*") if not path.is_symlink()}
    assert modes == {0}
    remove(folder)
    assert not folder.exists()


def test_it_is_fetched_once(upstream, tmp_path):
    url, commits = upstream
    first = checkout(url, commits[0], tmp_path / "cache")
    (tmp_path / "up stream.git").rename(tmp_path / "gone")
    assert checkout(url, commits[0], tmp_path / "cache") == first


def test_many_at_once_get_the_same_one(upstream, tmp_path):
    url, commits = upstream
    found: list[tuple[Path, int]] = []

    def fetch() -> None:
        folder = checkout(url, commits[2], tmp_path / "cache")
        found.append((folder, folder.stat().st_ino))

    threads = [threading.Thread(target=fetch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(set(found)) == 1
    left = sorted(path.name for path in found[0][0].parent.iterdir())
    assert left == [commits[2], f"{commits[2]}.lock"]


def test_a_commit_that_is_not_there_leaves_nothing(upstream, tmp_path):
    url, _ = upstream
    with pytest.raises(InfrastructureError, match=r"git fetch .* failed"):
        checkout(url, "0" * 40, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix != ".lock" and path.is_file()]


@pytest.mark.parametrize("commit", ["2740fb", "main", "", "-upload-pack=x", "A" * 40, "0" * 41])
def test_only_a_hash_names_a_commit(commit, tmp_path):
    with pytest.raises(UserError, match="is no commit hash: 40 hexadecimal digits, or at least the first 7 of them"):
        checkout("file:///nowhere", commit, tmp_path)


def packs(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "objects" / "pack").glob("*.pack"))


def test_a_shortened_hash_is_completed_by_the_servers_commits(upstream, tmp_path):
    url, commits = upstream
    folder = checkout(url, commits[1][:7], tmp_path / "cache")
    assert folder == checkout(url, commits[1], tmp_path / "cache") and folder.name == commits[1]
    assert git(folder, "rev-list", "--all", "HEAD") == commits[1], "the others are not with it"
    history = folder.parent / "history.git"
    kinds = git(history, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert kinds == ["commit"] * 3, "no files have come with the commits"
    before = packs(history)
    assert checkout(url, commits[0][:9], tmp_path / "cache").name == commits[0]
    assert packs(history) == before, "what is known is not asked for again"


def test_a_commit_that_is_newer_than_what_was_fetched_is_found(upstream, tmp_path):
    url, commits = upstream
    checkout(url, commits[0][:7], tmp_path / "cache")
    source = tmp_path / "up stream.git"
    git(source, "commit", "-q", "--allow-empty", "-m", "later")
    new = git(source, "rev-parse", "HEAD")
    assert checkout(url, new[:8], tmp_path / "cache").name == new


def test_a_shortened_hash_of_no_commit_or_of_several_is_refused(upstream, tmp_path):
    url, commits = upstream
    none = next(digit for digit in "0123456789abcdef" if all(commit[0] != digit for commit in commits)) * 7
    with pytest.raises(UserError, match=f"'{none}' begins the hash of no commit on a branch or tag of file:"):
        checkout(url, none, tmp_path / "cache")
    tree = git(tmp_path / "up stream.git", "rev-parse", "HEAD^{tree}")
    with pytest.raises(UserError, match="begins the hash of no commit"):
        checkout(url, tree[:12], tmp_path / "cache")


def test_a_shortened_hash_of_several_commits_names_them(tmp_path):
    """Two commits that begin alike, found by counting up a message: 28 bits take about 20,000 of them."""
    source = tmp_path / "alike.git"
    source.mkdir()
    git(source, "init", "-q")
    serve(source)
    one, two = commits_that_begin_alike(source)
    with pytest.raises(UserError, match=f"'{one[:7]}' begins the hashes of several commits of .*: ({one}|{two}), "):
        checkout(source.as_uri(), one[:7], tmp_path / "cache")
    folder = checkout(
        source.as_uri(), next(two[:size] for size in range(8, 40) if two[:size] != one[:size]), tmp_path / "cache"
    )
    assert folder.name == two


def commits_that_begin_alike(source: Path) -> tuple[str, str]:
    tree = git(source, "write-tree")
    person = "x <x@x> 0 +0000"
    seen: dict[str, bytes] = {}
    for number in itertools.count():
        body = f"tree {tree}\nauthor {person}\ncommitter {person}\n\n{number}\n".encode()
        name = hashlib.sha1(b"commit %d\0" % len(body) + body).hexdigest()
        other = seen.setdefault(name[:7], body)
        if other is not body:
            break
    pair = [git_object(source, other), git_object(source, body)]
    for number, commit in enumerate(pair):
        git(source, "update-ref", f"refs/heads/branch-{number}", commit)
    return pair[0], pair[1]


def git_object(source: Path, body: bytes) -> str:
    command = ["git", "hash-object", "-t", "commit", "-w", "--stdin"]
    return subprocess.run(command, cwd=source, input=body, check=True, capture_output=True).stdout.decode().strip()


def test_the_users_git_configuration_and_hooks_have_no_say(upstream, tmp_path, monkeypatch):
    url, commits = upstream
    marker = tmp_path / "ran"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (hooks / "post-checkout").chmod(0o755)
    (tmp_path / "config").write_text(f"[core]\n\thooksPath = {hooks}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    folder = checkout(url, commits[0], tmp_path / "cache")
    assert (folder / ".git").is_dir() and not marker.exists()
