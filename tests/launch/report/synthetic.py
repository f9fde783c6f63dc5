"""A run's folder with as many episodes as are asked for, as the logging hooks write them; tokens are random ids."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.records import EPISODES, EVALUATIONS, Score, write_failure, write_score
from slime_swe.sample import Sample

GROUP, TASKS = 8, 40
STEP_SECONDS = 45.0
REASONS = ("submitted", "max_turns", "context_full")
PATCH = """diff --git a/pkg/module_{task}.py b/pkg/module_{task}.py
--- a/pkg/module_{task}.py
+++ b/pkg/module_{task}.py
@@ -1,4 +1,4 @@
 def add(first, second):
-    return first - second
+    return first + second
"""
HOSTILE = """</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">
<svg onload="window.hacked = 3"><!-- <script> {{ 7 * 7 }} ${window.hacked = 4} [x](javascript:window.hacked=5)"""


def synthetic_run(directory: Path, name: str, rollouts: int, groups: int, seed: int = 0) -> Path:
    """`rollouts` of `groups` groups of `GROUP` episodes that get better, and an evaluation before and after them."""
    folder = create_run(resolve("tiny_cpu", [f"run.name={name}", f"run.dir={directory}"]))
    drawn = random.Random(seed)
    lines = []
    for rollout in range(rollouts):
        skill = 0.15 + 0.6 * (rollout + 1) / rollouts
        samples = []
        for group in range(groups):
            task = drawn.randrange(TASKS)
            hard = (task / TASKS - 0.5) * 0.6
            samples += [_sample(drawn, GROUP * group + place, group, task, skill - hard) for place in range(GROUP)]
        append_records(folder / EPISODES, samples, rollout_id=rollout, attempt=1)
        lines.append(_metrics(drawn, rollout))
    for rollout, skill in ((-1, 0.2), (rollouts - 1, 0.7)):
        samples = [_sample(drawn, at, at, at, skill) for at in range(TASKS)]
        append_records(folder / EVALUATIONS, samples, rollout_id=rollout, attempt=1, dataset="heldout")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _sample(drawn: random.Random, index: int, group: int, task: int, skill: float) -> Sample:
    name = f"repair__module_{task:02}"
    tokens = [drawn.randrange(5, 320) for _ in range(24)]
    mask = [1] * 8 + [0] * 4 + [1] * 8
    sample = Sample(index=index, group_index=group, prompt="Fix it.", metadata={"task": {"id": name}})
    sample.tokens, sample.response_length, sample.loss_mask = tokens, 20, mask
    sample.rollout_log_probs = [-drawn.expovariate(1.2) if kept else 0.0 for kept in mask]
    sample.status, sample.response, sample.weight_versions = Sample.Status.COMPLETED, "", ["1"]
    solved = drawn.random() < skill
    reason = "submitted" if solved else drawn.choice(REASONS)
    turns = _turns(task, solved)
    timings = {"total": 8 + drawn.random() * 9, "engine": 5.0, "sandbox": 2.0, "started": 1.7e9}
    episode = {"patch": PATCH.format(task=task) if solved or drawn.random() < 0.7 else "", "stop_reason": reason,
               "turns": 3, "timings": timings, "counters": {"tool_calls": {"edit": 1}, "edits": 1}}  # fmt: skip
    sample.metadata |= {"turns": turns, "tools": [], "episode": episode}
    log = f"{'PASSED' if solved else 'FAILED'} tests/test_module_{task}.py::test_add\n1 test in 0.02 s"
    value = 1.0 if solved else -0.2 if reason == "submitted" else -0.5
    write_score([sample], Score(solved, value, {"tests": float(solved), "turns": -0.05 * len(turns)}, {"log": log}))
    if drawn.random() < 0.02:
        write_failure(sample, "sandbox_error", "the container ended: exit code 137")
    return sample


def _turns(task: int, solved: bool) -> list[dict[str, Any]]:
    path = f"pkg/module_{task}.py"
    edit = {"path": path, "old": "first - second", "new": "first + second"}
    return [
        {"role": "system", "text": "You repair Python repositories.", "start": 0, "end": 2},
        {"role": "user", "text": f"`{path}`: add() subtracts.\n\nMake the tests pass.", "start": 2, "end": 4},
        {"role": "assistant", "text": "I look at the module first.", "start": 4, "end": 12, "began": 0.1, "ended": 2.3,
         "calls": [{"id": "a", "name": "bash", "arguments": json.dumps({"command": f"cat {path}"})}]},
        {"role": "tool", "text": "def add(first, second):\n    return first - second\n", "start": 12, "end": 16,
         "began": 2.3, "ended": 2.6, "call_id": "a"},
        {"role": "assistant", "text": "The operator is wrong." if solved else "I am not sure.", "start": 16, "end": 24,
         "began": 2.6, "ended": 5.1, "calls": [{"id": "b", "name": "edit", "arguments": json.dumps(edit)}]},
    ]  # fmt: skip


def _metrics(drawn: random.Random, rollout: int) -> dict[str, Any]:
    seconds = {
        "generation": 20 + drawn.random() * 4,
        "training": 9.0,
        "weight_sync": 0.4,
        "sandbox": 6.0,
        "total": STEP_SECONDS,
        "episode/seconds": 11.0,
        "episode/engine_seconds": 4.0,
    }
    return {
        "kind": "train", "rollout_id": rollout, "attempt": 1, "entropy": 1.1 - 0.02 * rollout,
        "grad_norm": 0.4 + drawn.random() * 0.2, "clip_fraction": 0.01 * drawn.random(),
        "logprob_diff_mean": 0.002 + 0.001 * drawn.random(), "seconds": seconds,
    }  # fmt: skip


def plant_hostile(folder: Path) -> None:
    """One more rollout, whose episode's every text tries to become markup or a script."""
    sample = Sample(index=0, group_index=0, prompt=HOSTILE, metadata={"task": {"id": f"hostile {HOSTILE}"}})
    sample.tokens, sample.response_length, sample.loss_mask = [5, 6, 7], 2, [1, 1]
    sample.rollout_log_probs, sample.status, sample.response = [-1.0, -2.0], Sample.Status.COMPLETED, HOSTILE
    call = {"id": "a", "name": HOSTILE, "arguments": json.dumps({HOSTILE: HOSTILE})}
    turns = [
        {"role": "user", "text": HOSTILE, "start": 0, "end": 1},
        {"role": "assistant", "text": HOSTILE, "reasoning": HOSTILE, "start": 1, "end": 3, "calls": [call]},
        {"role": "tool", "text": HOSTILE, "start": 3, "end": 3},
    ]
    patch = f"--- a/{HOSTILE}\n+++ b/{HOSTILE}\n+{HOSTILE}\n"
    sample.metadata |= {"turns": turns, "tools": [], "episode": {"patch": patch, "stop_reason": HOSTILE, "turns": 2}}
    write_score([sample], Score(False, 0.0, {HOSTILE: 1.0}, {HOSTILE: HOSTILE}))
    write_failure(sample, HOSTILE, HOSTILE)
    other = Sample(index=1, group_index=0, prompt="", metadata=dict(sample.metadata))
    other.tokens, other.response_length, other.loss_mask = [5, 6, 7], 2, [1, 1]
    other.rollout_log_probs, other.status, other.reward = [-1.0, -2.0], Sample.Status.COMPLETED, 0.0
    del other.metadata["infrastructure"]
    append_records(folder / EPISODES, [sample, other], rollout_id=99, attempt=1)
