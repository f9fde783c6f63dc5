"""What is added up of rollouts: sums alone, so that those of many rollouts are as small as those of one."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slime_swe.launch.replay.replayed import Recorded, Replayed, Weighed
from slime_swe.rollout.records import Record

TRAINED, NOT_DRAWN = "trained", "not_drawn"
STATES = (TRAINED, "no_advantage", "masked", "dropped", "broken", NOT_DRAWN)  # what an episode comes to
EDGES = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of advantages; each belongs to the bin below it, and 0 has one of its own
BINS = ("<= -1", "-1 to -0.5", "-0.5 to 0", "0", "0 to 0.5", "0.5 to 1", "> 1")
LONGEST = 4  # one in so many episodes is among the longest


@dataclass(frozen=True)
class Row:
    """An episode under one recipe. sampled, tokens: the policy's, and of these those in the loss. seconds, engine: of
    the episode, and of its model calls. loss, gradient: the sums of its tokens' weights, and of these x |advantage|."""

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
    """counts: by name. largest: of |advantage|."""

    counts: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0

    def add(self, other: Sums) -> None:
        self.counts.update(other.counts)
        self.largest = max(self.largest, other.largest)


def rows_of(recorded: Recorded, replayed: Replayed) -> Iterator[Row]:
    """Its episodes, in the order of the record's groups."""
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
    """Shares of one rollout, to be averaged over rollouts."""
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
