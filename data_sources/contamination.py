"""Find what training and evaluation tasks have in common: a solve rate on tasks seen in training says nothing.

Four comparisons, each of every evaluation task with every training task:

- instance: the same id;
- commit: the same repository at the same commit;
- statement: of word n-grams (n = 13, as GPT-3's authors compared their data, arXiv:2005.14165, appendix C), the overlap
  coefficient |A ∩ B| / min(|A|, |B|) is at least 0.5. N-grams that occur in three evaluation tasks or more are left
  out: they are the template of an issue form or of a generator, and distinguish no tasks. A statement of 8 to 12 words
  is one n-gram; a shorter one is not compared.
- patch: of the lines that the gold patch adds and removes (or what the oracle has for that, `Oracle.compared`), with
  their file's name and without white space, the Jaccard index |A ∩ B| / |A ∪ B| is at least 0.5. Lines without two
  letters or digits, such as a bracket, are left out.

Not found: an issue in other words, a fix translated to another language, a bug that was reported twice and fixed in
different places, and what the base model was trained on.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.patches import PatchError, changed_lines

N = 13
SHORTEST = 8  # words
THRESHOLD = 0.5
TEMPLATE = 3  # evaluation tasks
_WORD = re.compile(r"\w+")
_COMMIT = 7  # digits that the shortest hash in any corpus has


class ContaminationError(UserError):
    """Training and evaluation tasks overlap; the message lists them and says how one is allowed."""


@dataclass(frozen=True)
class Overlap:
    """One evaluation task that training shows. `how`: instance, commit, statement or patch; `share` in (0, 1]."""

    evaluated: str
    trained: str
    how: str
    share: float

    def __str__(self) -> str:
        share = "" if self.share == 1.0 else f" {self.share:.0%}"
        return f"{self.evaluated}: same {self.how}{share} as {self.trained} in training"


def find_overlaps(training: Sequence[Task], evaluation: Sequence[Task]) -> list[Overlap]:
    """Find every pair that has something in common, by the evaluation task's order; of one pair only the first finding.

    Takes time in proportion to the text of both sets, not to their product.
    """
    evaluated = list({task.id: task for task in evaluation}.values())
    found: dict[tuple[str, str], Overlap] = {}
    for compare in (_instances, _commits, _statements, _patches):
        for overlap in compare(training, evaluated):
            found.setdefault((overlap.evaluated, overlap.trained), overlap)
    order = {task.id: number for number, task in enumerate(evaluated)}
    return sorted(found.values(), key=lambda overlap: (order[overlap.evaluated], overlap.trained))


def require_clean(overlaps: Iterable[Overlap], allowed: Sequence[str]) -> list[Overlap]:
    """Return the overlaps that are allowed: the evaluation task's id is one of these names, or fits a pattern with `*`.

    Raises `ContaminationError` with those that are not, and for a name that allows nothing.
    """
    overlaps = list(overlaps)
    refused = [overlap for overlap in overlaps if not _is_allowed(overlap, allowed)]
    if refused:
        listed = "\n".join(f"  {overlap}" for overlap in refused[:20])
        more = f"\n  … and {len(refused) - 20} more" if len(refused) > 20 else ""
        tasks = list(dict.fromkeys(overlap.evaluated for overlap in refused))
        raise ContaminationError(
            f"training would show {len(tasks)} of the evaluation's tasks:\n{listed}{more}\n"
            "Take them out of data.train or data.eval (SET?ids=FILE, SET?repo=OWNER/NAME), or allow them by name: "
            f"'data.allow_overlap=[{','.join(tasks)}]'"
        )
    idle = [name for name in allowed if not any(fnmatchcase(overlap.evaluated, name) for overlap in overlaps)]
    if idle:
        raise ContaminationError(f"data.allow_overlap names what does not overlap: {', '.join(idle)}; leave it out")
    return overlaps


def _is_allowed(overlap: Overlap, allowed: Sequence[str]) -> bool:
    return any(fnmatchcase(overlap.evaluated, name) for name in allowed)


def _instances(training: Sequence[Task], evaluation: Sequence[Task]) -> Iterator[Overlap]:
    trained = {task.id.lower(): task.id for task in training}
    for task in evaluation:
        if task.id.lower() in trained:
            yield Overlap(task.id, trained[task.id.lower()], "instance", 1.0)


def _commits(training: Sequence[Task], evaluation: Sequence[Task]) -> Iterator[Overlap]:
    """Yield overlaps of the same commit. Hashes that are cut short are compared as far as they go."""
    trained: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for task in training:
        if place := _place(task):
            trained[place[0], place[1][:_COMMIT]].append((place[1], task.id))
    for task in evaluation:
        if place := _place(task):
            for commit, name in trained.get((place[0], place[1][:_COMMIT]), ()):
                if commit.startswith(place[1]) or place[1].startswith(commit):
                    yield Overlap(task.id, name, "commit", 1.0)


def _place(task: Task) -> tuple[str, str] | None:
    repo, commit = task.metadata.get("repo"), task.metadata.get("base_commit")
    known = isinstance(repo, str) and isinstance(commit, str) and len(commit) >= _COMMIT
    return (str(repo).lower(), str(commit).lower()) if known else None


def _statements(training: Sequence[Task], evaluation: Sequence[Task]) -> Iterator[Overlap]:
    sets = {task.id: ngrams(task.statement) for task in evaluation}
    times = Counter(gram for grams in sets.values() for gram in grams)
    templates = {gram for gram, count in times.items() if count >= TEMPLATE}
    own = {name: grams - templates for name, grams in sets.items()}
    yield from _similar(own, training, lambda task: ngrams(task.statement) - templates, _smaller, "statement")


def ngrams(text: str) -> set[Hashable]:
    """Return the n-grams of a text's lower-case words, as hashes; of 8 to 12 words, the one that they are together."""
    words = _WORD.findall(text.lower())
    if len(words) < SHORTEST:
        return set()
    return {hash(tuple(words[start : start + N])) for start in range(max(1, len(words) - N + 1))}


def _patches(training: Sequence[Task], evaluation: Sequence[Task]) -> Iterator[Overlap]:
    own = {task.id: patch_lines(task.oracle.compared(task.workspace)) for task in evaluation}
    yield from _similar(own, training, lambda task: patch_lines(task.oracle.compared(task.workspace)), _union, "patch")


def patch_lines(patch: str) -> set[Hashable]:
    """Return (file's name, sign and line without white space) of a patch's changes, as far as it can be read."""
    found: set[Hashable] = set()
    with suppress(PatchError):
        for path, line in changed_lines(patch):
            if len(re.findall(r"\w", line)) > 1:
                found.add((path.rpartition("/")[2], re.sub(r"\s+", "", line)))
    return found


def _union(common: int, first: int, second: int) -> int:
    return first + second - common


def _smaller(common: int, first: int, second: int) -> int:
    return min(first, second)


def _similar(
    own: Mapping[str, set[Hashable]],
    training: Sequence[Task],
    features: Callable[[Task], set[Hashable]],
    size: Callable[[int, int, int], int],
    how: str,
) -> Iterator[Overlap]:
    """Yield pairs that share at least the threshold of their features, by an index over the evaluation's."""
    index: dict[Hashable, list[str]] = defaultdict(list)
    for name, found in own.items():
        for feature in found:
            index[feature].append(name)
    for task in training:
        given = features(task)
        common = Counter(name for feature in given & index.keys() for name in index[feature])
        for name, count in common.items():
            share = count / size(count, len(own[name]), len(given))
            if share >= THRESHOLD:
                yield Overlap(name, task.id, how, share)
