"""The control of a harness's log: `rewards.control` for tests that the eval script puts in place.

The script up to its first marker restores the tests; they are falsified then, and put over what the whole script
restores once more. Test ids are `path::name`, as pytest has them, or `name (module.Class)` and `name`, which are looked
for in the files that the script restores. Of what is found nowhere nothing is asked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace

from data_sources.task import HarnessOracle, Task
from rewards.control import falsify_in
from rewards.limits import image_limits
from rewards.swebench.apply import apply_in
from rewards.swebench.client import Harness
from rewards.swebench.instance import image_of, instance_of, oracle_of
from rewards.verdict import Sandboxes, Trial
from rollout.sandbox.base import Sandbox

_MARKER = ">>>>> Start Test Output"
_PREPARE, _SCRIPT, _KEPT = "/tmp/prepare.sh", "/tmp/control.sh", "/tmp/falsified"
_UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")


async def controlled(task: Task, patch: str, trial: Trial, sandboxes: Sandboxes, harness: Harness) -> Trial:
    """What a trial earns in the light of a run with falsified tests. Raises `SandboxError`, `GraderError`."""
    oracle, instance = oracle_of(task), instance_of(task)
    passed = [name for name, ok in trial.tests.items() if ok]
    before, marker, after = _split(await harness.script(instance))
    if not trial.share(oracle.fail_to_pass) or not marker:
        return trial
    image = replace(image_of(task), setup="")
    async with sandboxes.open(task.workspace.files, image_limits(oracle.timeout_seconds), image) as sandbox:
        await apply_in(sandbox, oracle, patch)
        await _run(sandbox, _PREPARE, before, oracle.timeout_seconds)
        falsified = await _falsify(sandbox, places_of(passed, oracle))
        if not falsified:
            return trial
        lay = f"cp -R {_KEPT}/. {shlex.quote(image.folder)}/\n"
        log = await _run(sandbox, _SCRIPT, before + lay + marker + after, oracle.timeout_seconds)
    status = (await harness.report(instance, log)).get("tests_status", {})
    still = {name for kind in status.values() for name in kind.get("success", ())}
    forged = sorted(falsified & still)
    if not forged:
        return replace(trial, details={**trial.details, "falsified_tests": len(falsified)})
    disbelief = f"these pass even when they are falsified: {', '.join(forged)}"
    return replace(trial, solved=False, refuted="forged", details={**trial.details, "disbelief": disbelief})


def places_of(tests: Collection[str], oracle: HarnessOracle) -> Mapping[str, str]:
    """Where each test (id) may be, as `path::Class::name` → its id."""
    files = [path for path in oracle.protected if path.endswith(".py")]
    places = {}
    for test in tests:
        if "::" in test:
            places[test] = test
        elif match := _UNITTEST.fullmatch(test):
            owner = match[2].removesuffix(f".{match[1]}").rpartition(".")[2]
            places |= {f"{path}::{owner}::{match[1]}": test for path in files}
        else:
            places |= {f"{path}::{test}": test for path in files}
    return places


async def _falsify(sandbox: Sandbox, places: Mapping[str, str]) -> frozenset[str]:
    """Falsify the tests in place, and keep a copy of the files. The ids of those that could be."""
    found = await falsify_in(sandbox, places)
    paths = shlex.join(sorted({place.partition("::")[0] for place in found}))
    if found:
        await sandbox.exec(f"mkdir -p {_KEPT} && cp --parents -- {paths} {_KEPT}")
    return frozenset(places[place] for place in found)


async def _run(sandbox: Sandbox, path: str, script: str, seconds: float) -> str:
    """What the script prints; nothing where it hangs."""
    await sandbox.write_file(path, script.encode())
    result = await sandbox.exec(f"/bin/bash {path}", timeout=seconds)
    return "" if result.timed_out else result.output


def _split(script: str) -> tuple[str, str, str]:
    """Before, at and after the line that marks where the tests' output starts; the last two are empty without one."""
    lines = script.splitlines(keepends=True)
    at = next((number for number, line in enumerate(lines) if _MARKER in line), None)
    if at is None:
        return script, "", ""
    return "".join(lines[:at]), lines[at], "".join(lines[at + 1 :])
