"""Runs of the test's own making: few episodes, written as the logging hook writes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_swe.launch.cli import run
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.metrics import episode_metrics
from slime_swe.rollout.records import EPISODES, Score, record_of, write_failure, write_score
from slime_swe.sample import Sample

FILTER = "algorithm.group_filter=slime_swe.rewards.slime_plugin.keep_group"


@dataclass
class Played:
    """An episode. tokens: the policy's, of each of its samples."""

    solved: bool
    tokens: Sequence[int] = (4,)
    stop: str = "submitted"
    turns: int = 2
    broken: bool = False
    versions: Sequence[str] = ("default",)
    seconds: float = 1.0
    reward: float | None = None
    masked: bool = False
    components: dict[str, float] = field(default_factory=dict)


def samples_of(groups: Iterable[Sequence[Played]], first: int = 0, first_group: int = 0) -> list[Sample]:
    made: list[Sample] = []
    index = first
    for number, group in enumerate(groups, first_group):
        for played in group:
            made += _samples(played, index, number)
            index += 1
    return made


def _samples(played: Played, index: int, group: int) -> list[Sample]:
    segments = []
    for place, tokens in enumerate(played.tokens):
        sample = Sample(index=index if not place else -index * 100 - place - 1, group_index=group, rollout_id=index)
        sample.metadata = {"task": {"id": f"task-{group}"}}
        sample.tokens, sample.response_length, sample.loss_mask = (
            [7, *range(tokens + 1)],
            tokens + 1,
            [0] + [1] * tokens,
        )
        sample.rollout_log_probs = [0.0] + [-0.5] * tokens
        sample.status, sample.weight_versions = Sample.Status.COMPLETED, [*played.versions]
        sample.remove_sample = played.masked
        timings = {"total": played.seconds, "engine": played.seconds / 2}
        sample.metadata["episode"] = {
            "patch": "", "stop_reason": played.stop, "turns": played.turns, "timings": timings, "masked": played.masked,
        }  # fmt: skip
        segments.append(sample)
    value = played.reward if played.reward is not None else 1.0 if played.solved else -1.0
    write_score(segments, Score(played.solved, value, played.components))
    for sample in segments if played.broken else ():
        write_failure(sample, "sandbox_error", "the disk is gone")
    return segments


def make_run(
    folder: Path, rollouts: Sequence[Sequence[Sequence[Played]]], *overrides: str, dropped: Sequence[str] = ()
) -> Path:
    """A run named `made` whose rollouts have these groups of episodes, each with its line of metrics as far as that
    follows from the episodes. dropped: why the run dropped groups of each rollout.
    """
    words = ["run.name=made", f"run.dir={folder}", "algorithm.steps_per_rollout=1", "algorithm.rollout_logprobs=false"]
    made = create_run(resolve("tiny_cpu", [*words, *overrides]))
    index = group = 0
    for rollout, groups in enumerate(rollouts):
        samples = samples_of(groups, index, group)
        index, group = index + sum(map(len, groups)), group + len(groups)
        append_records(made / EPISODES, samples, rollout_id=rollout, attempt=1)
        figures = episode_metrics(record_of(sample) for sample in samples)
        counts = {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in Counter(dropped).items()}
        line = {"kind": "train", "rollout_id": rollout, "attempt": 1, **figures, **counts}
        with (made / "metrics.jsonl").open("a") as lines:
            lines.write(json.dumps(line) + "\n")
    return made


def replayed(capsys: Any, folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """The document that the command prints."""
    found = run(["replay", str(folder), *words, "--json"])
    captured = capsys.readouterr()
    assert found == code, captured.out + captured.err
    document: dict[str, Any] = json.loads(captured.out)
    return document


def refused(capsys: Any, folder: Path, *words: str) -> str:
    assert run(["replay", str(folder), *words]) == 2
    return str(capsys.readouterr().err)


def backwards(args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
    """A post-process hook that praises what failed."""
    from slime_swe.rewards.slime_plugin import post_process

    raw, advantages = post_process(args, samples)
    return raw, [-advantage for advantage in advantages]
