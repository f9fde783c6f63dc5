"""What the script that cuts off an image's later history leaves of a repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slime_swe.sandbox.image.sandbox import HISTORY, NO_HISTORY


class Repository:
    """Ten commits, each with a tag, of which the last five come after the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "trunk")
        for number in range(10):
            (folder / "file.txt").write_text(f"state {number}\n")
            self.git("add", "-A")
            self.git("commit", "-q", "-m", f"commit {number}")
            self.git("tag", *(["-a", "-m", f"about {number}"] if number % 2 else []), f"v{number}")
        self.git("branch", "later")
        self.git("reset", "-q", "--hard", "v4")

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True)
        return done.stdout.decode(errors="replace")

    def cut(self) -> int:
        return subprocess.run(["bash", HISTORY], cwd=self.folder, check=False, capture_output=True).returncode

    def shows(self, text: str) -> bool:
        """Whether anything that git still has holds the text."""
        return text in self.git("cat-file", "--batch-all-objects", "--batch", "--buffer")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_what_was_before_stays_and_what_came_later_goes(repository: Repository):
    (repository.folder / "file.txt").write_text("not committed\n")
    commits = repository.git("log", "--topo-order", "--format=%H %D%n%B", "HEAD")
    assert repository.cut() == 0
    assert repository.git("log", "--topo-order", "--format=%H %D%n%B", "HEAD") == commits
    assert len(repository.git("rev-list", "--all").split()) == 5
    assert repository.git("tag").split() == [f"v{number}" for number in range(5)]
    assert repository.git("describe", "--tags") == "v4\n"
    assert repository.git("tag", "-l", "-n", "v3").split(maxsplit=1)[1] == "about 3\n"
    assert repository.git("branch", "--show-current") == "trunk\n"
    assert repository.git("status", "--porcelain") == " M file.txt\n"
    assert all(repository.shows(f"state {number}") for number in range(5))
    assert not any(
        repository.shows(f"{what} {number}") for what in ("state", "commit", "about") for number in (5, 7, 9)
    )
    assert not repository.git("fsck", "--unreachable") and not repository.git("reflog")


def test_the_repository_s_own_settings_stay_and_what_leads_elsewhere_goes(repository: Repository):
    for name, value in {
        "user.name": "Ada\nLovelace", "core.autocrlf": "input", "remote.origin.url": "https://example.org",
        "branch.trunk.remote": "origin", "core.hooksPath": "/hooks", "include.path": "/etc/gitconfig",
    }.items():  # fmt: skip
        repository.git("config", "--local", name, value)
    repository.git("config", "--local", "--add", "user.name", "second")
    with (repository.folder / ".git" / "config").open("a") as file:
        file.write("[diff]\n\tnoprefix\n")
    (repository.folder / ".git" / "info" / "exclude").write_text("secret.txt\n")
    (repository.folder / "secret.txt").write_text("x\n")
    assert repository.cut() == 0
    assert repository.git("config", "--local", "--get-all", "user.name") == "Ada\nLovelace\nsecond\n"
    assert repository.git("config", "--local", "core.autocrlf") == "input\n"
    assert repository.git("config", "--local", "--type=bool", "diff.noprefix") == "true\n"
    left = repository.git("config", "--local", "--list", "--name-only").split()
    assert not {"remote.origin.url", "branch.trunk.remote", "core.hookspath", "include.path"} & set(left)
    assert not repository.git("status", "--porcelain")


def test_a_detached_head_stays_detached(repository: Repository):
    commit = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "-q", "--detach")
    assert repository.cut() == 0
    assert repository.git("rev-parse", "HEAD") == commit
    assert repository.git("rev-parse", "--abbrev-ref", "HEAD") == "HEAD\n"
    assert not repository.git("branch", "--format=%(refname)", "--list", "trunk")


def test_a_shallow_repository_stays_shallow(repository: Repository, tmp_path: Path):
    url = f"file://{repository.folder}"
    subprocess.run(["git", "clone", "-q", "--depth=2", url, tmp_path / "clone"], check=True)
    repository.folder = tmp_path / "clone"
    assert repository.cut() == 0
    assert repository.git("log", "--format=%s") == "commit 4\ncommit 3\n"
    assert not repository.git("remote")


def test_what_has_no_history(repository: Repository, tmp_path: Path):
    repository.folder = tmp_path / "plain"
    repository.folder.mkdir()
    assert repository.cut() == NO_HISTORY
    (repository.folder / ".git").mkdir()
    assert repository.cut() == 0
    assert not list(repository.folder.iterdir())
