"""A replay as a person reads it: the check, the figures of the run before and after, and a line for each rollout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from slime_swe.launch.output import print_rows, rate
from slime_swe.launch.replay.asked import Asked, limits
from slime_swe.launch.replay.sums import BINS, STATES

SHOWN = 5  # differences that are named
NONE = "–"
_SECTIONS = {
    "groups": {"recorded": "groups recorded", "trained": "  trained", "missing": "  missing from the batches"},
    "episodes": {"recorded": "episodes recorded", **{state: f"  {state.replace('_', ' ')}" for state in STATES}},
    "tokens": {
        "sampled": "tokens sampled",
        "in_loss": "  in the loss",
        "trained": "  trained, with an advantage",
        "masked_share": "  masked with their episode",
    },
    "weight": {
        "loss_of_longest": "longest quarter's share of the loss",
        "gradient_of_longest": "  of |advantage| x weight",
        "gradient_of_unsolved": "unsolved episodes' share of that",
        "gradient_of_largest": "largest episode's share of that",
        "effective_episodes": "effective episodes",
        "gradient": "sum of |advantage| x weight",
    },
    "seconds": {
        "episodes": "seconds of episodes",
        "unused": "  of those that train nothing",
        "unused_engine": "    waiting for the engine",
        "dropped": "    in groups that are dropped",
        "unused_share": "    share",
    },
}
_SHARES = (
    *("masked_share", "loss_of_longest", "unused_share"),
    *("gradient_of_longest", "gradient_of_unsolved", "gradient_of_largest"),
)
_OF_ROLLOUTS = {
    "groups": ("groups", "trained"),
    "tokens trained": ("tokens", "trained"),
    "max |A|": ("advantage", "largest"),
    "longest quarter": ("weight", "gradient_of_longest"),
    "unused seconds": ("seconds", "unused_share"),
}


def show(document: Mapping[str, Any], asked: Asked, console: Console) -> None:
    _print(console, _check(document["check"]))
    sides = [side for side in ("before", "after") if side in document]
    if asked.changed:
        changed = ", ".join(f"{key}={value}" for key, value in asked.changed.items())
        drawn = f", the mean of {document['draws']} draws" if "draws" in document else ""
        _print(console, [f"after: {changed}{drawn}"])
    console.print(_figures(document, sides))
    console.print(_bins(document, sides))
    if asked.changed:
        _print(console, [*_changes(document["changes"]), ""])
    _print_rollouts(document["rollouts"], sides)
    _print(console, ["", *limits(asked)])


def _figures(document: Mapping[str, Any], sides: Sequence[str]) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("", no_wrap=True)
    headings = [*sides, *(["95 % of draws"] if "draws" in document else [])]
    for heading in headings if len(headings) > 1 else ["the run"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for label, path in _rows([document[side] for side in sides]):
        cells = [_cell(_at(document[side], path), path[-1]) for side in sides]
        if "draws" in document:
            ends = _at(document["intervals"]["after"], path) or (0, 0)
            cells.append(f"{_cell(ends[0], path[-1])} to {_cell(ends[1], path[-1])}")
        table.add_row(label, *cells)
    return table


def _rows(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Label and place of each figure. Kinds of episodes that there are none of are left out."""
    for section, names in _SECTIONS.items():
        if section == "weight":
            yield from _advantages()
        for name, label in names.items():
            if section != "episodes" or any(document[section][name] for document in documents):
                yield label, (section, name)
        if section == "groups":
            for reason in sorted({reason for document in documents for reason in document["groups"]["dropped"]}):
                yield f"  dropped: {reason.replace('_', ' ')}", ("groups", "dropped", reason)


def _advantages() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "largest |advantage|", ("advantage", "largest")
    for of in ("all", "solved", "unsolved"):
        yield f"advantage, {of}: mean", ("advantage", of, "mean")
        yield "  deviation", ("advantage", of, "deviation")


def _bins(document: Mapping[str, Any], sides: Sequence[str]) -> Table:
    """How many episodes have which advantage."""
    table = Table(box=SIMPLE)
    table.add_column("advantage", no_wrap=True)
    columns = [(of, side) for of in ("solved", "unsolved") for side in sides]
    for of, side in columns:
        table.add_column(of if len(sides) == 1 else f"{of} {side}", justify="right", no_wrap=True)
    for name in BINS:
        table.add_row(name, *(_cell(document[side]["advantage"][of]["bins"][name], name) for of, side in columns))
    return table


def _print_rollouts(rollouts: Sequence[Mapping[str, Any]], sides: Sequence[str]) -> None:
    rows = []
    for rollout in rollouts:
        cells = [
            " → ".join(_cell(_at(rollout[side], path), path[-1]) for side in sides) for path in _OF_ROLLOUTS.values()
        ]
        correlation = [_cell(rollout["changes"]["correlation"], "")] if "changes" in rollout else []
        rows.append([str(rollout["rollout"]), *cells, *correlation])
    print_rows(["rollout", *_OF_ROLLOUTS, "correlation"][: len(rows[0])], rows)


def _changes(changes: Mapping[str, Any]) -> Iterator[str]:
    flipped, gained, lost = (_cell(changes[name], name) for name in ("flipped", "gained", "lost"))
    yield f"advantages: {flipped} episodes have the other sign, {gained} have one now, {lost} have none any more"
    yield (
        f"tokens' weights: correlation {_cell(changes['correlation'], '')}, "
        f"their sizes add up to {_cell(changes['gradient'], '')} times as much"
    )


def _check(check: Mapping[str, Any]) -> Iterator[str]:
    compared, without = check["compared"], check["rollouts_without_metrics"]
    if check["holds"]:
        yield f"check: the run's own settings give what it recorded ({_compared(compared)})"
    else:
        differences = check["differences"]
        yield f"check: FAILED. The run's own settings give something else, in {len(differences)} figures:"
        yield from (f"  {difference}" for difference in differences[:SHOWN])
    if without:
        yield f"  {without} rollouts have no line in metrics.jsonl: only what is left out of the loss was compared"


def _compared(compared: Mapping[str, int]) -> str:
    named = [name for name in ("trained_tokens", "pg_loss", "solve_rate", "groups") if name in compared]
    named += ["groups dropped"] if any(name.startswith("groups dropped") for name in compared) else []
    named += ["each sample's advantage"] if "samples trained otherwise" in compared else []
    return f"{sum(compared.values())} figures; {', '.join([*named, 'what is left out of the loss'])} among them"


def _at(found: Any, path: Sequence[str]) -> Any:
    """The figure at a place; 0 where there is none, as of groups dropped for a reason that came up elsewhere."""
    for name in path:
        found = (found or {}).get(name, 0)
    return found


def _cell(value: float | None, name: str) -> str:
    if value is None:
        return NONE
    if name in _SHARES:
        return rate(value)
    if abs(value) < 1e-6:
        return "0"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
