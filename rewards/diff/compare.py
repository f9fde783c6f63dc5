"""Compare a patch with a task's gold patch, file by file. Nothing of the patch is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slime_swe.data_sources.task import Task
from slime_swe.patches import Change, PatchError, apply_patch, read_patch
from slime_swe.rewards.diff.grams import shared_runs
from slime_swe.rewards.diff.published import swe_rl
from slime_swe.rewards.diff.similarity import Work, similarity


@dataclass(frozen=True)
class Comparison:
    """gold, answer: the files that each changes. similarities: of each file that both change, 0 to 1, and 1 where both
    leave the same. same: whether the patches leave the same files."""

    similarities: Mapping[str, float]
    gold: set[str]
    answer: set[str]
    same: bool

    @property
    def likeness(self) -> float:
        """0 to 1: the mean over the files that either changes."""
        return swe_rl(self.similarities, self.gold, self.answer) if self.gold | self.answer else 0.0


def compare(task: Task, patch: str) -> Comparison:
    """Changes of the oracle's protected files count for nothing. Raises `PatchError` where the patch can't be applied.

    The text that is compared of a file is that of its hunks, without names and line numbers.
    """
    wanted, given = (_side(task, text) for text in (task.oracle.gold_patch, patch))
    work = Work()
    similarities = {
        path: 1.0 if wanted.left[path] == given.left[path] else similarity(given.text(path), wanted.text(path), work)
        for path in sorted(wanted.left.keys() & given.left.keys())
    }
    same = wanted.left == given.left and bool(wanted.left)  # a gold patch of protected files alone asks for nothing
    return Comparison(similarities, {*wanted.left}, {*given.left}, same)


def likeness(task: Task, patch: str) -> float:
    """0 to 1, of any task that has a gold patch; 0 for a patch that can't be applied."""
    try:
        return compare(task, patch).likeness
    except PatchError:
        return 0.0


def written_alike(task: Task, patch: str) -> float:
    """0 to 1: the runs of tokens that both patches add to the same files. Raises as `compare` does."""
    wanted, given = (_side(task, text) for text in (task.oracle.gold_patch, patch))
    return shared_runs(given.added(), wanted.added())


@dataclass(frozen=True)
class _Side:
    """left: each file that a patch changes -> what it leaves of it: the content, None where it is deleted; the hunks,
    of an image's files, whose contents are not known."""

    left: Mapping[str, object]
    changes: Mapping[str, list[Change]]

    def text(self, path: str) -> str:
        changes = self.changes.get(path, [])
        return "".join(f"@@\n{''.join(hunk.lines)}" for change in changes for hunk in change.hunks)

    def added(self) -> dict[str, str]:
        """Of each file the lines that are added, without context."""
        return {
            path: "".join(
                line[1:]
                for change in self.changes.get(path, [])
                for hunk in change.hunks
                for line in hunk.lines
                if line.startswith("+")
            )
            for path in self.left
        }


def _side(task: Task, patch: str) -> _Side:
    by_path: dict[str, list[Change]] = {}
    for change in read_patch(patch):
        by_path.setdefault(change.path, []).append(change)
    left = _left_of_image(by_path) if task.workspace.image else _left_of_files(task, patch)
    return _Side({path: what for path, what in left.items() if path not in task.oracle.protected}, by_path)


def _left_of_files(task: Task, patch: str) -> dict[str, object]:
    after = apply_patch(task.workspace.files, patch)
    before = apply_patch(task.workspace.files, "")
    return {path: after.get(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _left_of_image(changes: Mapping[str, list[Change]]) -> dict[str, object]:
    return {
        path: [(change.new_path, change.only_stated, [hunk.lines for hunk in change.hunks]) for change in found]
        for path, found in changes.items()
    }
