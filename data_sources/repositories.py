"""Check out one commit of a Git repository, and nothing else of its history, once for all who need it.

The checkout is read-only and shared; who changes files works on a copy, or on an overlay over it. It holds one commit
without its parents: no later commit, tag or branch is there to be read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

TIMEOUT = 600.0  # seconds of one git command
_FULL_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# A repository must not decide what runs here: no hooks, no file system monitor, no filters of the user's configuration.
_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never")
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}


class RepositoryError(RuntimeError):
    """Git could not fetch or check out a commit; the message has git's own words."""


class CommitError(ValueError):
    """A commit is not named by its full hash, by which alone a server gives a single one."""


def checkout(url: str, commit: str, cache: Path) -> Path:
    """The folder with this commit's files, made on the first call; concurrent callers wait for the first.

    `url` is what `git fetch` takes, `commit` a full hash. Raises `CommitError`, and `RepositoryError` if git fails.
    """
    if not _FULL_HASH.fullmatch(commit):
        raise CommitError(f"{commit!r} is not a full commit hash (40 hexadecimal digits): a server gives no other")
    folder = cache / _folder_name(url) / commit
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{commit}.lock")):
        if not folder.is_dir():
            _make(url, commit, folder)
    return folder


def _make(url: str, commit: str, folder: Path) -> None:
    """In a folder beside it, which takes its name when it is whole."""
    partial = Path(tempfile.mkdtemp(prefix=f".{commit[:12]}-", dir=folder.parent))
    try:
        _git(partial, "init", "--quiet")
        _git(partial, "remote", "add", "origin", url)
        _git(partial, "fetch", "--quiet", "--depth=1", "--no-tags", "origin", commit)
        _git(partial, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        (partial / ".git" / "FETCH_HEAD").unlink()
        _make_read_only(partial)
        partial.rename(folder)
    except BaseException:
        remove(partial)
        raise


def remove(folder: Path) -> None:
    """Delete a checkout, which is read-only."""
    for path, _, _ in os.walk(folder):
        Path(path).chmod(0o700)
    shutil.rmtree(folder)


def _make_read_only(root: Path) -> None:
    """Modes of files and folders below `root`; its own comes last, since a folder that is renamed must be writable."""
    for path, _, names in os.walk(root):
        for name in names:
            file = Path(path, name)
            if not file.is_symlink():
                file.chmod(file.stat().st_mode & 0o555)
        if path != str(root):
            Path(path).chmod(0o555)


def _git(folder: Path, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRONMENT
    try:
        done = subprocess.run(
            ["git", *_SAFE, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except FileNotFoundError as error:
        raise RepositoryError("git is not installed: apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise RepositoryError(f"git {arguments[0]} took more than {TIMEOUT:.0f} seconds") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise RepositoryError(f"git {' '.join(arguments)} failed: {said}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes of this machine that ask for the same path; freed when the process ends."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _folder_name(url: str) -> str:
    """The end of an address, for people, and a hash of the whole."""
    readable = re.sub(r"[^\w.-]+", "-", "-".join(url.removesuffix(".git").rsplit("/", 2)[-2:])).strip("-.")
    return f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
