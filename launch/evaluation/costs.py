"""What the episodes of a set used, and what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slime_swe.rollout.endpoint.spending import Prices, Usage
from slime_swe.rollout.records import Record, trajectories


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
