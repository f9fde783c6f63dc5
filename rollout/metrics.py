"""Figures of a batch of episodes. Infrastructure failures are counted apart and are in no other figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from data_sources.sample import Sample
from rollout.episode import StopReason
from rollout.records import trajectory_of


def episode_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Means over trajectories (fan-out siblings count once); stop reasons one-hot, as fractions.

    `infrastructure_failures` is a count; all else is over the episodes without one, and absent where there is none.
    """
    trajectories: dict[Any, list[Sample]] = {}
    for sample in samples:
        trajectories.setdefault(trajectory_of(sample), []).append(sample)
    sound = [segments for segments in trajectories.values() if not any(_broken(s) for s in segments)]
    metrics = {
        "episodes": float(len(trajectories)),
        "infrastructure_failures": float(len(trajectories) - len(sound)),
    }
    if sound:
        metrics |= _means(sound)
    return metrics


def _broken(sample: Sample) -> bool:
    return sample.status == Sample.Status.ABORTED or "infrastructure" in sample.metadata


def _means(trajectories: list[list[Sample]]) -> dict[str, float]:
    def mean(figure: Callable[[dict[str, Any]], float]) -> float:
        return sum(figure(segments[0].metadata) for segments in trajectories) / len(trajectories)

    def counter(name: str) -> float:
        return mean(lambda m: float(m["episode"]["counters"].get(name, 0)))

    metrics = {
        "solve_rate": mean(lambda m: float((m.get("score") or {}).get("solved", False))),
        "reward": sum(_reward(segments[0]) for segments in trajectories) / len(trajectories),
        "turns": mean(lambda m: m["episode"]["turns"]),
        "sampled_tokens": _per_trajectory(trajectories, lambda s: sum(s.loss_mask or ())),
        "context_tokens": _per_trajectory(trajectories, lambda s: len(s.tokens)),
        "segments": _per_trajectory(trajectories, lambda s: 1),
        "seconds": mean(lambda m: m["episode"]["timings"]["total"]),
        "engine_seconds": mean(lambda m: m["episode"]["timings"]["engine"]),
        "sandbox_seconds": mean(lambda m: m["episode"]["timings"]["sandbox"]),
    }
    metrics |= {name: counter(name) for name in ("edits", "failed_edits", "malformed_calls", "test_runs", "cut_turns")}
    for reason in StopReason:
        if not reason.is_infrastructure:
            metrics[f"stop/{reason.value}"] = mean(partial(_stopped_by, reason))
    return metrics


def _stopped_by(reason: StopReason, metadata: dict[str, Any]) -> float:
    return float(metadata["episode"]["stop_reason"] == reason.value)


def _reward(sample: Sample) -> float:
    return float(sample.reward) if isinstance(sample.reward, int | float) else 0.0


def _per_trajectory(trajectories: list[list[Sample]], figure: Callable[[Sample], float]) -> float:
    return sum(figure(sample) for segments in trajectories for sample in segments) / len(trajectories)
