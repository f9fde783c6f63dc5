"""The control of a harness's log: `rewards.control` for tests that the eval script puts in place.

Code under test can know the tests that its agent has seen: where one of them is changed, it is in a control. So tests
that no agent has seen are falsified in a run of their own, in which the others are as everybody knows them.

Test ids are `path::name`, as pytest has them, or `name (module.Class)` and `name`, which are looked for in the files
that the script restores. Of what is found nowhere nothing is asked.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Collection, Mapping
from typing import Any

from rewards import control
from rewards.control import Control
from rewards.falsify import falsify, hidden, tests_in
from rewards.swebench.client import Harness
from rewards.swebench.evaluation import Evaluation, RestoredTests
from rewards.swebench.restored import restored_tests
from rewards.swebench.script import Files
from rewards.verdict import Trial

_UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")


async def controlled(evaluation: Evaluation, patch: str, trial: Trial, harness: Harness) -> Trial:
    """What a trial earns in the light of its control. Raises `SandboxError`, `GraderError`."""

    async def run_falsified(text: str, names: Collection[str]) -> Control:
        tests = await restored_tests(evaluation)
        unseen = hidden_tests(tests, names)
        groups = [group for group in (unseen, frozenset(names) - unseen) if group]
        return _together(await asyncio.gather(*(one_run(tests, text, group) for group in groups)))

    async def one_run(tests: RestoredTests, text: str, names: Collection[str]) -> Control:
        files, falsified = falsified_files(tests, names)
        if not falsified:
            return Control(falsified, falsified, falsified)
        _, result = await evaluation.run(text, tests, files)
        return await _told(falsified, "" if result.timed_out else result.output, evaluation.instance, harness)

    return await control.controlled(trial, evaluation.oracle, patch, run_falsified)


def hidden_tests(files: RestoredTests, tests: Collection[str]) -> frozenset[str]:
    """Those of the tests (ids) that an agent can't have seen as they are run."""
    places = places_of(tests, files.restored)
    unseen = (hidden(text, tests_in(path, places), files.shown.get(path, b"")) for path, text in files.restored.items())
    return frozenset(places[place] for found in unseen for place in found)


def falsified_files(files: RestoredTests, tests: Collection[str]) -> tuple[Files, frozenset[str]]:
    """The files that hold these tests (ids), which are falsified in them; and those of the tests that could be."""
    places = places_of(tests, files.restored)
    made, found = {}, set()
    for path, text in files.restored.items():
        changed, falsified = falsify(text, tests_in(path, places), random.Random(), files.shown.get(path, b""))
        if falsified:
            made[path] = changed
            found |= {places[place] for place in falsified}
    return made, frozenset(found)


def _together(controls: Collection[Control]) -> Control:
    none: frozenset[str] = frozenset()
    return Control(
        none.union(*(one.falsified for one in controls)),
        none.union(*(one.failed for one in controls)),
        none.union(*(one.passed for one in controls)),
    )


def places_of(tests: Collection[str], paths: Collection[str]) -> Mapping[str, str]:
    """Where each test (id) may be, as `path::Class::name` → its id."""
    places = {}
    for test in tests:
        if "::" in test:
            places[test] = test
        elif match := _UNITTEST.fullmatch(test):
            owner = match[2].removesuffix(f".{match[1]}").rpartition(".")[2]
            places |= {f"{path}::{owner}::{match[1]}": test for path in paths}
        else:
            places |= {f"{path}::{test}": test for path in paths}
    return places


async def _told(falsified: frozenset[str], log: str, instance: dict[str, Any], harness: Harness) -> Control:
    """What the harness reads in the log. To tell a test that failed from one of which nothing is told, it is asked as
    for logs that tell of failures alone: otherwise it counts both as failed."""
    failed = falsified & _names(await harness.report({**instance, "eval_type": "fail_only"}, log), "failure")
    if failed == falsified:
        return Control(falsified, failed, frozenset())
    passed = _names(await harness.report(instance, log), "success")
    return Control(falsified, failed, falsified & passed)


def _names(report: dict[str, Any], verdict: str) -> frozenset[str]:
    kinds = report.get("tests_status", {}).values()
    return frozenset(name for kind in kinds for name in kind.get(verdict, ()))
