"""Grade a patch by its likeness to the gold patch: the oracle of kind `diff`."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from slime_swe.data_sources.diff import DiffOracle
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.patches import Change, PatchError, apply_patch, read_patch
from slime_swe.patches.unified import split_lines
from slime_swe.rewards.grade import GradingSettings, Trial
from slime_swe.sandbox.base import Sandboxes


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """Grade a patch, which is right where both patches leave the same files. Correctness and quality are apart: the
    quality of a patch that is not right grows with its likeness up to 1, which is what a right one has. Raises
    `PatchError`, and `UserError` where cydifflib is not installed."""
    require_cydifflib()
    found, worth = await asyncio.to_thread(_compared, task, patch)
    files = len(found.similarities) / max(len(found.gold), len(found.answer), 1)
    log = "".join(f"{path}: {share:.4f}\n" for path, share in found.similarities.items())
    log += "".join(f"{path}: only the gold patch changes it\n" for path in sorted(found.gold - found.answer))
    log += "".join(f"{path}: the gold patch does not change it\n" for path in sorted(found.answer - found.gold))
    components = {"similarity": found.likeness, "file_match": files}
    return Trial(
        {"same_as_gold": found.same}, found.same, log, quality=1.0 if found.same else worth, components=components
    )


def _compared(task: Task, patch: str) -> tuple[Comparison, float]:
    """Compare a patch with the gold patch, and return also the quality that it has if it is not right."""
    oracle = task.oracle
    assert isinstance(oracle, DiffOracle), oracle
    found = compare(task, patch)
    if not found.answer:
        return found, oracle.refused_quality
    if oracle.reward == "tokens":
        return found, written_alike(task, patch)
    return found, quality(oracle, found.similarities, found.gold, found.answer)


@dataclass(frozen=True)
class Comparison:
    """The comparison of a patch with the gold patch. gold, answer: the files that each changes. similarities: of each
    file that both change, 0 to 1, and 1 where both leave the same. same: whether the patches leave the same files."""

    similarities: Mapping[str, float]
    gold: set[str]
    answer: set[str]
    same: bool

    @property
    def likeness(self) -> float:
        """The mean similarity over the files that either changes, 0 to 1."""
        return swe_rl(self.similarities, self.gold, self.answer) if self.gold | self.answer else 0.0


# Two published rewards of a patch by its likeness to the gold patch, after the papers alone.
Similarities = Mapping[str, float]  # of each file that both patches change, 0 to 1


def swe_rl(similarities: Similarities, gold: set[str], answer: set[str]) -> float:
    """Return the mean similarity over all files that either changes, 0 for one that only one of them does. An answer
    that is no patch is worth -1 (`DiffOracle.refused_quality`). SWE-RL, arXiv:2502.18449."""
    return sum(similarities.values()) / len(gold | answer)


def code_repair_rl(similarities: Similarities, gold: set[str], answer: set[str], oracle: DiffOracle) -> float:
    """Return the weighted sum of two shares of the larger number of files that one of them changes: the similarities of
    those that both change, and the number of these. The weights are the oracle's, and ours by default."""
    most = max(len(gold), len(answer))
    return (oracle.similarity_weight * sum(similarities.values()) + oracle.files_weight * len(similarities)) / most


def quality(oracle: DiffOracle, similarities: Similarities, gold: set[str], answer: set[str]) -> float:
    """Return the quality by the reward that the oracle names; 0 where neither patch changes a file."""
    if not gold | answer:
        return 0.0
    if oracle.reward == "swe_rl":
        return swe_rl(similarities, gold, answer)
    return code_repair_rl(similarities, gold, answer, oracle)


def compare(task: Task, patch: str) -> Comparison:
    """Compare a patch with the gold patch. Changes of the oracle's protected files count for nothing. Raises
    `PatchError` where the patch can't be applied.

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


# The likeness of two texts: difflib's ratio, in bounded time.
MAX_CHARACTERS = 20_000  # of either text; longer ones are compared by lines
MAX_LINES = 20_000  # of either text; what follows counts as different
MAX_WORK = 400_000_000  # comparisons of two characters or lines: a second or two
_LOOK_UP = 400  # comparisons that take as long as finding where an element stands, at worst


@dataclass
class Work:
    """The comparisons that one answer may still take."""

    left: int = MAX_WORK


def similarity(a: str, b: str, work: Work | None = None) -> float:
    """Return `difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()`: twice what matches over what there is.

    The ratio is 0 to 1, and of characters; it is of whole lines, each of which counts by its characters, where a text
    has more than `MAX_CHARACTERS`, or where characters would take more than half of `work`. What lines would take
    beyond it counts as different. The result is the same everywhere, as no clock decides. Raises `UserError` where
    cydifflib is not installed.
    """
    work = work or Work()
    if a == b:
        return 1.0
    if max(len(a), len(b)) <= MAX_CHARACTERS:
        matched, whole = _matched(a, b, [1] * len(a), Work(work.left // 2))
        if whole:
            return 2.0 * matched / (len(a) + len(b))
    numbers: dict[str, int] = {}  # small numbers are compared faster than lines
    lines_a, lines_b = (split_lines(text)[:MAX_LINES] for text in (a, b))
    numbers_a, numbers_b = ([numbers.setdefault(line, len(numbers)) for line in lines] for lines in (lines_a, lines_b))
    matched, _ = _matched(numbers_a, numbers_b, [*map(len, lines_a)], work)
    return 2.0 * matched / (len(a) + len(b))


def _matched(
    a: Sequence[str] | Sequence[int], b: Sequence[str] | Sequence[int], sizes: Sequence[int], work: Work
) -> tuple[int, bool]:
    """Return how much matches, in the sizes of `a`'s elements, and whether that is all: False where no work was left
    for the rest.

    Matches are found as `SequenceMatcher.get_matching_blocks` does: the longest, then what is left and right of it. A
    search for one compares each element of its part of `a` with all equal ones of `b` that are not behind its part.
    """
    matcher = _matcher()(None, a, b, autojunk=False)
    counts = Counter(b)
    before = [0, *accumulate(counts[element] + _LOOK_UP for element in a)]
    until = [0, *accumulate(sizes)]
    parts, matched = [(0, len(a), 0, len(b))], 0
    while parts:
        a_from, a_to, b_from, b_to = parts.pop()
        work.left -= before[a_to] - before[a_from] + _LOOK_UP
        if work.left < 0:
            return matched, False
        i, j, size = matcher.find_longest_match(a_from, a_to, b_from, b_to)
        if not size:
            continue
        matched += until[i + size] - until[i]
        if a_from < i and b_from < j:
            parts.append((a_from, i, b_from, j))
        if i + size < a_to and j + size < b_to:
            parts.append((i + size, a_to, j + size, b_to))
    return matched, True


def require_cydifflib() -> None:
    """Raise `UserError` where cydifflib, which compares texts, is not installed."""
    _matcher()


def _matcher() -> Any:
    try:
        from cydifflib import SequenceMatcher
    except ImportError as error:
        raise UserError("texts are compared by cydifflib: pip install 'slime-swe[diff]'") from error
    return SequenceMatcher


# Compare a patch with a task's gold patch, file by file. Nothing of the patch is run.
def likeness(task: Task, patch: str) -> float:
    """Return the likeness of a patch to the gold patch of any task, 0 to 1; 0 for one that can't be applied."""
    try:
        return compare(task, patch).likeness
    except PatchError:
        return 0.0


def written_alike(task: Task, patch: str) -> float:
    """Return the share of token runs that both patches add to the same files, 0 to 1. Raises as `compare` does."""
    wanted, given = (_side(task, text) for text in (task.oracle.gold_patch, patch))
    return shared_runs(given.added(), wanted.added())


# The likeness of two pieces of code, by runs of tokens as BLEU counts them (Papineni et al., 2002).
#
# A constant, a returned argument and a quotation share no run with code that does something: unlike a ratio of
# characters, the measure gives them nothing.
GRAM = 4  # tokens of a run
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\\?\Z)'  # to the end where none closes it, so that nothing is looked through twice
    r"|'''(?:\\.|[^\\])*?(?:'''|\\?\Z)"
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'(?:\\.|[^'\\\n])*'?"
    r"|\#[^\n]*|\w+|[^\w\s]",
    re.DOTALL,
)


def shared_runs(a: Mapping[str, str], b: Mapping[str, str]) -> float:
    """Return twice the runs of `GRAM` tokens that both have in one file over all of both, 0 to 1; 0 where neither has
    any. Both are texts by their paths. A string is one token, and Python's comments count for nothing."""
    left, right = _runs(a), _runs(b)
    every = left.total() + right.total()
    return 2 * (left & right).total() / every if every else 0.0


def _runs(texts: Mapping[str, str]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for path, text in texts.items():
        tokens = [token for token in _TOKEN.findall(text) if not token.startswith("#")]
        found.update((path, *tokens[first : first + GRAM]) for first in range(len(tokens) - GRAM + 1))
    return found


@dataclass(frozen=True)
class _Side:
    """The effect of one patch. left: each file that it changes -> what it leaves of it: the content, None where it is
    deleted; the hunks, of an image's files, whose contents are not known."""

    left: Mapping[str, object]
    changes: Mapping[str, list[Change]]

    def text(self, path: str) -> str:
        changes = self.changes.get(path, [])
        return "".join(f"@@\n{''.join(hunk.lines)}" for change in changes for hunk in change.hunks)

    def added(self) -> dict[str, str]:
        """Return the lines that are added to each file, without context."""
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
        path: [
            (
                *(change.old_path, change.new_path, change.copied, change.new_mode if change.old_path else ""),
                *(change.binary and change.binary.forward, [*_edits(change)]),
            )
            for change in found
        ]
        for path, found in changes.items()
    }


def _edits(change: Change) -> Iterator[tuple[int, str]]:
    """Yield each line that is removed or added with the number that the next line of the old file has there, without
    context, of which patches may show more or less."""
    for hunk in change.hunks:
        at = hunk.old_start + (not hunk.old)
        for line in hunk.lines:
            if line[0] != " ":
                yield at, line
            at += line[0] != "+"
