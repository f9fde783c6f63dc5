"""`Episode`: one agent's run on one task, as data, and the statistics that are kept while it runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from time import perf_counter

from slime_swe.rollout.client import Generation
from slime_swe.rollout.session import Node, Segment


class StopReason(StrEnum):
    """Why an episode ended. The last three are infrastructure failures and never a reward."""

    SUBMITTED = "submitted"
    MAX_TURNS = "max_turns"
    CONTEXT_FULL = "context_full"
    TIME_BUDGET = "time_budget"
    MAX_RESPONSE = "max_response"
    NO_TOOL_CALL = "no_tool_call"
    GAVE_UP = "gave_up"
    ENGINE_ERROR = "engine_error"
    SANDBOX_ERROR = "sandbox_error"
    AGENT_ERROR = "agent_error"

    @property
    def is_infrastructure(self) -> bool:
        return self in (StopReason.ENGINE_ERROR, StopReason.SANDBOX_ERROR, StopReason.AGENT_ERROR)


# Stop reasons that are a limit of the recipe's: the episode is truncated, and may be left out of the loss.
TRUNCATED = (StopReason.TIME_BUDGET, StopReason.MAX_TURNS, StopReason.CONTEXT_FULL, StopReason.MAX_RESPONSE)


@dataclass(frozen=True)
class Timings:
    """Where an episode's wall time went, in seconds. `started`: when it began, in seconds of Unix time; 0.0 where that
    was not recorded.
    """

    total: float = 0.0
    engine: float = 0.0  # model calls, with the time that they waited at the run's gate
    sandbox: float = 0.0
    started: float = 0.0


@dataclass
class Counters:
    """What an agent did, and what its engine cached. `first_edit_patch`: the diff after the first applied edit.

    tries: 1, and one more for each time that it submitted and was shown failing tests (`rollout.tries`).
    known_tokens: of the prompts, those that the same weights had computed in the prompt of the turn before.
    lost_tokens: of these, those that the engine had no longer in its cache.
    engine_retries: why requests were made again within a turn -> how many (`Generation.retries`). broken_attempts:
    earlier attempts at this episode, by the stop reason of each.
    """

    tool_calls: dict[str, int] = field(default_factory=dict)  # well-formed calls, by tool
    malformed_calls: int = 0
    cut_turns: int = 0  # that their token limit ended before the policy did
    unkept_turns: int = 0  # which the chat template would write otherwise
    untrained_tokens: int = 0  # that a grammar has sampled, not the policy alone
    edits: int = 0
    failed_edits: int = 0
    first_edit_patch: str | None = None
    tries: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    known_tokens: int = 0
    lost_tokens: int = 0
    completion_tokens: int = 0
    engine_retries: dict[str, int] = field(default_factory=dict)
    broken_attempts: dict[str, int] = field(default_factory=dict)
    engine_aborted: bool = False  # somebody made the engine drop the request: trying again is no use


@dataclass(frozen=True)
class Episode:
    """One agent's run on one task: what it said, what it changed, why it stopped and what it cost."""

    task_id: str
    segments: tuple[Segment, ...]
    patch: str
    stop_reason: StopReason
    detail: str = ""  # the error behind an infrastructure failure, else empty
    turns: int = 0
    timings: Timings = field(default_factory=Timings)
    counters: Counters = field(default_factory=Counters)


@dataclass
class EpisodeStatistics(Counters):
    """What has happened so far. Updated as it happens, so that it is complete even if the episode is cut short."""

    tool_calls: Counter[str] = field(default_factory=Counter)
    engine_retries: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    engine_seconds: float = 0.0
    sandbox_seconds: float = 0.0
    budget: asyncio.Timeout | None = None  # the episode's time budget, once it runs
    _calls: int = 0  # model calls under way
    _called: float = 0.0
    _deadline: float | None = None

    def counters(self) -> Counters:
        return Counters(**{each.name: getattr(self, each.name) for each in fields(Counters)})

    def add(self, said: Generation, head: Node | None = None) -> None:
        """Count a turn, which the policy said behind `head`."""
        self.turns += 1
        self.cut_turns += said.finish_reason == "length"
        self.untrained_tokens += len(said.untrained)
        self.prompt_tokens += said.prompt_tokens
        self.cached_tokens += said.cached_tokens
        if head is not None and said.version_spans:
            known = min(head.computed_by(said.version_spans[0][0]), said.prompt_tokens)
            self.known_tokens += known
            self.lost_tokens += max(0, known - said.cached_tokens)
        self.completion_tokens += said.completion_tokens
        self.engine_retries.update(said.retries)

    @contextmanager
    def engine_time(self) -> Iterator[None]:
        """Around a model call. The time budget does not run meanwhile: the policy does not control the engine's speed,
        and the engine's client has its own limit. Concurrent calls count once.
        """
        self._calls += 1
        if self._calls == 1:
            self._called, self._deadline = perf_counter(), self.budget.when() if self.budget else None
            if self.budget is not None and self._deadline is not None:
                self.budget.reschedule(None)
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                seconds = perf_counter() - self._called
                self.engine_seconds += seconds
                if self.budget is not None and self._deadline is not None:
                    self.budget.reschedule(self._deadline + seconds)

    @contextmanager
    def sandbox_time(self) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self.sandbox_seconds += perf_counter() - started
