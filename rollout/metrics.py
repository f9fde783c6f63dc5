"""Figures of a batch of episodes: pure functions of their samples or records.

An episode with several samples counts once. Infrastructure failures are counted, and are in no other figure.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slime_swe.data_sources.task import Oracle
from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.records import (
    EpisodeRecord,
    Record,
    is_broken,
    record_of,
    sampled_tokens,
    trajectories,
    trajectory_of,
)
from slime_swe.sample import Sample

PREFIX_CACHE = "prefix_cache_hit_rate"  # as SLiME calls it
PREFIX_LOST = "prefix_lost_rate"
ADMITTED = "rollout/admitted_episodes"
GAP_BEFORE = "rollout/logprob_diff_mean"  # of the rollout before
SERVING = (PREFIX_CACHE, PREFIX_LOST, "cached_tokens_per_turn", "prefilled_tokens_per_turn", ADMITTED)
Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
_COUNTERS = ("edits", "failed_edits", "malformed_calls", "cut_turns", "untrained_tokens")
_SPREAD = ("reward", "turns", "sampled_tokens", "context_tokens")

Segments = list[Record]  # of one episode


def episode_metrics(samples: Iterable[Sample | Record], reward_key: str | None = None) -> dict[str, float]:
    """Return means over a step's episodes, stop reasons one-hot; docs/metrics.md has every name. `episodes`, `groups`
    and `infrastructure_failures` are counts, and so is what was tried again: `engine_retries/CAUSE` requests, and
    `broken_attempts/CAUSE` attempts at an episode or its grading. Medians and deviations of some means are under
    `train_spread/`.

    A figure that no episode has a record of is absent. If infrastructure broke every episode, all means are absent.
    """
    episodes, sound = _sorted(samples, reward_key)
    counts = {"episodes": float(len(episodes)), "infrastructure_failures": float(len(episodes) - len(sound))}
    counts |= _failures(episodes) | count_groups(record for segments in episodes for record in segments)
    reports = _reports(sound)
    counts |= _retries(_reports(episodes)) | _prefix_cache(reports) | _changed(sound)
    sizes, conduct = list(map(_sizes, sound)), list(map(_conduct, reports))
    spread = _spread([*({"reward": first.reward or 0.0} for first, *_ in sound), *sizes, *conduct])
    return {**counts, **_outcomes(sound), **_means(sizes), **_means(conduct), **spread}


# The group filter, the metrics and the sentence on a run that trains nothing share one judgement of what a group of
# episodes can teach: a policy gradient needs episodes that differ.
INFORMATIVE = "informative"
UNIFORM = ("all_solved", "all_unsolved", "all_truncated", "all_infrastructure_failures")
OUTCOMES = (INFORMATIVE, *UNIFORM)
UNTRAINED = 3  # rollouts in a row that train nothing before it is said


def group_outcome(records: Iterable[Record]) -> str:
    """Judge the samples of a group as one of `OUTCOMES`: `informative` if its episodes differ, in the binary outcome
    or, where rewards are degrees, by more than `Record.spread`.

    Infrastructure failures do not count as an outcome. Truncated episodes that are left out of the loss do, as they are
    in the baseline; but a group of which nothing else is left has nothing to train.
    """
    counted = [record for record in records if not excluded(record)]
    episodes = [*{trajectory_of(record): record for record in counted}.values()]
    if not episodes:
        return "all_infrastructure_failures"
    if _differ(episodes):
        return INFORMATIVE if any(not record.remove_sample for record in counted) else "all_truncated"
    return "all_solved" if all(record.solved for record in episodes) else "all_unsolved"


def _differ(episodes: Sequence[Record]) -> bool:
    spreads = [record.spread for record in episodes]
    if None in spreads:
        return len({record.solved for record in episodes}) > 1
    rewards = [record.reward or 0.0 for record in episodes]
    return max(rewards) - min(rewards) > max(filter(None, spreads), default=0.0)


def excluded(record: Record) -> bool:
    """Say whether a record is in no baseline: its reward is unknown, or nothing sampled could have earned it."""
    masked = record.episode is not None and record.episode.masked
    return record.status == Sample.Status.ABORTED.value or (record.remove_sample and not masked)


def count_groups(records: Iterable[Record]) -> dict[str, float]:
    """Count the groups, and those of each outcome. Returns nothing where no sample names its group."""
    groups: dict[int, list[Record]] = {}
    for record in records:
        if record.group_index is not None:
            groups.setdefault(record.group_index, []).append(record)
    found = Counter(map(group_outcome, groups.values()))
    counts = {f"groups/{outcome}": float(found[outcome]) for outcome in OUTCOMES}
    return {"groups": float(len(groups)), **counts} if groups else {}


def why_untrained(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return why none of these rollouts trained a token, with counts; empty if one did, or their metrics don't say."""
    if not steps or any(step.get("trained_tokens") != 0 for step in steps):
        return ""
    counts = _counts(steps)
    return f"{_reason(steps)} ({counts})" if counts else _reason(steps)


class Untrained:
    """The last rollouts in a row that trained nothing."""

    def __init__(self) -> None:
        self._steps: list[Mapping[str, Any]] = []

    def add(self, step: Mapping[str, Any]) -> str:
        """Add a rollout's metrics; return a sentence when it is the `UNTRAINED`th in a row, else an empty text."""
        self._steps = [*self._steps, step] if why_untrained([step]) else []
        if len(self._steps) != UNTRAINED:
            return ""
        return f"{UNTRAINED} rollouts in a row trained nothing: {why_untrained(self._steps)}"


def _reason(steps: Sequence[Mapping[str, Any]]) -> str:
    rates = {step["solve_rate"] for step in steps if step.get("solve_rate") is not None}
    if not rates:
        return "infrastructure broke every episode"
    if all(step.get("masked") == 1.0 for step in steps):
        return "every episode was truncated, and rollout.mask_truncated leaves such out of the loss"
    if rates <= {0.0} or rates <= {1.0}:
        return f"{'every' if rates == {1.0} else 'no'} episode was solved, so that no group had rewards to compare"
    return "every advantage was zero, as where in each group all episodes are solved or none is"


def _counts(steps: Sequence[Mapping[str, Any]]) -> str:
    def total(name: str) -> int:
        return int(sum(step.get(name, 0) for step in steps))

    if not total("groups"):
        return ""
    found = {outcome: total(f"groups/{outcome}") for outcome in OUTCOMES}
    said = [f"{count} {outcome.replace('_', ' ')}" for outcome, count in found.items() if count]
    broken, episodes = total("infrastructure_failures"), total("episodes")
    return f"groups: {', '.join(said)}; episodes: {episodes}, of which infrastructure broke {broken}"


def depends_on_timing(name: str) -> bool:
    """Say whether a figure of a rollout differs between two runs of one seed: seconds, what a cache held, and how many
    episodes were admitted by that."""
    return name.endswith("seconds") or name in SERVING


def evaluation_metrics(samples: Iterable[Sample | Record], reward_key: str | None = None) -> dict[str, Any]:
    """Return an evaluation's figures over its sound episodes, with their count and Wilson interval.

    `outcomes` holds, for each task, one 0 or 1 per episode in order of sampling, None where infrastructure broke it.
    `weight_versions` are those that sampled its turns, as the engines name them. `pass_at_k` and `pass_hat_k` are by k:
    2, 4, 8 ... and the most that every task has sound episodes for, but for tasks that have none. `of_kind` has the
    figures of a kind of oracle that states some (`Oracle.figures`), absent where none does.
    """
    episodes, sound = _sorted(samples, reward_key)
    solved = sum(segments[0].solved for segments in sound)
    outcomes: dict[str, list[int | None]] = {}
    for segments in episodes:
        first = segments[0]
        broken = is_broken(segments)
        outcomes.setdefault(str(first.task or first.group_index), []).append(None if broken else int(first.solved))
    return {
        "episodes": len(sound),
        "tasks": len(outcomes),
        "infrastructure_failures": len(episodes) - len(sound),
        "solved": solved,
        "interval": list(wilson_interval(solved, len(sound))),
        **({"solve_rate": None, "reward": None} | _outcomes(sound)),
        **_first_edit(sound),
        **_first_try(sound),
        **_passes(outcomes),
        **_behaviour(sound),
        **_of_kinds(sound),
        "weight_versions": sorted({version for each in sound for one in each for version in one.weight_versions}),
        "outcomes": outcomes,
    }


def rollout_record(
    rollout_id: int, attempt: int, metrics: Mapping[str, Any], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return a rollout's line of `metrics.jsonl`.

    Times, since the record before, are kept apart under `seconds`, and what the servers had in their caches, with what
    follows from it, under `serving`: all else is a function of the recipe.
    """
    episode = {f"episode/{name}": value for name, value in metrics.items() if name.endswith("seconds")}
    serving = {name.removeprefix("rollout/"): metrics[name] for name in SERVING if name in metrics}
    lasting = {name: value for name, value in metrics.items() if not depends_on_timing(name)}
    where = {"kind": "train", "rollout_id": rollout_id, "attempt": attempt}
    return {**where, **lasting, "serving": serving, "seconds": {**seconds, **episode}}


def paced(record: Mapping[str, Any], *, carries: bool) -> dict[str, Any]:
    """Return a rollout's figures in `metrics.jsonl`, with the step's `seconds` and the policy's tokens per second.

    carries: episodes are played while others are trained, so that a step's whole time is playing time.
    """
    seconds, sampled = record.get("seconds", {}), record.get("sampled_tokens", 0.0) * record.get("episodes", 0.0)
    total = seconds_of(record)
    playing = total if carries else seconds.get("generation", 0.0) + seconds.get("sandbox", 0.0)
    figures = {name: value for name, value in record.items() if name not in ("seconds", "serving")}
    speed = {"tokens_per_second": sampled / playing} if sampled and playing else {}
    return {**figures, **speed, **({"seconds": total} if total else {})}


def seconds_of(record: Mapping[str, Any]) -> float:
    """Return the wall seconds of a line of `metrics.jsonl`, since the line before; the sum of its phases where it has
    only these; 0.0 where it has none."""
    seconds = record.get("seconds", {})
    phases = (value for name, value in seconds.items() if not name.startswith("episode/"))
    return float(seconds["total"] if "total" in seconds else sum(phases))


def compare(before: Mapping[str, list[int | None]], after: Mapping[str, list[int | None]]) -> dict[str, Any]:
    """Compare outcomes paired by (task, place): gains, losses and the exact two-sided sign test (McNemar 1947)."""
    pairs = [
        (old, new)
        for task in before
        for old, new in zip(before[task], after.get(task, []), strict=False)
        if old is not None and new is not None
    ]
    gained, lost = sum(pair == (0, 1) for pair in pairs), sum(pair == (1, 0) for pair in pairs)
    return {"pairs": len(pairs), "gained": gained, "lost": lost, "p_value": sign_test(gained, lost)}


def sign_test(gained: int, lost: int) -> float:
    """Return the exact two-sided p value that either sign is as likely; McNemar's test of paired outcomes (1947)."""
    tail: int = sum(math.comb(gained + lost, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << (gained + lost)))


def pass_at_k(solved: int, episodes: int, k: int) -> float:
    """Estimate without bias the chance that one of k episodes solves a task, from n = `episodes` >= k, c of them
    solved: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374)."""
    return 1 - math.comb(episodes - solved, k) / math.comb(episodes, k)


def pass_hat_k(solved: int, episodes: int, k: int) -> float:
    """Estimate without bias the chance that all of k episodes solve a task: C(c, k) / C(n, k), n and c as in
    `pass_at_k` (tau-bench, arXiv 2406.12045).
    """
    return math.comb(solved, k) / math.comb(episodes, k)


def wilson_interval(successes: float, total: float, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's score interval of a binomial share (Wilson 1927); (0, 1) where nothing was tried.

    It takes the trials as independent; several episodes of one task are not quite. `total` may be an effective number.
    """
    if total == 0:
        return 0.0, 1.0
    share, spread = successes / total, z * z / total
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == total else centre + half)


def _sorted(samples: Iterable[Sample | Record], reward_key: str | None) -> tuple[list[Segments], list[Segments]]:
    """Return all episodes, and those that infrastructure did not break."""
    records = [sample if isinstance(sample, Record) else record_of(sample, reward_key) for sample in samples]
    episodes = trajectories(records)
    return episodes, [segments for segments in episodes if not is_broken(segments)]


def _means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each figure, over the rows that have it."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(found) / len(found) for name, found in values.items()}


def _of_kinds(sound: Sequence[Segments]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures by kind of oracle, from the evidence of the episodes that say theirs."""
    evidence: dict[str, list[Mapping[str, Any]]] = {}
    for first, *_ in sound:
        if first.score is not None and "oracle" in first.score.evidence:
            evidence.setdefault(first.score.evidence["oracle"], []).append(first.score.evidence)
    found = {kind: Oracle.class_of({"kind": kind}).figures(each) for kind, each in evidence.items()}
    return {"of_kind": found} if found else {}


def _spread(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return median and population standard deviation over episodes of the figures in `_SPREAD`."""
    found: dict[str, float] = {}
    values: dict[str, list[float]] = {name: [] for name in _SPREAD}
    for row in rows:
        for name in _SPREAD:
            if name in row:
                values[name].append(row[name])
    for name, each in values.items():
        if each:
            found |= {f"train_spread/{name}/median": statistics.median(each)}
            found |= {f"train_spread/{name}/deviation": statistics.pstdev(each)}
    return found


def _failures(episodes: Iterable[Segments]) -> dict[str, float]:
    """Count broken episodes by what failed: a stop reason, `grader_error`, or `unknown` where nobody recorded it."""
    broken = filter(is_broken, episodes)
    found = Counter(
        next((s.infrastructure.where for s in segments if s.infrastructure and s.infrastructure.where), "unknown")
        for segments in broken
    )
    return {f"infrastructure_failures/{cause}": float(count) for cause, count in sorted(found.items())}


def _prefix_cache(reports: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return what of the prompts the engines had in their caches and what they computed; nothing without a prompt."""
    counters = [report.counters for report in reports]
    prompts, cached = sum(each.prompt_tokens for each in counters), sum(each.cached_tokens for each in counters)
    if not prompts:
        return {}
    turns = max(1, sum(report.turns for report in reports))
    return {
        PREFIX_CACHE: cached / prompts,
        PREFIX_LOST: sum(each.lost_tokens for each in counters) / prompts,
        "cached_tokens_per_turn": cached / turns,
        "prefilled_tokens_per_turn": (prompts - cached) / turns,
    }


def _outcomes(sound: Sequence[Segments]) -> dict[str, float]:
    """Return the mean solve rate and rewards; a component's mean is over the episodes whose score names it."""
    return _means(
        {
            "solve_rate": first.solved,
            "reward": first.reward or 0.0,
            **{f"reward/{name}": value for name, value in (first.score.components if first.score else {}).items()},
        }
        for first, *_ in sound
    )


def _changed(sound: Sequence[Segments]) -> dict[str, float]:
    """Count the episodes whose patch had another score when it was graded before; nothing where there is none."""
    count = sum("score_changed" in first.score.evidence for first, *_ in sound if first.score is not None)
    return {"scores_changed": float(count)} if count else {}


def _retries(reports: Iterable[EpisodeRecord]) -> dict[str, float]:
    found = Counter[str]()
    for counters in (report.counters for report in reports):
        found.update({f"engine_retries/{cause}": count for cause, count in counters.engine_retries.items()})
        found.update({f"broken_attempts/{reason}": count for reason, count in counters.broken_attempts.items()})
    return {name: float(count) for name, count in sorted(found.items())}


def _sizes(segments: Segments) -> dict[str, float]:
    return {
        "sampled_tokens": sampled_tokens(segments),
        "masked_tokens": sum(sum(record.loss_mask or ()) for record in segments if record.remove_sample),
        "context_tokens": sum(len(record.tokens) for record in segments),
        "segments": len(segments),
    }


def _conduct(report: EpisodeRecord) -> dict[str, float]:
    """Return what the agent did and where the time went."""
    timings, counters = report.timings, report.counters
    return {
        "turns": report.turns,
        "seconds": timings.total,
        "engine_seconds": timings.engine,
        "sandbox_seconds": timings.sandbox,
        **{name: getattr(counters, name) for name in _COUNTERS},
        "masked": float(report.masked),
        "test_runs": counters.tool_calls.get("run_tests", 0),
        **{f"stop/{r.value}": float(report.stop_reason == r) for r in StopReason if not r.is_infrastructure},
    }


def _behaviour(sound: Sequence[Segments]) -> dict[str, Any]:
    """Return mean turns and edits and the share of each stop reason; nothing where the generate hook reports none."""
    reports = _reports(sound)
    means = _means({"turns": report.turns, "edits": report.counters.edits} for report in reports)
    reasons = Counter(report.stop_reason for report in reports)
    shares = {name: count / len(reports) for name, count in sorted(reasons.items())}
    return {**means, "stop_reasons": shares} if reports else {}


def _first_edit(sound: Sequence[Segments]) -> dict[str, float]:
    """Return how often the first applied edit alone solved the task; nothing where the reward hook grades none."""
    known = [score.first_edit_solved for segments in sound if (score := segments[0].score)]
    return _means({"first_edit_solve_rate": solved} for solved in known if solved is not None)


def _first_try(sound: Sequence[Segments]) -> dict[str, float]:
    """Return how often the first try solved the task; nothing where no episode had another."""
    tries = [(segments[0].solved, segments[0].episode.counters.tries) for segments in sound if segments[0].episode]
    if not any(count > 1 for _, count in tries):
        return {}
    return _means({"first_try_solve_rate": solved and count == 1} for solved, count in tries)


def _passes(outcomes: Mapping[str, Sequence[int | None]]) -> dict[str, dict[str, float]]:
    """Return the means of both estimates over tasks; nothing where a task has a single sound episode."""
    counts = [(found.count(1), len(found) - found.count(None)) for found in outcomes.values()]
    counts = [(solved, episodes) for solved, episodes in counts if episodes]
    most = min((episodes for _, episodes in counts), default=0)
    ks = sorted({2**power for power in range(1, most.bit_length())} | {most}) if most > 1 else []
    if not ks:
        return {}
    return {
        name: {str(k): math.fsum(function(*count, k) for count in counts) / len(counts) for k in ks}
        for name, function in (("pass_at_k", pass_at_k), ("pass_hat_k", pass_hat_k))
    }


def _reports(sound: Sequence[Segments]) -> list[EpisodeRecord]:
    return [segments[0].episode for segments in sound if segments[0].episode]


# A table of a few episodes of each rollout, for trackers that have tables.
SAMPLED = "swe/sampled_episodes"
SHOWN = 4  # episodes of a rollout
COLUMNS = ("rollout", "task", "solved", "reward", "stop_reason", "turns", "patch")


def rows_of(rollout_id: int, samples: Sequence[Sample]) -> list[list[Any]]:
    """Return a few of a rollout's episodes, evenly spaced, as rows of a table of `COLUMNS`."""
    episodes = trajectories(samples)
    places = sorted({round(i * (len(episodes) - 1) / (SHOWN - 1)) for i in range(SHOWN)}) if episodes else []
    rows: list[list[Any]] = []
    for record in (record_of(episodes[place][0]) for place in places):
        done = record.episode
        what = (done.stop_reason, done.turns, done.patch) if done else ("", 0, "")
        rows.append([rollout_id, record.task or "", record.solved, record.reward or 0.0, *what])
    return rows
