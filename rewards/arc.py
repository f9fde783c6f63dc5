"""Grade a program by what it makes of grids. Its hidden outputs are compared here and never enter a sandbox.

A fresh sandbox gets `solution.py`, the inputs and what runs it (`data_sources/arc/tool`), and nothing else of the
workspace. What comes back is read as grids of digits and nothing more: code that forges it can say no more than what it
could return. So it has two guesses an input, and what is said twice, in different ways, counts for nothing.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from slime_swe.data_sources.arc.tasks import ANSWER, TOOL, ArcOracle, Grid, Worth, listed, tool_files, worth
from slime_swe.data_sources.arc.tool.program import ATTEMPTS
from slime_swe.data_sources.task import Task
from slime_swe.rewards.grade import GraderError, GradingSettings, Trial, answer_in
from slime_swe.sandbox.base import ExecResult, Limits, SandboxError, Sandboxes

LONGEST = 20_000  # characters of a program; a longer one is not run
CALL_SECONDS = 4.0  # of CPU time, for one call; a quarter of the oracle's time where that is less
LIMITS = Limits(cpu_seconds=60, wall_seconds=60.0, processes=64, output_bytes=256 << 10)
_COMMAND = f"python3 -E -s -S -B -m {TOOL}.grade"
_CALLS_SHARE = 0.7  # of the oracle's time: the rest is for what starts and ends them
_PROGRAM = re.compile(r"PROGRAM ([01]) ([012]) ([0-9]{1,6}) ([0-9]{1,6})\n")
_GRID = re.compile(r"^GRID ([0-9]{1,3}) ([0-9]{1,30}(?:/[0-9]{1,30}){0,29})$", re.MULTILINE)
_TIMEOUT = re.compile(r'^ERROR [0-9]{1,3} \{"type": "Timeout"', re.MULTILINE)


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """Run the program that the patch leaves, and grade its grids. Raises `PatchError`, `GraderError`."""
    assert isinstance(task.oracle, ArcOracle), task.oracle
    source = await answer_in(task, patch, ANSWER)
    if source is None or len(source) > LONGEST:
        why = "is not there, or is no text" if source is None else f"has more than {LONGEST} characters"
        return _trial(task.oracle, Report(), f"{ANSWER} {why}", well_formed=False)
    result = await _run(task, task.oracle, source, sandboxes)
    report = read_report(result.output)
    return _trial(task.oracle, report, result.output, result=result)


async def _run(task: Task, oracle: ArcOracle, source: str, sandboxes: Sandboxes) -> ExecResult:
    """Run the program, on the test inputs first: they decide, and it may take all the time that there is."""
    asked = {
        "inputs": [listed(pair.input) for pair in (*oracle.test, *oracle.train)],
        "modules": oracle.modules,
        "functions": oracle.functions,
        "seconds": min(CALL_SECONDS, oracle.timeout_seconds / 4),
        "total_seconds": oracle.timeout_seconds * _CALLS_SHARE,
    }
    files = {**tool_files(), ANSWER: source, "inputs.json": json.dumps(asked)}
    try:
        async with sandboxes.open(files, LIMITS) as sandbox:
            return await sandbox.exec(_COMMAND, timeout=oracle.timeout_seconds)
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


@dataclass(frozen=True)
class Report:
    """The report of a program. compiles: whether it is Python. attempts: functions that it defines. unused: variables
    that it never reads. outside: things that it uses and may not. grids: call → what it gave."""

    compiles: bool = False
    attempts: int = 0
    unused: int = 0
    outside: int = 0
    grids: Mapping[int, Grid] | None = None

    def given(self, first: int, count: int) -> list[list[Grid]]:
        """Return what the attempts gave for each of these inputs, without those that gave none."""
        grids, tries = self.grids or {}, range(len(ATTEMPTS))
        calls = [[len(tries) * number + attempt for attempt in tries] for number in range(first, first + count)]
        return [[grids[call] for call in of_input if call in grids] for of_input in calls]


def read_report(output: str) -> Report:
    """Read what `data_sources/arc/tool/grade.py` prints, in time in proportion to the output. This never raises."""
    facts = _PROGRAM.match(output)
    if facts is None:
        return Report()
    said: dict[int, set[str]] = defaultdict(set)
    for number, text in _GRID.findall(output):
        said[int(number)].add(text)
    grids = {number: _grid(next(iter(texts))) for number, texts in said.items() if len(texts) == 1}
    whole = {number: grid for number, grid in grids.items() if len({*map(len, grid)}) == 1}
    return Report(facts[1] == "1", int(facts[2]), int(facts[3]), int(facts[4]), whole)


def _grid(text: str) -> Grid:
    return tuple(tuple(map(int, row)) for row in text.split("/"))


def _trial(
    oracle: ArcOracle, report: Report, log: str, *, well_formed: bool = True, result: ExecResult | None = None
) -> Trial:
    tests = len(oracle.test)
    found = worth(oracle.train, oracle.test, report.given(tests, len(oracle.train)), report.given(0, tests))
    timed_out = result is not None and not found.solved and (result.timed_out or bool(_TIMEOUT.search(log)))
    return Trial(
        dict.fromkeys(oracle.fail_to_pass, found.solved),
        found.solved,
        log,
        result.exit_code if result else None,
        timed_out,
        {"test_outputs": tests},
        quality=found.quality,
        components=_components(report, found, well_formed),
    )


def _components(report: Report, found: Worth, well_formed: bool) -> dict[str, float]:
    """Return the parts of the score. answered: there is an answer that is not too long. compiles: it is Python, and
    defines an attempt. dsl: it uses nothing that it may not."""
    return {
        "answered": float(well_formed),
        "compiles": float(report.compiles and report.attempts > 0),
        "dsl": float(report.compiles and report.outside == 0),
        "unused_variables": float(report.unused),
        "train_share": found.train_share,
        "test_right": float(found.right),
        "cells": found.cells,
    }
