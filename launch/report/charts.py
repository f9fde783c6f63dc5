"""The charts of a report: Vega-Lite specifications (https://vega.github.io/vega-lite/docs/) with their data."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from slime_swe.rollout.metrics import INFORMATIVE, OUTCOMES, episode_metrics, group_outcome, wilson_interval
from slime_swe.rollout.records import TRAINING, Record, is_broken

Moment = Mapping[str, Any]  # of `moment_figures`, and `run`: its name
Row = dict[str, Any]

TASKS = 60  # of a heat map
NAMED = 8  # tasks of a tooltip
TRAINER = {  # figures of metrics.jsonl -> title
    "entropy": "Entropy of a sampled token, nats",
    "grad_norm": "Gradient norm",
    "clip_fraction": "Share of tokens that were clipped",
    "logprob_diff_mean": "Trainer and server: mean |Δ log-probability|, nats",
    "rollout/staleness": "Staleness, steps",
    "trained_tokens": "Trained tokens",
}
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_COLOURS = ("#3f7fbf", "#8fbf9f", "#d9a566", "#a08fbf", "#b4637a")


def in_words(outcome: str) -> str:
    return outcome.replace("_", " ")


_GROUPS = dict(zip(map(in_words, OUTCOMES), _COLOURS, strict=True))  # by what they teach
_X = {"field": "rollout", "type": "quantitative", "title": "rollout", "axis": {"tickMinStep": 1, "format": "d"}}
_BARS_X = {"field": "rollout", "type": "ordinal", "title": "rollout", "axis": {"labelOverlap": True, "labelAngle": 0}}


# The figures of one moment of a run, a training rollout or an evaluation, from its episodes' records.
_COMPONENT = "reward/"

Segments = list[Record]  # of one episode


def moment_figures(episodes: Sequence[Segments]) -> dict[str, Any]:
    """Return a moment's figures in JSON's types. Means are over the sound episodes; seconds are an episode's."""
    first = episodes[0][0]
    sound = [segments for segments in episodes if not is_broken(segments)]
    means = episode_metrics(record for segments in episodes for record in segments)
    solved = sum(segments[0].solved for segments in sound)
    tasks: dict[str, list[int]] = {}
    for segments in sound:
        counts = tasks.setdefault(task_of(segments), [0, 0])
        counts[0] += segments[0].solved
        counts[1] += 1
    return {
        "set": first.dataset or TRAINING,
        "rollout": first.rollout_id,
        "episodes": len(episodes),
        "broken": len(episodes) - len(sound),
        "solved": solved,
        "solve_rate": means.get("solve_rate"),
        "solve_interval": wilson_interval(solved, len(sound)),
        "reward": means.get("reward"),
        "reward_interval": _mean_interval(sound),
        "components": {name[len(_COMPONENT) :]: value for name, value in means.items() if name.startswith(_COMPONENT)},
        "stops": Counter(stop_reason(segments) for segments in episodes),
        "groups": Counter(group_kind(group) for group in groups_of(episodes).values()),
        "seconds": _seconds(means),
        "tasks": tasks,
    }


def groups_of(episodes: Sequence[Segments]) -> dict[Any, list[Segments]]:
    """Group episodes by their group's number, or by their task where they have none."""
    groups: dict[Any, list[Segments]] = {}
    for segments in episodes:
        number = segments[0].group_index
        groups.setdefault(task_of(segments) if number is None else number, []).append(segments)
    return groups


def group_kind(group: Sequence[Segments]) -> str:
    """Say what a group teaches: under a binary reward only an informative one has advantages other than zero."""
    return in_words(group_outcome(record for segments in group for record in segments))


def task_of(segments: Segments) -> str:
    return segments[0].task or "unnamed"


def stop_reason(segments: Segments) -> str:
    episode = segments[0].episode
    return (episode.stop_reason if episode else "") or "not recorded"


def _mean_interval(sound: Sequence[Segments]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean reward over episodes, of which those of one group resemble each other.

    With n_g episodes of sum S_g in group g, N in all and m their mean, error² = G / (G - 1) sum_g (S_g - n_g m)² / N²
    (that of a ratio estimate, Cochran 1977, chapter 6), with Student's t on G - 1. It is None where that says
    nothing: of one group, or where no group differs from the mean.
    """
    groups = [[segments[0].reward or 0.0 for segments in group] for group in groups_of(sound).values()]
    if len(groups) < 2:
        return None
    count = sum(map(len, groups))
    mean = math.fsum(map(math.fsum, groups)) / count
    squares = math.fsum((math.fsum(rewards) - len(rewards) * mean) ** 2 for rewards in groups)
    error = math.sqrt(len(groups) / (len(groups) - 1) * squares) / count
    if error < 1e-12 * max(1.0, abs(mean)):  # but for rounding, nothing varies
        return None
    half = student95(len(groups) - 1) * error
    return mean - half, mean + half


@cache
def student95(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t, from its distribution with whole degrees of freedom
    (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4). SciPy, which has it, is not installed everywhere that reports are
    written."""
    low, high = 0.0, math.pi / 2
    while high - low > 1e-14:
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, degrees) < 0.95 else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """Return the probability that |t| is at most sqrt(degrees) tan(angle)."""
    odd, square = degrees % 2, math.cos(angle) ** 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for power in range(2 + odd, degrees + 1, 2):
        total += term
        term *= square * (power - 1) / power
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def _seconds(means: dict[str, float]) -> dict[str, float]:
    """Split an episode's mean seconds into waiting for the model, waiting for the sandbox, and the rest."""
    if "seconds" not in means:
        return {}
    engine, sandbox = means["engine_seconds"], means["sandbox_seconds"]
    return {"model": engine, "sandbox": sandbox, "other": max(0.0, means["seconds"] - engine - sandbox)}


def run_charts(moments: Sequence[Moment], trainer: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return all charts. trainer: by run, the lines of its `metrics.jsonl` that are about a rollout."""
    training = [moment for moment in moments if moment["set"] == TRAINING]
    evaluations = [moment for moment in moments if moment["set"] != TRAINING]
    runs = list(dict.fromkeys(moment["run"] for moment in moments))
    names = {run: f" · {run}" if len(runs) > 1 else "" for run in runs}
    charts = [*_evaluations(evaluations, len(runs))]
    for run, of in names.items():
        charts += _flips([moment for moment in evaluations if moment["run"] == run], of)
    charts += _learning(training)
    for run, of in names.items():
        mine = [moment for moment in training if moment["run"] == run]
        charts += [*_groups(mine, of), *_stops(mine, of), *_components(mine, of), *_heat_map(mine, of)]
        charts += [*_step_seconds(trainer.get(run, ()), of), *_episode_seconds(mine, of)]
    return [*charts, *_trainer(trainer)]


def _evaluations(moments: Sequence[Moment], runs: int) -> Iterator[Row]:
    rows = [
        {**_where(moment), "set": moment["set"], "value": moment["solve_rate"], **_ends(moment["solve_interval"])}
        for moment in moments
        if moment["solve_rate"] is not None
    ]
    if not rows:
        return
    colour = {"field": "run" if runs > 1 else "set", "type": "nominal", "title": None}
    shape = {"field": "set", "type": "nominal", "title": None}
    y = {**_share("value"), "title": "solved"}
    layers = [
        *_intervals(rows, {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6}),
        {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": {"y": y, "detail": shape}},
        {"mark": {"type": "point", "filled": True, "size": 60}, "encoding": {"y": y, "shape": shape}},
    ]
    encoding = {
        "x": {**_X, "title": "after rollout (−1: before the first)", "scale": {"nice": False, "padding": 12}},
        "color": colour,
        "tooltip": _tooltip("set"),
    }
    yield _chart(
        "Solve rate in evaluations", "Bars: Wilson's 95 % interval.", rows, {"layer": layers, "encoding": encoding}
    )


def _flips(moments: Sequence[Moment], of: str) -> Iterator[Row]:
    """Yield for each set of evaluations which of its tasks are solved more, or less, often than in the one before."""
    for name in dict.fromkeys(moment["set"] for moment in moments):
        found = sorted((one for one in moments if one["set"] == name), key=lambda one: _where(one)["rollout"])
        rows = [row for before, after in itertools.pairwise(found) for row in _flipped(before, after)]
        if not rows:
            continue
        colour = {**_kind(), "scale": {"domain": ["gained", "lost"], "range": [_COLOURS[1], _COLOURS[4]]}}
        about = "Against the evaluation before. Where each task is played once, sampling alone flips some."
        chart = _bars(f"Tasks gained and lost · {name}{of}", about, rows, colour, _number("value", "tasks"))
        chart["spec"]["encoding"]["tooltip"] = _tooltip("kind", "tasks")
        yield chart


def _flipped(before: Moment, after: Moment) -> Iterator[Row]:
    """Yield the rows of one evaluation: how many tasks it gained, and as a negative number how many it lost."""
    rates = [{task: solved / count for task, (solved, count) in one["tasks"].items()} for one in (before, after)]
    changes = {task: rates[1][task] - rate for task, rate in rates[0].items() if task in rates[1]}
    for kind, sign in (("gained", 1), ("lost", -1)):
        tasks = sorted(task for task, change in changes.items() if sign * change > 0)
        more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
        if tasks:
            yield {**_where(after), "kind": kind, "value": sign * len(tasks), "tasks": ", ".join(tasks[:NAMED]) + more}


def _learning(moments: Sequence[Moment]) -> Iterator[Row]:
    for name, title, about in (
        ("solve", "Solve rate in training", "Band: Wilson's 95 % interval, episodes taken as independent."),
        ("reward", "Reward in training", "Band: 95 % interval of the mean, from the spread between groups."),
    ):
        field = "solve_rate" if name == "solve" else name
        rows = [
            {**_where(moment), "value": moment[field], **_ends(moment[f"{name}_interval"])}
            for moment in moments
            if moment[field] is not None
        ]
        y = _share("value") if name == "solve" else _number("value")
        layers = [
            *_intervals(rows, {"type": "area", "opacity": 0.16}),
            {"mark": {"type": "line", "strokeWidth": 2, "point": len(rows) <= 60}, "encoding": {"y": y}},
        ]
        encoding = {"x": _X, "color": _by_run(moments), "tooltip": _tooltip()}
        if rows:
            yield _chart(title, about, rows, {"layer": layers, "encoding": encoding})


def _groups(moments: Sequence[Moment], of: str) -> Iterator[Row]:
    rows = [
        {**_where(moment), "kind": kind, "value": count, "order": place}
        for moment in moments
        for place, kind in enumerate(_GROUPS)
        if (count := moment["groups"].get(kind, 0))
    ]
    total, taught = (sum(row["value"] for row in rows if row["kind"] in kinds) for kinds in (_GROUPS, (INFORMATIVE,)))
    about = (
        f"{total - taught:,} of {total:,} groups taught nothing by their outcome: all episodes solved the task, none "
        "did, or infrastructure broke them."
    )
    colour = {
        "field": "kind", "type": "nominal", "title": None,
        "scale": {"domain": list(_GROUPS), "range": list(_GROUPS.values())},
    }  # fmt: skip
    if rows:
        yield _bars(f"Groups by what they teach{of}", about, rows, colour, _number("value", "groups"))


def _stops(moments: Sequence[Moment], of: str) -> Iterator[Row]:
    rows = [
        {**_where(moment), "kind": reason, "value": count / moment["episodes"]}
        for moment in moments
        for reason, count in sorted(moment["stops"].items())
    ]
    if rows:
        yield _bars(f"Why episodes stopped{of}", "", rows, _kind(), _share("value", "episodes"))


def _components(moments: Sequence[Moment], of: str) -> Iterator[Row]:
    rows = _by_kind(moments, "components")
    mark = {"type": "line", "strokeWidth": 2, "point": len(rows) <= 200}
    encoding = {"x": _X, "y": _number("value"), "color": _kind(), "tooltip": _tooltip("kind")}
    if rows:
        yield _chart(f"Reward components{of}", "Mean of each.", rows, {"mark": mark, "encoding": encoding})


def _heat_map(moments: Sequence[Moment], of: str) -> Iterator[Row]:
    totals: dict[str, list[int]] = {}
    for moment in moments:
        for task, (solved, episodes) in moment["tasks"].items():
            total = totals.setdefault(task, [0, 0])
            total[0] += solved
            total[1] += episodes
    most = sorted(totals, key=lambda task: (-totals[task][1], task))[:TASKS]
    shown = sorted(most, key=lambda task: (-totals[task][0] / totals[task][1], task))
    rows = [
        {**_where(moment), "task": task, "value": counts[0] / counts[1], "episodes": counts[1]}
        for moment in moments
        for task in shown
        if (counts := moment["tasks"].get(task))
    ]
    if not rows:
        return
    about = f"The {TASKS} tasks with most episodes, of {len(totals):,}; " if len(totals) > TASKS else ""
    colour = {
        **_share("value"),
        "title": "solved",
        "scale": {"domain": [0, 1], "range": ["#ecd9c0", "#8fb3c9", "#1f5f8b"], "interpolate": "rgb"},
    }
    y = {"field": "task", "type": "nominal", "title": None, "sort": shown}
    encoding = {"x": _BARS_X, "y": y, "color": colour, "tooltip": _tooltip("task", "episodes")}
    body = {"mark": {"type": "rect"}, "encoding": encoding, "height": 14 * len(shown)}
    body["usermeta"] = {"embedOptions": {"renderer": "canvas"}}
    yield _chart(f"Tasks × rollouts{of}", f"{about}Best task first.".capitalize(), rows, body, wide=True)


def _step_seconds(lines: Sequence[Row], of: str) -> Iterator[Row]:
    rows = [
        {"rollout": line["rollout_id"], "kind": phase.replace("_", " "), "value": seconds}
        for line in lines
        for phase, seconds in _phases(line.get("seconds")).items()
    ]
    if rows:
        yield _bars(f"Time of a step{of}", "By phase.", rows, _kind(), _number("value", "seconds"))


def _phases(recorded: object) -> dict[str, float]:
    """Return a step's seconds by phase, with what belongs to none as `other`; without the means of an episode."""
    if not isinstance(recorded, dict):
        return {}
    seconds = {name: each for name, each in recorded.items() if "/" not in name and isinstance(each, int | float)}
    total = seconds.pop("total", 0.0)
    other = total - sum(seconds.values())
    return seconds | ({"other": other} if other > 0 else {})


def _by_kind(moments: Sequence[Moment], figures: str) -> list[Row]:
    """Return a row for each of these figures of each moment."""
    return [
        {**_where(moment), "kind": kind, "value": value}
        for moment in moments
        for kind, value in moment[figures].items()
    ]


def _episode_seconds(moments: Sequence[Moment], of: str) -> Iterator[Row]:
    rows = _by_kind(moments, "seconds")
    if any(row["value"] for row in rows):
        about = "Mean: waiting for the model, for the sandbox, and the rest."
        yield _bars(f"Time of an episode{of}", about, rows, _kind(), _number("value", "seconds"))


def _trainer(trainer: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    for name, title in TRAINER.items():
        rows = [
            {"run": run, "rollout": line["rollout_id"], "value": line[name]}
            for run, lines in trainer.items()
            for line in lines
            if isinstance(line.get(name), int | float)
        ]
        mark = {"type": "line", "strokeWidth": 2, "point": len(rows) <= 60}
        encoding = {"x": _X, "y": _number("value"), "color": _by_run(rows), "tooltip": _tooltip()}
        if rows:
            yield _chart(title, "", rows, {"mark": mark, "encoding": encoding, "height": 150})


def _bars(title: str, about: str, rows: list[Row], colour: Row, y: Row) -> Row:
    encoding = {"x": _BARS_X, "y": y, "color": colour, "tooltip": _tooltip("kind")}
    if any("order" in row for row in rows):
        encoding["order"] = {"field": "order"}
    return _chart(title, about, rows, {"mark": {"type": "bar"}, "encoding": encoding})


def _chart(title: str, about: str, rows: list[Row], body: Row, *, wide: bool = False) -> Row:
    shared = {"$schema": _SCHEMA, "description": f"{title}. {about}".strip(), "width": "container", "height": 220}
    spec = {**shared, "autosize": {"type": "fit-x", "contains": "padding"}, "data": {"values": rows}, **body}
    return {"title": title, "about": about, "wide": wide, "spec": spec}


def _where(moment: Moment) -> Row:
    return {"run": moment["run"], "rollout": -1 if moment["rollout"] is None else moment["rollout"]}


def _ends(interval: Sequence[float] | None) -> Row:
    return {"low": interval[0], "high": interval[1]} if interval else {}


def _intervals(rows: Iterable[Row], mark: Row) -> list[Row]:
    """Return the layer that shows the intervals; no layer where no row has one, of which Vega warns."""
    encoding = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
    return [{"mark": mark, "encoding": encoding}] if any("low" in row for row in rows) else []


def _share(field: str, title: str | None = None) -> Row:
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "axis": {"format": "%"},
        "scale": {"domain": [0, 1]},
    }


def _number(field: str, title: str | None = None) -> Row:
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}} if not title else {
        "field": field, "type": "quantitative", "title": title
    }  # fmt: skip


def _kind() -> Row:
    return {"field": "kind", "type": "nominal", "title": None}


def _by_run(rows: Iterable[Mapping[str, Any]]) -> Row:
    several = len({row["run"] for row in rows}) > 1
    return {"field": "run", "type": "nominal", "title": None, **({} if several else {"legend": None})}


def _tooltip(*more: str) -> list[Row]:
    figures = [{"field": "value", "type": "quantitative", "format": ".3~f"}]
    return [*({"field": name} for name in (*more, "run", "rollout")), *figures]
