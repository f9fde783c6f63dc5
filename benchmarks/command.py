"""What the benchmarks share: laps by name, their command line, and the baseline that they save or are held against."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from slime_swe.errors import InfrastructureError, UserError

BASELINES = Path(__file__).parent / "baselines"
TOLERANCE = 2.0  # a ratio to the rival this many times the baseline's fails the check
NONE: Mapping[str, Any] = {}
Figures = dict[str, float]


class Laps:
    """Times by name, in seconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    async def time(self, name: str, action: Awaitable[Any], count: int = 1) -> Any:
        """Await the action, which does the same `count` times."""
        started = time.perf_counter()
        result = await action
        self.times.setdefault(name, []).append((time.perf_counter() - started) / count)
        return result

    def medians(self) -> Figures:
        """In milliseconds."""
        return {name: statistics.median(values) * 1e3 for name, values in self.times.items()}


def run(
    about: str,
    name: str,
    measure: Callable[..., Awaitable[Figures]],
    *,
    ratios: Mapping[str, str] = NONE,
    limits: Mapping[str, float] = NONE,
    floors: Mapping[str, float] = NONE,
    **options: Any,
) -> int:
    """One benchmark as a command: take its figures, print, save or check them as asked; the exit code.

    measure: is called with the `options`, which have these defaults. ratios: figure → the rival's, of the same run,
    since a busy machine slows both alike: `--check` fails where one is `TOLERANCE` times the baseline's. limits:
    figure → the most that it may be. floors: figure → the least.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in options.items():
        parser.add_argument(f"--{option}", type=type(default), default=default, help=f"default: {default or 'none'}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="fail where a figure is much worse than its baseline")
    parser.add_argument("--save", action="store_true", help="make these figures the baseline")
    given = vars(parser.parse_args())
    path = BASELINES / f"{name}.json"
    if given["check"] and not path.exists():
        parser.error(f"--check has no baseline to compare with: make one with --save ({path})")
    try:
        figures = asyncio.run(measure(**{option: given[option] for option in options}))
    except (UserError, InfrastructureError) as error:
        print(error, file=sys.stderr)
        return 2
    figures = {figure: round(value, 3) for figure, value in figures.items()}
    print(json.dumps(figures) if given["json"] else _table(figures, ratios))
    if given["save"]:
        path.write_text(json.dumps(figures, indent=2) + "\n")
    worse = _worse(figures, json.loads(path.read_text()), ratios, limits, floors) if given["check"] else []
    print(*worse, sep="\n", end="", file=sys.stderr)
    return 1 if worse else 0


def _table(figures: Figures, ratios: Mapping[str, str]) -> str:
    width = max(map(len, figures))
    rows = []
    for name, value in figures.items():
        rival = figures.get(ratios.get(name, ""))
        beside = f"   {value / rival:.3f} of {ratios[name]}" if rival else ""
        rows.append(f"{name:{width}} {value:12.3f}{beside}")
    return "\n".join(rows)


def _worse(
    figures: Figures,
    baseline: Figures,
    ratios: Mapping[str, str],
    limits: Mapping[str, float],
    floors: Mapping[str, float],
) -> list[str]:
    worse = [
        f"{name} is {figures[name]}, more than {limit} (baseline: {baseline[name]})"
        for name, limit in limits.items()
        if figures[name] > limit
    ]
    worse += [
        f"{name} is {figures[name]}, less than {floor} (baseline: {baseline[name]})"
        for name, floor in floors.items()
        if figures[name] < floor
    ]
    for name, rival in ratios.items():
        ratio, expected = figures[name] / figures[rival], baseline[name] / baseline[rival]
        if ratio > TOLERANCE * expected:
            worse.append(f"{name} is {ratio:.3f} of {rival}; the baseline is {expected:.3f}")
    return worse
