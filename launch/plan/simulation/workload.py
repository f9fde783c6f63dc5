"""Episodes to simulate: how long they are and what comes of them, by a distribution or from a run's own journal.

`Assumed` is no recorded distribution. Where only a mean and a tail are published, it is log-normal with these:

- turns: 26.4 on average, and one episode of 80,036 beyond 408, as in `nebius/SWE-agent-trajectories` (by the card of
  `nebius/SWE-rebench-openhands-trajectories`). Cut at 100, the limit of SA-SWE-32B (arXiv 2511.16108) and of NeMo-Gym's
  SWE agents. Half of the logarithm's variance lies between tasks: assumed.
- sampled tokens of a turn: 523 on average, as in TraceLab (arXiv 2606.30560: 186.9 M in 357,161 model calls). Its
  spread and the cut at 8,192 are assumed.
- seconds of a turn's tool call: median 0.3, 90th percentile 13.6 (TraceLab's `session_timing_distribution`). Cut at
  300, the `command_exec_timeout` of NeMo-Gym's SWE agents.
- solved episodes: 48 %, as 32,161 of 67,074 in `nebius/SWE-rebench-openhands-trajectories`. How tasks differ in this,
  and so the share of informative groups (0.4), is assumed.
- assumed: a sandbox opens in 2 s and grading takes 60 s (medians), infrastructure breaks 1 % of the episodes.

A task is as likely to be solved by a long episode as by a short one. So dropping uniform groups leaves lengths as they
are, and what a schedule does to them stands alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from slime_swe.errors import UserError
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import Record, is_broken, trajectories


@dataclass(frozen=True)
class Script:
    """The course of one episode, with times in seconds. turns: sampled tokens, and seconds of the tool call after them.

    breaks: the turn at which infrastructure breaks it, if it does.
    """

    opening: float
    turns: tuple[tuple[int, float], ...]
    grading: float
    solved: bool
    breaks: int | None = None

    @property
    def tokens(self) -> int:
        return sum(tokens for tokens, _ in self.turns)


class Workload(Protocol):
    def script(self, group: int, member: int, attempt: int) -> Script:
        """Return the script of an episode: the same for the same numbers, whatever the schedule."""
        ...


@dataclass(frozen=True)
class Assumed:
    seed: int = 0
    turns: float = 26.4
    turns_spread: float = 0.713  # with that mean, the 1 / 80,036 quantile is 408
    most_turns: int = 100
    tokens: float = 523.0
    tokens_spread: float = 1.0
    most_tokens: int = 8192
    tool_median: float = 0.3
    tool_spread: float = 2.976  # ln(13.6 / 0.3) / 1.2816
    most_tool: float = 300.0
    solved: float = 0.48
    certainty: float = 0.5  # of the Beta distribution of tasks' solve rates: its two parameters add up to this
    broken: float = 0.01
    opening: float = 2.0  # median
    grading: float = 60.0  # median
    time_budget: float = math.inf  # seconds of tool calls, after which an episode ends
    together: int = 1  # turns that are simulated as one: quicker, and a little coarser

    def script(self, group: int, member: int, attempt: int) -> Script:
        return _assumed(self, group, member, attempt)


@lru_cache(maxsize=16_384)
def _assumed(workload: Assumed, group: int, member: int, attempt: int) -> Script:
    """Draw a script. It is cached: plans that differ in their machines, as proposals do, have the same episodes."""
    shift, rate = _task(workload, group)
    drawn = random.Random(f"{workload.seed}:{group}:{member}:{attempt}")
    own = drawn.gauss(0.0, workload.turns_spread / math.sqrt(2))
    middle = workload.turns * math.exp(-(workload.turns_spread**2) / 2)
    number = min(max(round(middle * math.exp(shift + own)), 1), workload.most_turns)
    return Script(
        opening=drawn.lognormvariate(math.log(workload.opening), 0.5),
        turns=(turns := tuple(_assumed_turns(workload, drawn, number))),
        grading=drawn.lognormvariate(math.log(workload.grading), 0.5),
        solved=drawn.random() < rate,
        breaks=drawn.randrange(len(turns)) if drawn.random() < workload.broken else None,
    )


@lru_cache(maxsize=16_384)
def _task(workload: Assumed, group: int) -> tuple[float, float]:
    """Draw by how much the logarithm of a task's turns is above the middle, and the share of episodes that solve it."""
    task = random.Random(f"{workload.seed}:{group}")
    shift = task.gauss(0.0, workload.turns_spread / math.sqrt(2))
    rate = task.betavariate(workload.certainty * workload.solved, workload.certainty * (1 - workload.solved))
    return shift, rate


def _assumed_turns(workload: Assumed, drawn: random.Random, number: int) -> Iterator[tuple[int, float]]:
    most_tokens, tokens_spread = workload.most_tokens, workload.tokens_spread
    most_tool, tool_spread = workload.most_tool, workload.tool_spread
    middle, tool_middle = math.log(workload.tokens) - tokens_spread**2 / 2, math.log(workload.tool_median)
    lognormal, left = drawn.lognormvariate, workload.time_budget
    for first in range(0, number, workload.together):
        tokens, seconds = 0, 0.0
        for _ in range(first, min(first + workload.together, number)):
            tokens += min(max(round(lognormal(middle, tokens_spread)), 1), most_tokens)
            seconds += min(lognormal(tool_middle, tool_spread), most_tool)
        yield tokens, min(seconds, left)
        left -= seconds
        if left <= 0:
            return


class Recorded:
    """Groups of a run's `episodes.jsonl`, drawn with replacement, and each member of one of its group's episodes.

    An episode keeps its turns, its sampled tokens and its seconds in the sandbox, spread evenly over the turns. What a
    journal does not hold, opening and grading, is drawn as in `Assumed`.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._seed = seed
        groups: dict[int | None, list[Script]] = {}
        broken = total = 0
        for segments in trajectories(read_records(path)):
            total += 1
            broken += is_broken(segments)
            if script := _recorded(segments):
                groups.setdefault(segments[0].group_index, []).append(script)
        self._groups = list(groups.values())
        if not self._groups:
            raise UserError(f"{path} holds no episode with turns that infrastructure left alone")
        self._broken = broken / total

    def script(self, group: int, member: int, attempt: int) -> Script:
        task = random.Random(f"{self._seed}:{group}").choice(self._groups)
        drawn = random.Random(f"{self._seed}:{group}:{member}:{attempt}")
        chosen = drawn.choice(task)
        return Script(
            opening=drawn.lognormvariate(math.log(2.0), 0.5),
            turns=chosen.turns,
            grading=drawn.lognormvariate(math.log(60.0), 0.5),
            solved=chosen.solved,
            breaks=drawn.randrange(len(chosen.turns)) if drawn.random() < self._broken else None,
        )


def _recorded(segments: list[Record]) -> Script | None:
    """Return the script of an episode; None where infrastructure broke it, or where its hook recorded no turns."""
    episode = next((segment.episode for segment in segments if segment.episode), None)
    if episode is None or not episode.turns or is_broken(segments):
        return None
    sampled = sum(sum(segment.loss_mask or ()) for segment in segments)
    turn = (max(1, round(sampled / episode.turns)), episode.timings.sandbox / episode.turns)
    return Script(0.0, (turn,) * episode.turns, 0.0, segments[0].solved)
