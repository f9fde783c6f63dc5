"""The options of `slime-swe evaluate` that hold several numbers, prices and a budget, and what an evaluation cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slime_swe.errors import UserError
from slime_swe.rollout.endpoint.replies import Budget, Prices, Usage
from slime_swe.rollout.records import Record, trajectories

_FACTORS = {"k": 1e3, "M": 1e6}


def prices_of(text: str | None) -> Prices | None:
    """`in=0.3,out=1.2`, or with `cached=0.03`, which else is as dear as `in`. Raises `UserError`."""
    if text is None:
        return None
    found = _numbers("--price", text, ("in", "out", "cached"))
    for name in ("in", "out"):
        if name not in found:
            raise UserError(
                f"--price {text}: {name}= is missing: give dollars for a million tokens, e.g. in=0.3,out=1.2"
            )
    return Prices(found["in"], found["out"], found.get("cached", found["in"]))


def budget_of(text: str | None, prices: Prices | None) -> Budget:
    """`dollars=5`, `tokens=2M` or both. Raises `UserError`, also for dollars without prices."""
    found = _numbers("--budget", text, ("dollars", "tokens")) if text is not None else {}
    if "dollars" in found and prices is None:
        raise UserError("--budget dollars= needs --price in=DOLLARS,out=DOLLARS for a million tokens each")
    return Budget(found.get("dollars"), found.get("tokens"))


def _numbers(option: str, text: str, names: Sequence[str]) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in names or not equals or name in found:
            example = ",".join(f"{each}=NUMBER" for each in names)
            raise UserError(f"{option} {text}: give {example}, or some of these")
        found[name] = _number(option, part.strip(), value)
    return found


def _number(option: str, part: str, value: str) -> float:
    factor = _FACTORS.get(value[-1:], 1.0)
    try:
        number = float(value.rstrip("kM")) * factor
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UserError(f"{option} {part}: it must be a number of at least 0, such as 0.3, 500k or 2M")
    return number


# What the episodes of a set used, and what that cost.
def costs(records: Sequence[Record], prices: Prices | None) -> dict[str, Any]:
    """Tokens and, by the prices, dollars: of the set, of an episode, and of a task that an episode has solved. Empty
    where no episode says what it used.

    Episodes that infrastructure broke are paid for like others, and their cost is in all of these. Earlier attempts at
    an episode are not: `Spending` counts them too.
    """
    episodes = trajectories(records)
    used = sum((_used(segments[0]) for segments in episodes), Usage())
    if not used.total:
        return {}
    solved = {segments[0].task for segments in episodes if segments[0].solved}
    found: dict[str, Any] = {
        "tokens": as_json(used),
        "tokens_per_episode": used.total / len(episodes),
    }
    if prices is not None:
        dollars = prices.dollars(used)
        found |= {
            "dollars": dollars,
            "dollars_per_episode": dollars / len(episodes),
            "dollars_per_solved_task": dollars / len(solved) if solved else None,
        }
    return found


def as_json(used: Usage) -> dict[str, int]:
    return {"prompt": used.prompt, "cached": used.cached, "completion": used.completion}


def _used(record: Record) -> Usage:
    if record.episode is None:
        return Usage()
    counters = record.episode.counters
    return Usage(counters.prompt_tokens, counters.completion_tokens, counters.cached_tokens)
