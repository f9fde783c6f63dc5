"""Check out one commit of a Git repository, without the rest of its history, once for all callers.

The checkout is read-only and shared. To change files, work on a copy or on an overlay over it. It holds one commit
without its parents: no later commit, tag or branch can be read there.

A server serves a single commit only by its full hash. A shortened hash is completed from the commits of all branches
and tags, which are fetched once without their files (`--filter=tree:0`): some hundred bytes each.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from slime_swe.data_sources.corpora.corpus import Corpus, Split, local_file
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import locked

TIMEOUT = 600.0  # seconds of one git command
_FULL_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SHORT_HASH = re.compile(r"[0-9a-f]{7,39}")
_BRANCHES_AND_TAGS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
# A repository must not decide what runs here: no hooks, no file system monitor, no filters of the user's configuration.
_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never")
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}


def checkout(url: str, commit: str, cache: Path) -> Path:
    """Return the folder with this commit's files, made on the first call; concurrent callers wait for the first.

    `url` is what `git fetch` takes, `commit` a hash, which may be shortened to seven digits. Raises `UserError`, and
    `InfrastructureError` if git fails.
    """
    commit = _full_hash(url, commit, cache)
    folder = cache / _folder_name(url) / commit
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{commit}.lock")):
        if not folder.is_dir():
            _make(url, commit, folder)
    return folder


def _full_hash(url: str, commit: str, cache: Path) -> str:
    """Find the commit's whole hash. Raises `UserError` where there is none, or several."""
    if _FULL_HASH.fullmatch(commit):
        return commit
    if not _SHORT_HASH.fullmatch(commit):
        raise UserError(f"{commit!r} is no commit hash: 40 hexadecimal digits, or at least the first 7 of them")
    history = cache / _folder_name(url) / "history.git"
    history.parent.mkdir(parents=True, exist_ok=True)
    with locked(history.with_name("history.lock")):
        found = _beginning_with(commit, history) if history.is_dir() else []
        if not found:
            _fetch_history(url, history)
            found = _beginning_with(commit, history)
    if not found:
        raise UserError(f"{commit!r} begins the hash of no commit on a branch or tag of {url}: give the whole hash")
    if len(found) > 1:
        raise UserError(f"{commit!r} begins the hashes of several commits of {url}: {', '.join(found)}")
    return found[0]


def _beginning_with(short: str, history: Path) -> list[str]:
    names = _git(history, "rev-parse", f"--disambiguate={short}").split()
    return [name for name in names if _git(history, "cat-file", "-t", name) == "commit"]


def _fetch_history(url: str, history: Path) -> None:
    """Fetch all commits, without files; what is there already is not fetched again."""
    history.mkdir(exist_ok=True)
    _git(history, "init", "--quiet", "--bare")
    _git(history, "config", "remote.origin.url", url)
    _git(history, "fetch", "--quiet", "--filter=tree:0", "--no-tags", "origin", *_BRANCHES_AND_TAGS)


def _make(url: str, commit: str, folder: Path) -> None:
    """Make the checkout in a folder beside it, which takes its name when it is whole."""
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
    """Make all below `root` read-only, but not `root` itself, since a folder that is renamed must be writable."""
    for path, _, names in os.walk(root):
        for name in names:
            file = Path(path, name)
            if not file.is_symlink():
                file.chmod(file.stat().st_mode & 0o555)
        if path != str(root):
            Path(path).chmod(0o555)


def _git(folder: Path, *arguments: str) -> str:
    """Run git and return what it prints, without the last line's end. Raises `InfrastructureError`."""
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
        raise InfrastructureError("git is not installed: apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"git {arguments[0]} took more than {TIMEOUT:.0f} seconds") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise InfrastructureError(f"git {' '.join(arguments)} failed: {said}")
    return done.stdout.decode(errors="replace").strip()


def _folder_name(url: str) -> str:
    """Join the end of an address, for people, and a hash of the whole."""
    readable = re.sub(r"[^\w.-]+", "-", "-".join(url.removesuffix(".git").rsplit("/", 2)[-2:])).strip("-.")
    return f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


# Bring a corpus onto this machine, from the Hugging Face Hub or by Git, where task sets are then read offline.
#
# What is written is the corpus's own records, unchanged, to the place where its loader looks:
# `corpora/NAME/SPLIT.jsonl`, or the clone `corpora/NAME`. It appears there when it is whole. A download that was
# interrupted goes on: `datasets` keeps the files that it has in its own cache.
Shown = Callable[[Iterable[Any], int], Iterable[Any]]  # records and their number -> the same records


def _unseen(records: Iterable[Any], total: int) -> Iterable[Any]:
    return records


def fetch(corpus: Corpus, split: str, folder: Path, *, source: str = "", shown: Shown = _unseen) -> Path:
    """Return the file or clone of one split, brought unless it is there.

    source: in place of the Hub, a folder that holds a copy of the data set. shown: passes the records through, and may
    show how far they are. Raises `UserError` where it can't be had, `InfrastructureError` where Git fails.
    """
    part = corpus.split(split)
    if corpus.brought_by:
        raise UserError(f"{corpus.title} is fetched by `{corpus.brought_by}`, in the folder {folder}")
    if not part.dataset:
        return _clone(corpus, folder)
    there = local_file(folder, split)
    if there is not None:
        return there
    records = _records(f"{corpus.name}:{split}", part, source)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.jsonl"
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{split}-", suffix=".part", delete=False) as file:
        unfinished = Path(file.name)
        try:
            for record in shown(records, len(records)):
                file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            unfinished.chmod(0o644)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return path


def _records(name: str, part: Split, source: str) -> Any:
    """Load a `datasets.Dataset`. Raises `UserError` where it can't be had."""
    if find_spec("datasets") is None:
        raise UserError(f"{name} is fetched by the package `datasets`: pip install 'slime-swe[corpora]'")
    import datasets

    given = str(Path(source).expanduser()) if source else part.dataset
    try:
        return datasets.load_dataset(given, part.configuration or None, split=part.dataset_split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(f"{error}".split())[:300]
        raise UserError(
            f"{name} could not be had from {given}: {reason}. Without a network: on a machine that is online,\n"
            f"  hf download --repo-type dataset {part.dataset} --local-dir DIR\n"
            f"and here, with that folder: slime-swe tasks fetch {name} --from DIR"
        ) from error


def _clone(corpus: Corpus, folder: Path) -> Path:
    """Clone the repository at the commit that the loader was written for."""
    if folder.is_dir() and any(folder.iterdir()):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as unfinished:
        place = Path(unfinished, "clone")
        for command in (("clone", "--quiet", corpus.home, str(place)), ("-C", str(place), "checkout", "--quiet",
                                                                         corpus.commit)):  # fmt: skip
            done = subprocess.run(["git", *command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode:
                said = done.stderr.decode(errors="replace").strip()
                raise InfrastructureError(f"`git {' '.join(command)}` failed: {said}")
        if folder.is_dir():
            folder.rmdir()
        place.rename(folder)
    return folder
