"""What a replay shows: sums over its episodes, the figures that are made of these, and tables.

Sums alone are kept of a rollout, so that those of many rollouts are as small as those of one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from slime_swe.launch.output import print_rows, rate
from slime_swe.launch.replay.asked import Asked, limits
from slime_swe.launch.replay.replayed import Recorded, Replayed, Weighed
from slime_swe.rollout.records import Record

TRAINED, NOT_DRAWN = "trained", "not_drawn"
STATES = (TRAINED, "no_advantage", "masked", "dropped", "broken", NOT_DRAWN)  # what an episode comes to
EDGES = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of advantages; each belongs to the bin below it, and 0 has one of its own
BINS = ("<= -1", "-1 to -0.5", "-0.5 to 0", "0", "0 to 0.5", "0.5 to 1", "> 1")
LONGEST = 4  # one in so many episodes is among the longest


@dataclass(frozen=True)
class Row:
    """An episode under one recipe. sampled: the policy's tokens. tokens: those of them in the loss. seconds: how long
    the episode took. engine: how long its model calls took. loss: the sum of its tokens' weights. gradient: that sum x
    |advantage|."""

    state: str
    solved: bool
    sampled: int
    tokens: int
    seconds: float
    engine: float
    advantage: float
    loss: float
    gradient: float


@dataclass
class Sums:
    """Sums over episodes. counts: by name. largest: the largest |advantage|."""

    counts: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0

    def add(self, other: Sums) -> None:
        self.counts.update(other.counts)
        self.largest = max(self.largest, other.largest)


def rows_of(recorded: Recorded, replayed: Replayed) -> Iterator[Row]:
    """Yield the row of each episode, in the order of the record's groups."""
    for places in recorded.episodes:
        records = [recorded.records[place] for place in places]
        yield _row(records, [replayed.weighed[place] for place in places])


def sums_of(recorded: Recorded, replayed: Replayed, rows: Sequence[Row]) -> Sums:
    found = Sums()
    counts = found.counts
    counts.update({"rollouts": 1, "groups": len(recorded.groups), "groups/missing": replayed.missing})
    counts["groups/trained"] = len(recorded.groups) - len(replayed.dropped)
    counts.update(f"dropped/{reason}" for reason in replayed.dropped.values())
    for row in rows:
        counts.update({"episodes": 1, f"episodes/{row.state}": 1, "tokens/sampled": row.sampled})
        counts.update({f"sampled/{row.state}": row.sampled, "tokens/in_loss": row.tokens})
        counts.update({f"seconds/{row.state}": row.seconds, f"engine/{row.state}": row.engine})
        if row.tokens:
            _add_advantage(found, row)
    _add_weights(counts, [row for row in rows if row.tokens])
    counts["tokens/trained"] = replayed.trained_tokens
    return found


def _row(records: Sequence[Record], weighed: Sequence[Weighed | None]) -> Row:
    first, drawn = records[0], [each for each in weighed if each is not None]
    tokens, advantage = sum(each.tokens for each in drawn), drawn[0].advantage if drawn else 0.0
    loss = math.fsum(each.tokens * each.weight for each in drawn)
    timings = first.episode.timings if first.episode else None
    return Row(
        state=_state(records, drawn, tokens, advantage),
        solved=first.solved,
        sampled=sum(record.sampled for record in records),
        tokens=tokens,
        seconds=timings.total if timings else 0.0,
        engine=timings.engine if timings else 0.0,
        advantage=advantage,
        loss=loss,
        gradient=loss * abs(advantage),
    )


def _state(records: Sequence[Record], drawn: Sequence[Weighed], tokens: int, advantage: float) -> str:
    if any(record.broken for record in records):
        return "broken"
    if not drawn:
        return NOT_DRAWN
    if drawn[0].reason:
        return "dropped"
    return "masked" if not tokens else TRAINED if advantage else "no_advantage"


def _add_advantage(found: Sums, row: Row) -> None:
    value = row.advantage
    found.largest = max(found.largest, abs(value))
    for of in ("all", "solved" if row.solved else "unsolved"):
        found.counts.update({f"{of}/episodes": 1, f"{of}/sum": value, f"{of}/squares": value * value})
        found.counts[f"{of}/bin/{_bin(value)}"] += 1


def _bin(value: float) -> str:
    if value == 0:
        return "0"
    place = bisect_left(EDGES, value)
    return BINS[place + (value > 0)]


def _add_weights(counts: Counter[str], rows: Sequence[Row]) -> None:
    """Add the shares of one rollout, to be averaged over rollouts."""
    loss, gradient = (math.fsum(getattr(row, name) for row in rows) for name in ("loss", "gradient"))
    longest = sorted(rows, key=lambda row: -row.tokens)[: math.ceil(len(rows) / LONGEST)]
    if loss:
        counts.update({"rollouts/loss": 1, "loss/longest": math.fsum(row.loss for row in longest) / loss})
    if gradient:
        shares = [row.gradient / gradient for row in rows]
        parts = {
            "longest": math.fsum(row.gradient for row in longest) / gradient,
            "unsolved": math.fsum(row.gradient for row in rows if not row.solved) / gradient,
            "largest": max(shares),
            "effective": 1 / math.fsum(share * share for share in shares),
        }
        counts.update({"rollouts/gradient": 1, "gradient": gradient})
        counts.update({f"gradient/{name}": part for name, part in parts.items()})


def compared(recorded: Recorded, before: Sequence[Row], after: Sequence[Row], pair: tuple[Replayed, Replayed]) -> Sums:
    """Sum over a rollout's episodes and tokens under two recipes. A token's weight is signed: advantage times weight
    where it is in the loss, 0 elsewhere."""
    found = Sums()
    counts = found.counts
    for old, new in zip(before, after, strict=True):
        x, y = old.advantage * bool(old.tokens), new.advantage * bool(new.tokens)
        counts.update({"flipped": x * y < 0, "gained": not x and bool(y), "lost": bool(x) and not y})
    for place, record in enumerate(recorded.records):
        n = record.sampled
        x, y = (_signed(replayed, place) for replayed in pair)
        counts.update({"n": n, "x": n * x, "y": n * y, "xx": n * x * x, "yy": n * y * y, "xy": n * x * y})
    return found


def _signed(replayed: Replayed, place: int) -> float:
    found = replayed.weighed[place]
    return found.advantage * found.weight if found is not None and found.tokens else 0.0


# The figures that are shown, made of sums: those of one recipe, and of two recipes compared.
TIMES = ("seconds", "engine")


def figures_of(sums: Sums) -> dict[str, Any]:
    """Make the figures that docs/replay.md names; a mean or share of nothing is None."""
    counts = sums.counts
    return {
        "groups": {
            **{name: counts[key] for name, key in (("recorded", "groups"), ("trained", "groups/trained"))},
            "missing": counts["groups/missing"],
            "dropped": _below("dropped/", counts),
        },
        "episodes": {"recorded": counts["episodes"], **{state: counts[f"episodes/{state}"] for state in STATES}},
        "tokens": {
            "sampled": counts["tokens/sampled"],
            "in_loss": counts["tokens/in_loss"],
            "trained": counts["tokens/trained"],
            "masked_share": _ratio(counts["sampled/masked"], counts["tokens/sampled"]),
        },
        "advantage": {
            "largest": sums.largest if counts["all/episodes"] else None,
            **{of: _spread(counts, of) for of in ("all", "solved", "unsolved")},
        },
        "weight": _weights(counts),
        "seconds": _seconds(counts),
    }


def changes(sums: Sums, before: Sums, after: Sums) -> dict[str, Any]:
    """Make the figures that compare two recipes.

    flipped, gained, lost: episodes whose advantage has the other sign, has one now, or has none any more. correlation:
    Pearson's, of the tokens' weights; None where either does not vary. gradient: the sum of |advantage| x weight over
    tokens, after over before.
    """
    counts = sums.counts
    return {
        **{name: counts[name] for name in ("flipped", "gained", "lost")},
        "correlation": _correlation(counts),
        "gradient": _ratio(after.counts["gradient"], before.counts["gradient"]),
    }


def _correlation(counts: Counter[str]) -> float | None:
    n = counts["n"]
    across = n * counts["xy"] - counts["x"] * counts["y"]
    spread = (n * counts["xx"] - counts["x"] ** 2) * (n * counts["yy"] - counts["y"] ** 2)
    return max(-1.0, min(1.0, across / math.sqrt(spread))) if spread > 0 else None


def _spread(counts: Counter[str], of: str) -> dict[str, Any]:
    """Describe the advantages of episodes. deviation: the population's. bins: the number of episodes by advantage."""
    n = counts[f"{of}/episodes"]
    mean = _ratio(counts[f"{of}/sum"], n)
    square = _ratio(counts[f"{of}/squares"], n)
    deviation = None if mean is None or square is None else math.sqrt(max(0.0, square - mean * mean))
    return {"episodes": n, "mean": mean, "deviation": deviation, "bins": {b: counts[f"{of}/bin/{b}"] for b in BINS}}


def _weights(counts: Counter[str]) -> dict[str, Any]:
    of_gradient = ("longest", "unsolved", "largest", "effective")
    return {
        "loss_of_longest": _ratio(counts["loss/longest"], counts["rollouts/loss"]),
        **{f"gradient_of_{name}": _ratio(counts[f"gradient/{name}"], counts["rollouts/gradient"])
           for name in of_gradient[:3]},
        "effective_episodes": _ratio(counts["gradient/effective"], counts["rollouts/gradient"]),
        "gradient": _ratio(counts["gradient"], counts["rollouts"]),
    }  # fmt: skip


def _seconds(counts: Counter[str]) -> dict[str, Any]:
    """Sum the seconds of the episodes that were drawn. unused: those of episodes that train nothing. unused_engine: the
    part of that in model calls. dropped: those of episodes whose group is dropped."""
    spent, engine = ({state: counts[f"{of}/{state}"] for state in STATES if state != NOT_DRAWN} for of in TIMES)
    total, unused = sum(spent.values()), sum(spent.values()) - spent[TRAINED]
    return {
        "episodes": total,
        "unused": unused,
        "unused_engine": sum(engine.values()) - engine[TRAINED],
        "dropped": spent["dropped"],
        "unused_share": _ratio(unused, total),
    }


def _below(prefix: str, counts: Counter[str]) -> dict[str, Any]:
    return {key.removeprefix(prefix): count for key, count in sorted(counts.items()) if key.startswith(prefix)}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


# The figures as tables.
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
    """Yield the label and place of each figure, without states that no episode is in."""
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
    """Make the table of how many episodes have which advantage."""
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
    """Return the figure at a place; 0 where there is none, as for a reason to drop groups that came up elsewhere."""
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
