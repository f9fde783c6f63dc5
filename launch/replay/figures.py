"""From sums to the figures that are shown: of one recipe, and of two of them beside each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from slime_swe.launch.replay.recorded import Recorded
from slime_swe.launch.replay.replayed import Replayed
from slime_swe.launch.replay.sums import BINS, NOT_DRAWN, STATES, TRAINED, Row, Sums

TIMES = ("seconds", "engine")


def figures(sums: Sums) -> dict[str, Any]:
    """What docs/replay.md names. None for a mean or share of nothing."""
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


def compared(recorded: Recorded, before: Sequence[Row], after: Sequence[Row], pair: tuple[Replayed, Replayed]) -> Sums:
    """Sums over a rollout's episodes and tokens under two recipes. A token's weight is signed: advantage times weight
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


def changes(sums: Sums, before: Sums, after: Sums) -> dict[str, Any]:
    """flipped, gained, lost: episodes whose advantage has the other sign, has one now, or has none any more.
    correlation: of the tokens' weights, Pearson's; None where either does not vary. gradient: the sum of |advantage| x
    weight over tokens, after over before.
    """
    counts = sums.counts
    return {
        **{name: counts[name] for name in ("flipped", "gained", "lost")},
        "correlation": _correlation(counts),
        "gradient": _ratio(after.counts["gradient"], before.counts["gradient"]),
    }


def _signed(replayed: Replayed, place: int) -> float:
    found = replayed.weighed[place]
    return found.advantage * found.weight if found is not None and found.tokens else 0.0


def _correlation(counts: Counter[str]) -> float | None:
    n = counts["n"]
    across = n * counts["xy"] - counts["x"] * counts["y"]
    spread = (n * counts["xx"] - counts["x"] ** 2) * (n * counts["yy"] - counts["y"] ** 2)
    return max(-1.0, min(1.0, across / math.sqrt(spread))) if spread > 0 else None


def _spread(counts: Counter[str], of: str) -> dict[str, Any]:
    """deviation: the population's. bins: episodes by advantage."""
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
    """Of episodes that were drawn. unused: of those that train nothing. unused_engine: what of that is model calls.
    dropped: of those whose group is dropped."""
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
