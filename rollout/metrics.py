"""Figures of a batch of episodes. Infrastructure failures are counted apart and are in no other figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from data_sources.sample import Sample
from rollout.episode import StopReason
from rollout.records import trajectory_of

_COUNTERS = ("edits", "failed_edits", "malformed_calls", "test_runs", "cut_turns")


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
        metrics |= _outcomes(sound)
    told = [segments for segments in sound if "episode" in segments[0].metadata]
    if told:
        metrics |= _conduct(told)
    return metrics


def _broken(sample: Sample) -> bool:
    return sample.status == Sample.Status.ABORTED or "infrastructure" in sample.metadata


def _outcomes(trajectories: list[list[Sample]]) -> dict[str, float]:
    solved = [bool((segments[0].metadata.get("score") or {}).get("solved", False)) for segments in trajectories]
    return {
        "solve_rate": sum(solved) / len(solved),
        "reward": sum(_reward(segments[0]) for segments in trajectories) / len(trajectories),
        "sampled_tokens": _per_trajectory(trajectories, lambda s: sum(s.loss_mask or ())),
        "context_tokens": _per_trajectory(trajectories, lambda s: len(s.tokens)),
        "segments": _per_trajectory(trajectories, lambda s: 1),
    }


def _conduct(trajectories: list[list[Sample]]) -> dict[str, float]:
    """What our own `generate` noted of each episode; other rollout functions leave no such note."""
    episodes = [segments[0].metadata["episode"] for segments in trajectories]

    def mean(figure: Callable[[dict[str, Any]], float]) -> float:
        return sum(map(figure, episodes)) / len(episodes)

    metrics = {"turns": mean(lambda e: e["turns"]), "seconds": mean(lambda e: e["timings"]["total"])}
    metrics |= {f"{part}_seconds": mean(partial(_timing, part)) for part in ("engine", "sandbox")}
    metrics |= {name: mean(partial(_counter, name)) for name in _COUNTERS}
    for reason in StopReason:
        if not reason.is_infrastructure:
            metrics[f"stop/{reason.value}"] = mean(partial(_stopped_by, reason))
    return metrics


def _timing(part: str, episode: dict[str, Any]) -> float:
    return float(episode["timings"][part])


def _counter(name: str, episode: dict[str, Any]) -> float:
    return float(episode["counters"].get(name, 0))


def _stopped_by(reason: StopReason, episode: dict[str, Any]) -> float:
    return float(episode["stop_reason"] == reason.value)


def _reward(sample: Sample) -> float:
    return float(sample.reward) if isinstance(sample.reward, int | float) else 0.0


def _per_trajectory(trajectories: list[list[Sample]], figure: Callable[[Sample], float]) -> float:
    return sum(figure(sample) for segments in trajectories for sample in segments) / len(trajectories)
