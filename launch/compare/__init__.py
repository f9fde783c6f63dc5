"""The comparison of two sides on one set of tasks, as one document: what `slime-swe compare --json` prints of a set.

Read this file first. `sources` reads the two sides and matches their sets, and `intervals` has the arithmetic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError, unknown
from slime_swe.launch.compare.intervals import Interval, Paired, Refused, Side, intervals_of, other_tasks, pair, student
from slime_swe.launch.compare.sources import Repeated
from slime_swe.launch.config import read_recipe
from slime_swe.launch.evaluation import in_words
from slime_swe.launch.output import rate
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.rollout.metrics import sign_test, wilson_interval


def compare(name: str, a: Repeated, b: Repeated) -> dict[str, Any]:
    """Compare two sides on a set's common tasks. Raises `UserError` without one.

    Differences, rates and limits are shares from -1 to 1, not points.
    """
    left, right = a.outcomes, b.outcomes
    common = [task for task in left if task in right]
    if not common:
        raise UserError(f"A and B have no task of {name} in common: {_first(left)}; {_first(right)}")
    places = [(e.folder, e.name) for e in (*a.evaluations, *b.evaluations) if e.folder is not None]
    repositories, unknown = repositories_of(common, dict.fromkeys(places))
    paired = pair(left, right, repositories)
    found = intervals_of(paired, unknown)
    test = test_of(paired)
    return {
        "difference": paired.difference,
        "intervals": {question: _interval(interval) for question, interval in found.items()},
        "p_value": test.p_value,
        "test": test.name,
        "verdict": verdict(paired.difference, test.p_value),
        "power": power(paired, found),
        **_counts(paired, repositories),
        "a": _side(paired.a, a),
        "b": _side(paired.b, b),
        "left_out": {"a": [task for task in left if task not in right], "b": [t for t in right if t not in left]},
    }


# A task's repository is found by the task's id where that names it, else by its record.
_SWEBENCH_ID = re.compile(r"([\w.-]+?)__([\w.-]+)-\d+")  # django__django-11099


def repositories_of(tasks: Iterable[str], places: Iterable[tuple[Path, str]]) -> tuple[dict[str, str] | None, str]:
    """Map each task to its repository, `owner/name`; where some are unknown, return None and the reason.

    places: folders of runs, and the name that the tasks' set has there.
    """
    wanted = list(tasks)
    known = {task: f"{match[1]}/{match[2]}" for task in wanted if (match := _SWEBENCH_ID.fullmatch(task))}
    why = "the ids do not name them"
    for folder, name in places:
        if len(known) == len(wanted):
            break
        try:
            known |= _recorded(folder, name)
        except UserError as error:
            why = str(error)
        else:
            why = "their records do not name them"
    missing = [task for task in wanted if task not in known]
    if missing:
        return (
            None,
            f"the repositories of {len(missing)} of {len(wanted)} tasks are not known ({missing[0]}, ...): {why}",
        )
    return {task: known[task] for task in wanted}, ""


def _recorded(folder: Path, name: str) -> dict[str, str]:
    """Read the repositories of a run's evaluation set. Raises `UserError` where its tasks are not on this machine."""
    spec = read_recipe(folder / RECIPE_FILE).data.eval.get(name)
    if spec is None:
        raise UserError(f"{folder / RECIPE_FILE} has no data.eval.{name}")
    return {task.id: found for task in load_tasks(spec) if (found := repository_of(task))}


def repository_of(task: Task) -> str:
    """Return the task's repository, or an empty text where nothing names it."""
    return str(task.metadata.get("repo") or getattr(task.oracle, "repo", ""))


def _counts(paired: Paired, repositories: Mapping[str, str] | None) -> dict[str, Any]:
    return {
        "tasks": len(paired.tasks),
        "repositories": None if repositories is None else len(set(repositories.values())),
        "gained": int((paired.differences > 0).sum()),
        "lost": int((paired.differences < 0).sum()),
    }


def _interval(found: Interval | Refused) -> dict[str, Any]:
    if isinstance(found, Refused):
        return {"refused": found.reason}
    return {
        "low": found.low,
        "high": found.high,
        "standard_error": found.estimate.error,
        "degrees_of_freedom": found.estimate.degrees,
        "verdict": verdict_of(found),
    }


# A paired difference has a p value, and an evaluation a smallest difference that it can show.
ALPHA, POWER = 0.05, 0.8  # two-sided size of the tests, and the power that is asked for
DIFFERENCES = (0.01, 0.02, 0.03, 0.05, 0.1)  # of the table of runs


@dataclass(frozen=True)
class Test:
    __test__ = False  # no test of pytest's
    name: str
    p_value: float


def test_of(paired: Paired) -> Test:
    """Test, two-sided, that there is no difference on tasks of these repositories.

    With one episode on both sides it is McNemar's exact test of the tasks that one side alone solves (McNemar 1947).
    With more it is the t test of the tasks' differences, stratified like the interval `other tasks of these
    repositories`, and where its error is 0 the exact sign test, which is McNemar's for more episodes.
    """
    gained, lost = int((paired.differences > 0).sum()), int((paired.differences < 0).sum())
    if paired.single:
        return Test("exact McNemar", sign_test(gained, lost))
    found = other_tasks(paired)
    if isinstance(found, Refused) or not found.estimate.error:
        return Test("exact sign test", sign_test(gained, lost))
    return Test("paired t test", found.estimate.p_value)


def verdict(difference: float, p_value: float) -> str:
    if p_value >= ALPHA or not difference:
        return "not resolved"
    return "better" if difference > 0 else "worse"


def verdict_of(interval: Interval) -> str:
    """Return the verdict on one question alone: `not resolved` where its interval holds 0."""
    return "better" if interval.low > 0 else "worse" if interval.high < 0 else "not resolved"


def detectable(interval: Interval | Refused) -> float | None:
    """Return the difference that such an evaluation resolves with 80 % power: (t_0.975 + t_0.8) errors.

    It is None where nothing varied, which does not say how much there is to vary, or where the interval is refused.
    """
    if isinstance(interval, Refused) or not interval.estimate.error:
        return None
    found = interval.estimate
    return (found.quantile + student(POWER, found.degrees)) * found.error


def runs_each(difference: float, deviation: float) -> int:
    """Return how many runs of each side resolve a difference on these tasks with 80 % power.

    n = 2 (z_0.975 + z_0.8)^2 deviation^2 / difference^2.

    deviation: that of the solve rate from run to run, taken as known; in the unit of `difference`. Such tables, and
    deviations of 1.5 points and more on SWE-bench Verified, are in arXiv 2602.07150.
    """
    z = student(1 - ALPHA / 2, 1e9) + student(POWER, 1e9)
    return max(1, math.ceil(round(2 * (z * deviation / difference) ** 2, 9)))


def run_deviation(side: Side) -> tuple[float, bool]:
    """Return the standard deviation of a run's solve rate (one episode of each task), and whether it was measured.

    It is measured where every task has two episodes. Else this is the most that it can be, sqrt(p (1 - p) / T), as if
    all tasks were alike.
    """
    count = len(side.rates)
    if side.episodes.min() < 2:
        rate = float(side.rates.mean())
        return math.sqrt(rate * (1 - rate) / count), False
    return math.sqrt(float((side.error_variances * side.episodes).sum())) / count, True


def power(paired: Paired, intervals: Mapping[str, Interval | Refused]) -> dict[str, object]:
    """Say what this evaluation can show, and what others could; differences and deviations are shares, not points."""
    deviations = {"a": run_deviation(paired.a), "b": run_deviation(paired.b)}
    typical = math.sqrt(float(np.mean([deviation**2 for deviation, _ in deviations.values()])))
    return {
        "power": POWER,
        "detectable": {
            name: detectable(intervals[name]) for name in ("these tasks", "other tasks of these repositories")
        },
        "run_deviation": {name: deviation for name, (deviation, _) in deviations.items()} | {"typical": typical},
        "run_deviation_measured": all(measured for _, measured in deviations.values()),
        "runs_each": [
            {"difference": difference, "runs": runs_each(difference, typical) if typical else None}
            for difference in DIFFERENCES
        ],
    }


def _side(side: Side, given: Repeated) -> dict[str, Any]:
    """Describe a side on the paired tasks. The interval is Wilson's, with the tasks as trials."""
    rate, tasks = float(side.rates.mean()), len(side.rates)
    return {
        "evaluations": [
            {"source": e.source, "set": e.name, "rollout": e.rollout, **(e.limits or {})} for e in given.evaluations
        ],
        "solve_rate": rate,
        "interval": list(wilson_interval(rate * tasks, tasks)),
        "episodes": int(side.episodes.sum()),
        "broken": given.broken,
    }


def _first(tasks: Mapping[str, Sequence[int]]) -> str:
    return f"{next(iter(tasks))}, ..." if tasks else "none"


def points(share: float) -> str:
    """Format a share in points: `+4.8`, `−0.3` or `0.0`."""
    rounded = round(100 * share, 1)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else ''}{abs(rounded):.1f}"


# `--at-least POINTS`: a difference that is asked for, of one set or of each.
@dataclass(frozen=True)
class Requirement:
    """An `--at-least` of one set. met: the difference is `points` or more, and the verdict is `better`."""

    set: str
    points: float
    met: bool


def requirements(given: Sequence[str], sets: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check each `POINTS` or `SET=POINTS` against the comparisons by set. Raises `UserError` where one is malformed."""
    return [asdict(found) for text in given for found in _read(text, sets)]


def _read(text: str, sets: Mapping[str, Mapping[str, Any]]) -> list[Requirement]:
    name, separator, number = text.rpartition("=")
    try:
        points = float(number)
    except ValueError:
        points = math.nan
    if not 0 <= points <= 100:
        raise UserError(f"--at-least {text}: give points of the solve rate from 0 to 100, as 5 or NAME=5")
    if separator and name not in sets:
        raise UserError(unknown("--at-least", name, sets))
    return [_check(name, points, sets[name]) for name in ([name] if separator else sets)]


def _check(name: str, points: float, comparison: Mapping[str, Any]) -> Requirement:
    reached = 100 * comparison["difference"] >= points - 1e-9  # 0.05 is 5 points, whatever its last bit
    return Requirement(name, points, bool(reached and comparison["verdict"] == "better"))


# A comparison as a person reads it, in points of the solve rate.
_NAMED = 3  # tasks that are left out, before "and N more"


def show(sets: Mapping[str, Mapping[str, Any]], required: Sequence[Mapping[str, Any]], console: Console) -> None:
    for name, comparison in sets.items():
        _print(console, [_title(name, comparison), *_evaluations(comparison)])
        console.print(_rates(comparison))
        console.print(_intervals(comparison))
        _print(console, [*_verdict(comparison), *_refused(comparison), *_left_out(comparison), ""])
        if comparison["power"]["run_deviation"]["typical"]:
            _print(console, [_deviation(comparison["power"])])
            console.print(_runs(comparison["power"]))
    for requirement in required:
        met = "met" if requirement["met"] else "not met"
        _print(console, [f"{requirement['set']}: at least {requirement['points']:g} points, and better: {met}"])


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _title(name: str, comparison: Mapping[str, Any]) -> str:
    count = comparison["repositories"]
    of = f" of {count} {'repository' if count == 1 else 'repositories'}" if count else ""
    return f"{name}: {comparison['tasks']} tasks{of}"


def _evaluations(comparison: Mapping[str, Any]) -> Iterator[str]:
    for side in ("a", "b"):
        for entry in comparison[side]["evaluations"]:
            after = "" if entry["rollout"] is None else f"  (rollout {entry['rollout']})"
            limits = f"  {in_words(entry)}" if "max_turns" in entry else ""
            yield f"  {side.upper()}  {entry['source']}{after}{limits}"


def _rates(comparison: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE)
    for heading in ("", "episodes", "broken", "solved"):
        table.add_column(heading, no_wrap=True)
    for side in ("a", "b"):
        found = comparison[side]
        counts = (str(found[key]) for key in ("episodes", "broken"))
        table.add_row(side.upper(), *counts, rate(found["solve_rate"], found["interval"]))
    table.add_row("B − A", "", "", f"{points(comparison['difference'])} points", style="bold")
    return table


def _intervals(comparison: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE, collapse_padding=True)
    for heading in ("95 % interval of B − A, for", "points", "", "80 % power"):
        table.add_column(heading, no_wrap=True)
    for question, found in comparison["intervals"].items():
        cells = ("–", "refused")
        if "refused" not in found:
            cells = (f"{points(found['low'])} to {points(found['high'])}", found["verdict"])
        detectable = comparison["power"]["detectable"].get(question)
        table.add_row(question, *cells, "–" if detectable is None else f"{100 * detectable:.1f} points")
    return table


def _runs(power: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("points of difference", no_wrap=True)
    for row in power["runs_each"]:
        table.add_column(f"{100 * row['difference']:g}", justify="right", no_wrap=True)
    table.add_row("runs of A and of B", *(str(row["runs"]) for row in power["runs_each"]))
    return table


def _deviation(power: Mapping[str, Any]) -> str:
    most = "" if power["run_deviation_measured"] else "at most "
    typical = 100 * power["run_deviation"]["typical"]
    return f"A run's solve rate has a deviation of {most}{typical:.1f} points. For 80 % power:"


def _verdict(comparison: Mapping[str, Any]) -> Iterator[str]:
    gained, lost = comparison["gained"], comparison["lost"]
    yield f"verdict: {comparison['verdict']} (p = {comparison['p_value']:.2g}, {comparison['test']})"
    yield f"tasks: {gained} better in B, {lost} better in A, {comparison['tasks'] - gained - lost} equal"


def _refused(comparison: Mapping[str, Any]) -> Iterator[str]:
    for question, found in comparison["intervals"].items():
        if "refused" in found:
            yield f"refused: {question}: {found['refused']}"


def _left_out(comparison: Mapping[str, Any]) -> Iterator[str]:
    for side, tasks in comparison["left_out"].items():
        if tasks:
            more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
            yield f"left out: {len(tasks)} tasks that only {side.upper()} has: {', '.join(tasks[:_NAMED])}{more}"
