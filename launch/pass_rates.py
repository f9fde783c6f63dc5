"""`slime-swe tasks filter`: the tasks whose share of solved episodes lies in a range, as a list that `ids=` takes."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import orjson

from slime_swe.data_sources.registry import load_tasks, with_ids
from slime_swe.errors import UserError
from slime_swe.files import replace_file, writing
from slime_swe.launch.config import read_recipe
from slime_swe.launch.episodes import recorded
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.rollout.records import EPISODES, Summary, by_episode

_RANGE = re.compile(r"(\d+(?:\.\d+)?)(%?)-(\d+(?:\.\d+)?)(%?)")


@dataclass(frozen=True)
class Rate:
    """The solve rate of one task: how many episodes solved it, of how many that infrastructure did not break."""

    solved: int
    episodes: int

    @property
    def share(self) -> Fraction:
        return Fraction(self.solved, self.episodes)


@dataclass(frozen=True)
class Range:
    """A range of the shares of a task's episodes, both ends included, which `text` gives as such or as counts."""

    text: str
    low: Fraction
    high: Fraction


@dataclass(frozen=True)
class Filtered:
    """The tasks that a filter kept of those that were seen, and how many went out for which reason."""

    range: Range
    of: int
    kept: Mapping[str, Rate]
    out: Mapping[str, int]

    @property
    def tasks(self) -> int:
        return len(self.kept) + sum(self.out.values())

    def __str__(self) -> str:
        reasons = ", ".join(f"{count:,} {why}" for why, count in self.out.items() if count)
        counts = "" if "%" in self.range.text else f", {self.range.text} of {self.of}"
        shares = f"{float(self.range.low):.1%} to {float(self.range.high):.1%}"
        out = f"; left out: {reasons}" if reasons else ""
        return f"{len(self.kept):,} of {self.tasks:,} tasks were solved in {shares} of their episodes{counts}{out}"


def rates_in(folders: Sequence[Path], evaluation: str | None) -> tuple[dict[str, Rate], list[str]]:
    """Add up the rates of all tasks that these runs or evaluations have played, and list these tasks' sets.

    Raises `UserError` where a folder holds no episodes.
    """
    solved, episodes, sets = Counter[str](), Counter[str](), dict[str, None]()
    for folder in folders:
        path, records = recorded(folder, evaluation)
        data = read_recipe(folder / RECIPE_FILE).data
        names = {summary.dataset for _, summary in records}
        sets |= dict.fromkeys(
            data.train if path.name == EPISODES else [spec for name, spec in data.eval.items() if name in names]
        )
        for segments in by_episode((summary for _, summary in records), _episode):
            task = segments[0].task
            if task is not None:
                sound = all(one.outcome != "broken" for one in segments)
                episodes[task] += sound
                solved[task] += sound and segments[0].outcome == "solved"
    return {task: Rate(solved[task], episodes[task]) for task in episodes}, list(sets)


def _episode(one: Summary) -> tuple[int | None, str | None, int] | None:
    """Name the episode that a record is of; None where it has no name."""
    name = one.trajectory if one.trajectory is not None else one.index
    return None if name is None else (one.rollout, one.dataset, name)


def filtered(rates: Mapping[str, Rate], solved: str, least: int) -> Filtered:
    """Keep the tasks whose rate is in the range `solved`, of those with `least` episodes or more.

    Counts (`1-7`) are of as many episodes as most of these tasks have, the larger number where two are as frequent; a
    task with more or fewer is kept by the same shares. Raises `UserError` for a range that is none, and where no task
    is kept.
    """
    if least < 1:
        raise UserError(f"--min-episodes {least} must be at least 1: a rate is of episodes")
    seen = {task: rate for task, rate in rates.items() if rate.episodes >= least}
    counts = Counter(rate.episodes for rate in seen.values())
    of = max(counts, key=lambda number: (counts[number], number), default=0)
    asked = _range(solved, of)
    kept = {task: rate for task, rate in sorted(seen.items()) if asked.low <= rate.share <= asked.high}
    others = [rate for task, rate in seen.items() if task not in kept]
    never, always = (sum(rate.share == share for rate in others) for share in (0, 1))
    out = {
        "never solved": never,
        "always solved": always,
        "out of the range otherwise": len(others) - never - always,
        f"seen in fewer than {least} episodes (--min-episodes)": len(rates) - len(seen),
    }
    found = Filtered(asked, of, kept, out)
    if not kept:
        raise UserError(f"--solved {solved} keeps no task: {found}")
    return found


def _range(text: str, of: int) -> Range:
    """Parse a range. of: episodes that a count is out of; 0 where no task is left to count."""
    match = _RANGE.fullmatch(text.replace(" ", ""))
    example = "give counts of episodes such as 1-7, or shares such as 10%-90%, the smaller one first"
    if match is None or match[2] != match[4] or (not match[2] and "." in text):
        raise UserError(f"--solved {text} is no range: {example}")
    low, high = Fraction(match[1]), Fraction(match[3])
    if low > high or (match[2] and high > 100):
        raise UserError(f"--solved {text} is no range: {example}, up to 100%")
    if not match[2] and of and high > of:
        raise UserError(
            f"--solved {text}: most tasks have {of} episodes, and {high} is more. Give a range up to {of}, or shares "
            "such as 10%-90%"
        )
    whole = 100 if match[2] else max(of, 1)
    return Range(text, low / whole, high / whole)


def write_lists(found: Filtered, sets: Sequence[str], out: Path) -> dict[str, Path]:
    """Write the ids of each task set into a file, `out` or one beside it for each of several; returns those by the set
    that takes it. Raises `UserError` where a file is there, and where the tasks of several sets can't be read."""
    members = {spec: list(found.kept) for spec in sets}
    if len(sets) > 1:
        members = {spec: [task.id for task in load_tasks(spec) if task.id in found.kept] for spec in sets}
    names = [spec for spec in sets if members[spec]]
    if not names:
        raise UserError(
            f"no task set of these runs holds {next(iter(found.kept))}: {', '.join(sets) or 'they name none'}"
        )
    paths = {
        spec: out if len(names) == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
        for number, spec in enumerate(names, start=1)
    }
    for path in paths.values():
        if path.exists():
            raise UserError(f"--out: {path} is there already: give another file")
    for spec, path in paths.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, _content({task: found.kept[task] for task in members[spec]}))
    return {with_ids(spec, str(path.resolve())): path for spec, path in paths.items()}


def _content(kept: Mapping[str, Rate]) -> bytes:
    """Write one id a line, with its rate as a comment; a JSON list where an id holds what begins one."""
    if any("#" in task or task.startswith("[") for task in kept):
        return orjson.dumps(list(kept), option=orjson.OPT_INDENT_2)
    return "".join(f"{task}  # {rate.solved} of {rate.episodes}\n" for task, rate in kept.items()).encode()


def as_override(sets: Iterable[str]) -> str:
    """Write `data.train=[...]` of these task sets, as it is pasted into a shell."""
    return shlex.quote(f"data.train={orjson.dumps(list(sets)).decode()}")
