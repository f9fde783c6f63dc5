"""Apply a patch in a sandbox of the task's image, by the commands that the harness tries, in its order.

Nothing that the policy wrote has run in that sandbox. Two things differ from the harness. Changes that `rewards.guard`
names are ignored, unless the gold patch changes the same file. And GNU patch, which accepts more than git, gets no
patch that names a path in `.git`, makes a link, or holds what could be a command of an ed script, indented or not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from slime_swe.data_sources.task import HarnessOracle
from slime_swe.patches import PatchError, header_paths
from slime_swe.rewards.grade import GraderError
from slime_swe.rewards.guard import Guard
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
_LIST = f"{_GIT} ls-files -z"
_KEPT = "/tmp/.kept"  # guarded files, as the image has them


@dataclass(frozen=True)
class Applied:
    """command: the first that took the patch. ignored: the paths at which it counts for nothing."""

    command: str
    ignored: list[str]


async def apply_in(sandbox: Sandbox, oracle: HarnessOracle, patch: str) -> Applied:
    """Raises `PatchError` where no command takes the patch, `GraderError` where the repository can't be read."""
    try:
        await sandbox.write_file(PATCH, patch.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise PatchError(f"the patch is no text: {error}") from error
    paths = header_paths(patch)
    commands = _commands(patch, paths)
    guarded = _guarded(oracle, paths, await _names(sandbox))
    if not guarded:
        return Applied(await _first_that_takes_it(sandbox, commands), [])
    await _run(sandbox, _keep(guarded))
    command = await _first_that_takes_it(sandbox, commands)
    changed = await _run(sandbox, _put_back(guarded))
    return Applied(command, list(filter(None, changed.split("\0"))))


async def _names(sandbox: Sandbox) -> frozenset[str]:
    result = await sandbox.exec(_LIST)
    if result.exit_code != 0 or result.truncated:
        raise GraderError(f"the image's repository can't be listed: {result.output[-500:]!r}")
    return frozenset(filter(None, result.output.split("\0")))


def _guarded(oracle: HarnessOracle, paths: Collection[str], names: Collection[str]) -> list[str]:
    """The paths to put back, of those that the patch may name: more than it changes."""
    guard, gold = Guard(names, oracle.protected), header_paths(oracle.gold_patch)
    return sorted(path for path in paths if guard(path) and path not in gold and ".." not in PurePosixPath(path).parts)


def _commands(patch: str, paths: Collection[str]) -> list[str]:
    """What may be tried on this patch, in this order."""
    by_git = [f"{_GIT} {way}" for way in _BY_GIT]
    in_git = any(part.lower() == ".git" for path in paths for part in PurePosixPath(path).parts)
    return by_git if in_git or _BY_GIT_ALONE.search(patch) else [*by_git, _BY_PATCH]


async def _first_that_takes_it(sandbox: Sandbox, commands: Collection[str]) -> str:
    result = None
    for command in commands:
        if result is not None:
            await sandbox.exec(_RESET)  # a failed attempt leaves what it had done by then
        result = await sandbox.exec(f"{command} {PATCH}")
        if result.exit_code == 0:
            return command
    if (await sandbox.exec(f"{_GIT} apply --check --reverse {PATCH}")).exit_code == 0:
        return "all of them together"  # the last one's leavings are the whole patch, as the harness checks too
    raise PatchError(_tail(result))


def _tail(result: ExecResult | None) -> str:
    return "" if result is None else result.output[-2_000:].strip()


def _keep(guarded: Collection[str]) -> str:
    kept = f'[ ! -e "$path" ] || cp -a --parents -- "$path" {_KEPT} || exit 1'
    return f"mkdir -p {_KEPT} && for path in {shlex.join(guarded)}; do {kept}; done"


def _put_back(guarded: Collection[str]) -> str:
    """It prints the paths that have changed, each with a NUL after it."""
    there = f'[ -e "$path" ] || [ -L "$path" ] || [ -e "{_KEPT}/$path" ]'
    changed = f'cmp -s -- "$path" "{_KEPT}/$path" || printf \'%s\\0\' "$path"'
    one = f'if {there}; then {changed}; fi; rm -rf -- "$path" || exit 1'
    return f"for path in {shlex.join(guarded)}; do {one}; done && cp -a {_KEPT}/. ."


async def _run(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(command)
    if result.exit_code != 0:
        raise GraderError(f"the grader's files can't be put back: {_tail(result)}")
    return result.output
