"""Tasks for agents that make tasks: change this module so that its tests notice. What comes of it may be a candidate.

Two requests: a feature whose addition breaks a test (Sonwane et al., "BugPilot", 2025), and a fault that the same
policy then repairs (Wei et al., "Self-play SWE-RL", 2025).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from slime_swe import syntax
from slime_swe.data_sources.factory.packages import Candidate, Package, changed_spans
from slime_swe.data_sources.task import Oracle, Task, Workspace
from slime_swe.patches import PatchError, apply_patch, reverse_patch

PREFIX = "write"
MOST_LINES = 80  # that a fault or a feature may change
_REQUESTS = {
    "fault": "Put a fault into `{path}` that is hard to find: change its behaviour in a case that the tests cover, "
    "without a comment or a name that gives it away.",
    "feature": "Add a small feature to `{path}`, one that its users could want, in at most a few functions. Carry it "
    "out as a hurried developer would: an existing behaviour changes on the way, and a test notices.",
}
_RULES = """

At least one of the tests of {name} must fail afterwards, and at least half of them must pass. The code must compile, \
and at most {lines} lines may change. Do not change the tests. Run them by

    {command}
"""


@dataclass(frozen=True)
class WrittenOracle(Oracle):
    """Grades a change by what it breaks: one of `tests` or more must fail, and at least half of them must pass.

    tests: those that pass without a change. most_lines: added and removed lines of a patch, at most.
    """

    kind: ClassVar[str] = "written"
    grader: ClassVar[str] = "slime_swe.rewards.written.try_patch"

    fail_to_pass: tuple[str, ...] = ("a test fails",)
    tests: tuple[str, ...] = ()
    most_lines: int = MOST_LINES

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if not self.tests:
            yield "tests must be at least one test, got []"
        if not self.command.strip():
            yield "command must be what runs the tests, got ''"


def requests_of(tasks: Sequence[Task]) -> list[Task]:
    """Make two requests for each file, from proven tasks with one fault each. Their tests are those of all its faults,
    and their gold patch is the fault that fails the fewest; there are none where it fails more than half."""
    found = [task for task in tasks if task.source == "factory-faults" and len(task.metadata["files"]) == 1]
    return [
        request
        for (name, version, path), group in groupby(sorted(found, key=_by_file), key=_by_file)
        for request in _requests(name, version, path, list(group))
    ]


def _by_file(task: Task) -> tuple[str, str, str]:
    return task.metadata["repo"], task.metadata["version"], task.metadata["files"][0]


def _requests(name: str, version: str, path: str, tasks: list[Task]) -> Iterator[Task]:
    first = min(tasks, key=lambda task: (len(task.oracle.fail_to_pass), task.id))
    named = dict.fromkeys(test for task in tasks for test in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass))
    if 2 * len(first.oracle.fail_to_pass) > len(named):
        return
    fixed = apply_patch(first.workspace.files, first.oracle.gold_patch)
    files = {**first.workspace.files, path: fixed[path].decode()}
    oracle = WrittenOracle(
        protected=first.oracle.protected,
        command=_command(first.oracle.command, named),
        gold_patch=reverse_patch(first.oracle.gold_patch),
        timeout_seconds=first.oracle.timeout_seconds,
        tests=tuple(named),
    )
    rules = _RULES.format(name=name, lines=MOST_LINES, command=oracle.command)
    metadata = {"repo": name, "version": version, "kind": "written"}
    for what, request in _REQUESTS.items():
        yield Task(
            f"{PREFIX}-{what}-{name}-{version}-{path}",
            request.format(path=path) + rules,
            Workspace(files),
            replace(oracle),
            "factory-written",
            "train",
            {**metadata, "request": what},
        )


def _command(command: str, tests: Iterable[str]) -> str:
    """Write the command with these tests, each function once, in place of those that it names."""
    words = [word for word in shlex.split(command) if "::" not in word]
    return shlex.join([*words, *dict.fromkeys(test.partition("[")[0] for test in tests)])


def written_candidates(package: Package, patches: Sequence[tuple[str, str]]) -> list[Candidate]:
    """Make candidates of what agents wrote. patches: (the request's id, what an agent made of it). Those of other
    packages, those that do not apply or compile, and changes of other files than code are left out."""
    found = []
    for name, patch in patches:
        for what in _REQUESTS:
            if name.startswith(f"{PREFIX}-{what}-{package.label}-") and (changes := _changes(package, patch)):
                spans = [
                    span
                    for path, text in changes.items()
                    for span in changed_spans(path, text, package.files.get(path))
                ]
                found.append(Candidate(package, "written", f"written_{what}", changes, tuple(spans)))
    return found


def _changes(package: Package, patch: str) -> dict[str, str | None]:
    try:
        after = apply_patch(package.files, patch)
        texts = {path: content.decode() for path, content in after.items() if path.endswith(".py")}
        changes = {path: texts[path] for path in package.code if path in texts and texts[path] != package.files[path]}
        for text in changes.values():
            syntax.parse(text)
    except (PatchError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return {}
    return dict(changes)
