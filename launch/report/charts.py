"""The charts of a report: Vega-Lite specifications (https://vega.github.io/vega-lite/docs/) with their data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slime_swe.launch.export.episodes import TRAINING
from slime_swe.launch.report.figures import in_words
from slime_swe.rollout.group_outcomes import INFORMATIVE, OUTCOMES

Moment = Mapping[str, Any]  # `figures.moment_figures`, and `run`: its name
Row = dict[str, Any]

TASKS = 60  # of a heat map
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
_GROUPS = dict(zip(map(in_words, OUTCOMES), _COLOURS, strict=True))  # by what they teach
_X = {"field": "rollout", "type": "quantitative", "title": "rollout", "axis": {"tickMinStep": 1, "format": "d"}}
_BARS_X = {"field": "rollout", "type": "ordinal", "title": "rollout", "axis": {"labelOverlap": True, "labelAngle": 0}}


def run_charts(moments: Sequence[Moment], trainer: Mapping[str, Sequence[Row]]) -> list[Row]:
    """All charts. trainer: by run, the lines of its `metrics.jsonl` that are about a rollout."""
    training = [moment for moment in moments if moment["set"] == TRAINING]
    evaluations = [moment for moment in moments if moment["set"] != TRAINING]
    runs = list(dict.fromkeys(moment["run"] for moment in moments))
    charts = [*_evaluations(evaluations, len(runs)), *_learning(training)]
    for run in runs:
        of = f" · {run}" if len(runs) > 1 else ""
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
        if isinstance(line.get("seconds"), dict)
        for phase, seconds in line["seconds"].items()
        if phase not in ("total", "sandbox") and isinstance(seconds, int | float)  # sandbox is a part of generation
    ]
    if rows:
        yield _bars(f"Time of a step{of}", "By phase.", rows, _kind(), _number("value", "seconds"))


def _by_kind(moments: Sequence[Moment], figures: str) -> list[Row]:
    """A row for each of these figures of each moment."""
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
    """The layer that shows them; none where no row has one, of which Vega warns."""
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
