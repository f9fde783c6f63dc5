"""A proven candidate as a task: what an agent is asked, how hard that is, and which tasks are nearly the same.

An agent is told which tests fail and how, never what was changed.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slime_swe.data_sources.task import Task
from slime_swe.patches import changed_lines

SHOWN_TESTS = 3
SHOWN_CHARACTERS = 1200  # of one failure
_TELLING = 8  # characters of a line of the fix that would give it away
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_OPENINGS = {
    "faults": "{count} of the tests of {name} {fail}.",
    "releases": "{count} of the tests of {name} {fail}: they expect what the code does not do yet.",
    "written": "{count} of the tests of {name} {fail} since its last change.",
}
_REQUEST = """\
Find out why, and change the code so that they pass and no other test fails. Do not change the tests. Run them by

    {command}
"""


def statement(
    source: str, name: str, failures: Mapping[str, str], command: str, gold_patch: str, files: Collection[str]
) -> str:
    """Write what the agent is asked. failures: test → the end of its output. files: the texts that the agent sees.

    An output is shown only as far as it holds no line that the fix adds and the files lack.
    """
    secret = _secrets(gold_patch, files)
    opening = _OPENINGS[source].format(count=len(failures), name=name, fail="fails" if len(failures) == 1 else "fail")
    parts = [opening]
    for test in list(failures)[:SHOWN_TESTS]:
        text = _ADDRESS.sub("0x…", failures[test])[-SHOWN_CHARACTERS:].strip("\n")
        shown = text and not any(line in text for line in secret)
        parts.append(f"`{test}`\n\n{_indented(text)}" if shown else f"`{test}`")
    if len(failures) > SHOWN_TESTS:
        parts.append(f"and {len(failures) - SHOWN_TESTS} more.")
    return "\n\n".join([*parts, _REQUEST.format(command=command)])


def _secrets(gold_patch: str, files: Collection[str]) -> list[str]:
    added = {line[1:].strip() for _, line in changed_lines(gold_patch) if line.startswith("+")}
    return [line for line in added if len(line) >= _TELLING and not any(line in text for text in files)]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


# The difficulty of a task by its size, and the choice among tasks that are nearly the same.
LEVELS = ("easy", "medium", "hard")
EASY, MEDIUM = 4, 12  # of the measure below, at most
BLATANT = {"NameError", "UnboundLocalError", "AttributeError", "ImportError", "ModuleNotFoundError", "SyntaxError"}
SOLVED_EASY, SOLVED_MEDIUM = 0.7, 0.3  # of a policy's episodes, at least
SIMILAR = 0.9
_FAULTS = "factory-faults"
_SILENT = 3  # lines' worth: a failure that does not name what is wrong
_PLACE = 5  # a further place that is to be found


def size_of(gold_patch: str, places: int, errors: Iterable[str]) -> dict[str, Any]:
    """Return `difficulty`, and what it is taken from: `changed_lines`, `places` (functions or files), `errors` (the
    types of exceptions that end the failing tests). Longer fixes, more places, and failures other than of a missing
    name are harder; the measure is one of ours."""
    lines = sum(bool(line[1:].strip()) for _, line in changed_lines(gold_patch))
    found = sorted(set(errors))
    measure = lines + _PLACE * (places - 1) + (0 if BLATANT.issuperset(found) else _SILENT)
    level = LEVELS[(measure > EASY) + (measure > MEDIUM)]
    return {"difficulty": level, "changed_lines": lines, "places": places, "errors": found}


def by_solve_rate(rate: float) -> str:
    return LEVELS[(rate < SOLVED_EASY) + (rate < SOLVED_MEDIUM)]


def distinct(tasks: Sequence[Task]) -> list[Task]:
    """Drop tasks that are nearly an earlier one: the same tests fail, and what is broken or the fixes are alike."""
    kept: dict[tuple[str, tuple[str, ...]], list[list[str]]] = {}
    chosen = []
    for task in tasks:
        key = str(task.metadata.get("repo")), tuple(sorted(task.oracle.fail_to_pass))
        lines = [line for _, line in changed_lines(task.oracle.gold_patch)]
        if not any(_alike(lines, others) for others in kept.get(key, ())):
            kept.setdefault(key, []).append(lines)
            chosen.append(task)
    return chosen


def _alike(lines: list[str], others: list[str]) -> bool:
    """Say whether the changes are alike, or the lines that are to be written are equal, whatever was wrong."""
    added = [[line for line in one if line.startswith("+")] for one in (lines, others)]
    if added[0] and added[0] == added[1]:
        return True
    return difflib.SequenceMatcher(None, lines, others, autojunk=False).ratio() >= SIMILAR


def balanced(tasks: Sequence[Task], share: float = 1 / 3) -> list[Task]:
    """Return the first tasks of each kind, so that no modifier has more than `share` of all; those of releases and of
    agents are no modifier's. All are kept where there are fewer than 1 / share kinds, since no selection would do."""
    counts = Counter(str(task.metadata["kind"]) for task in tasks if task.source == _FAULTS)
    bound = _bound(counts, len(tasks) - counts.total(), share)
    left = dict.fromkeys(counts, bound)
    return list(_first(tasks, left))


def _bound(counts: Mapping[str, int], others: int, share: float) -> int:
    """Return the most of one kind, as large as it may be; all where none would do."""
    for bound in range(max(counts.values(), default=0), 0, -1):
        if bound <= share * (others + sum(min(count, bound) for count in counts.values())):
            return bound
    return max(counts.values(), default=0)


def _first(tasks: Sequence[Task], left: dict[str, int]) -> Iterator[Task]:
    for task in tasks:
        if task.source == _FAULTS:
            left[task.metadata["kind"]] -= 1
        if task.source != _FAULTS or left[task.metadata["kind"]] >= 0:
            yield task
