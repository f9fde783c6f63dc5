"""Apply a patch in a sandbox of the task's image, by the commands that the harness tries, in its order.

Nothing that the policy wrote has run in that sandbox. Two things differ from the harness. Changes that `rewards.guard`
names are ignored, unless the gold patch changes the same file. And GNU patch, which accepts more than git, gets no
patch that names a path in `.git` or behind a link of the repository, makes a link, or holds what could be a command of
an ed script, indented or not.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath

from slime_swe.data_sources.task import HarnessOracle
from slime_swe.patches import PatchError, header_paths, require_few_folders
from slime_swe.rewards.grade import GraderError
from slime_swe.rewards.guard import Guard, folders_of
from slime_swe.rewards.room import put, speaks_of_a_full_disk
from slime_swe.rollout.sandbox.base import ExecResult, Sandbox

PATCH = "/tmp/patch.diff"
_GIT = "git -c safe.directory='*'"
_BY_GIT = ("apply --verbose", "apply --verbose --3way", "apply --verbose --reject")
_BY_PATCH = "patch --batch --forward --fuzz=5 -p1 -i"
# A link, or a whole line that GNU patch takes for a command of ed (its pch.c, `get_ed_command_letter`).
_BY_GIT_ALONE = re.compile(
    r"^[ \tX]*(new (file )?mode 120000|\d+(,\d+)?([acdi]|s/\.//)[ \t\r]*$)", re.MULTILINE | re.ASCII
)
_RESET = f"{_GIT} checkout -- . ; {_GIT} clean -fd"
_LIST = f"{_GIT} ls-files --stage -z"
_LINK = "120000"  # its mode
_GUARDED, _KEPT = "/tmp/.guarded", "/tmp/.kept"  # the paths of guarded files; those files as the image has them
_SECONDS = 300.0  # for guarded files to be kept or put back


@dataclass(frozen=True)
class Applied:
    """command: the first that took the patch. ignored: the paths at which it counts for nothing."""

    command: str
    ignored: list[str]


async def apply_in(sandbox: Sandbox, oracle: HarnessOracle, patch: str) -> Applied:
    """Raises `PatchError` where no command takes the patch, or what it did can't be undone where it has to be;
    `GraderError` where the repository can't be read; `UnwrittenError`."""
    try:
        content = patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise PatchError(f"the patch is no text: {error}") from error
    await put(sandbox, PATCH, content)
    listed = await sandbox.exec(_LIST)
    if listed.exit_code != 0 or listed.truncated:
        raise GraderError(f"the image's repository can't be listed: {listed.output[-500:]!r}")
    commands, guarded = await asyncio.to_thread(_plan, oracle, patch, listed.output)
    if not guarded:
        return Applied(await _first_that_takes_it(sandbox, commands), [])
    await put(sandbox, _GUARDED, "".join(f"{path}\0" for path in guarded).encode("utf-8", "surrogateescape"))
    kept = await _put_back(sandbox, "keep")
    if kept.exit_code != 0:
        raise GraderError(f"the image's files can't be kept: {_tail(kept)}")
    command = await _first_that_takes_it(sandbox, commands)
    restored = await _put_back(sandbox, "restore")
    if restored.exit_code != 0:
        raise PatchError(f"the files that are not the patch's to change can't be put back: {_tail(restored)}")
    return Applied(command, sorted(set(filter(None, restored.output.split("\0")))))


def _plan(oracle: HarnessOracle, patch: str, listed: str) -> tuple[list[str], list[str]]:
    """What may be tried on this patch, in this order; the paths to put back, of those that it may name: more than it
    changes. Raises `PatchError`."""
    entries = (entry.partition("\t") for entry in listed.split("\0") if entry)
    modes = {path: about[: len(_LINK)] for about, _, path in entries}
    links = {path for path, mode in modes.items() if mode == _LINK}
    paths, guard = header_paths(patch), Guard(modes, oracle.protected)
    require_few_folders(paths)
    behind = _behind(links, paths)  # no file that git would change
    named = paths - behind - header_paths(oracle.gold_patch)
    guarded = sorted(path for path in named if guard(path) and ".." not in PurePosixPath(path).parts)
    return _commands(patch, paths, by_git_alone=bool(behind)), guarded


def _behind(links: Collection[str], paths: Collection[str]) -> set[str]:
    return {path for path in paths if not folders_of(path).isdisjoint(links)} if links else set()


def _commands(patch: str, paths: Collection[str], *, by_git_alone: bool = False) -> list[str]:
    by_git = [f"{_GIT} {way}" for way in _BY_GIT]
    in_git = any(part.lower() == ".git" for path in paths for part in PurePosixPath(path).parts)
    return by_git if by_git_alone or in_git or _BY_GIT_ALONE.search(patch) else [*by_git, _BY_PATCH]


async def _first_that_takes_it(sandbox: Sandbox, commands: Collection[str]) -> str:
    said: list[str] = []
    for command in commands:
        if said:
            await sandbox.exec(_RESET)  # a failed attempt leaves what it had done by then
        result = await sandbox.exec(f"{command} {PATCH}")
        if result.exit_code == 0:
            return command
        said.append(_tail(result))
    if (await sandbox.exec(f"{_GIT} apply --check --reverse {PATCH}")).exit_code == 0:
        return "all of them together"  # the last one's leavings are the whole patch, as the harness checks too
    raise PatchError(next(filter(speaks_of_a_full_disk, said), said[-1]))


def _tail(result: ExecResult) -> str:
    return result.output[-2_000:].strip()


async def _put_back(sandbox: Sandbox, what: str) -> ExecResult:
    """`keep` or `restore`, as the script says."""
    script = resources.files(__package__).joinpath("put_back.sh").read_text(encoding="utf-8")
    command = shlex.join(["bash", "-c", script, "put_back", what, _GUARDED, _KEPT])
    return await sandbox.exec(command, timeout=_SECONDS)
