"""Which solved episodes are trained on: the rules, in the order in which they are applied."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime_swe.launch.export.episodes import ExportedEpisode
from slime_swe.launch.sft.lines import trained_samples
from slime_swe.launch.sft.similar import Seen, sketch

if TYPE_CHECKING:
    from datasketch import MinHash


@dataclass(frozen=True)
class Rules:
    """per_task: episodes of one task, at most. max_turns: of an episode; 0 is no bound. max_tokens: of the longest of
    its samples; 0 is no bound. similar: the share of what two episodes say from which on the second is a duplicate.
    errors: see `trained_samples`.
    """

    per_task: int = 4
    max_turns: int = 0
    max_tokens: int = 0
    similar: float = 0.9
    errors: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Candidate:
    """An episode that is allowed by itself. place: among all that were read. failed: turns that ended in an error."""

    place: int
    task: str
    turns: int
    tokens: int
    failed: int
    sketch: MinHash

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The shorter way with fewer errors comes first."""
        return self.failed, self.turns, self.tokens, self.place


def candidates(
    episodes: Iterable[ExportedEpisode], rules: Rules, contaminated: Collection[str], left_out: Counter[str]
) -> list[Candidate]:
    """Of solved episodes, those that each rule takes by itself; `left_out` counts the others by reason. contaminated:
    tasks that an evaluation shows."""
    found = []
    for place, episode in enumerate(episodes):
        turns = sum(turn.role == "assistant" for turn in episode.turns)
        tokens = max(len(record.tokens) for record in episode.records)
        samples = trained_samples(episode, rules.errors)
        if episode.task in contaminated:
            left_out["contaminated"] += 1
        elif rules.max_turns and turns > rules.max_turns:
            left_out["too_many_turns"] += 1
        elif rules.max_tokens and tokens > rules.max_tokens:
            left_out["too_long"] += 1
        elif not samples:
            left_out["nothing_to_train"] += 1
        else:
            failed = sum(sample.failed for sample in samples)
            found.append(Candidate(place, episode.task, turns, tokens, failed, sketch(episode.turns)))
    return found


def choose(found: Iterable[Candidate], rules: Rules, left_out: Counter[str]) -> set[int]:
    """The places of those that are taken, none like another and so many of a task at most. Of several the one with
    fewest errors, turns and tokens comes first."""
    seen, of_task, taken = Seen(rules.similar), Counter[str](), set[int]()
    for candidate in sorted(found, key=lambda one: one.order):
        if of_task[candidate.task] >= rules.per_task:
            left_out["enough_of_the_task"] += 1
        elif not seen.add(candidate.sketch):
            left_out["duplicate"] += 1
        else:
            of_task[candidate.task] += 1
            taken.add(candidate.place)
    return taken
