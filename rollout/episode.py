"""`Episode`: one agent's run on one task, as data, with its turns; the statistics and the `Session` that are kept while
it runs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from time import perf_counter
from typing import Any, Literal

import msgspec
import orjson
from msgspec.structs import replace

from slime_swe.rollout.chat.tool_formats import MalformedCall, ToolCall
from slime_swe.rollout.client import Generation
from slime_swe.rollout.replies import VersionSpan, joined, without

# `Turn`: one message of an episode, as it was said and shown: by whom, when, and where its tokens are in a sample.
UNNAMED = "unnamed_tool"

Role = Literal["system", "user", "assistant", "tool"]


class Call(msgspec.Struct, frozen=True):
    """A tool call of an assistant's turn. `arguments` is JSON text; of a malformed call, what the policy wrote."""

    id: str
    name: str
    arguments: str


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `tokens[start:end]` of its sample are the turn's.

    Of an assistant, these are all that the policy sampled, its stop token included; `text` is what was said beside the
    reasoning and the calls. Of others, they are the fewest that hold the text, so that those of the chat template
    around it are in no turn. A turn after the last sampled token has none: `start` and `end` are the sample's length.

    began, ended: seconds since the episode began. A reply begins when the engine is asked for it. A tool's result of
    the native agent begins with the call; one of another agent, when it had the reply with the call, and it ends when
    the agent sends it. A message that was there at once ends as it begins. call_id: the call that a tool's turn
    answers; empty where the agent does not say. failed: it tells the policy that what it wrote did nothing: a call
    that is malformed, can't be carried out or was cut off. Only the native agent says so.
    """

    role: Role
    text: str
    start: int
    end: int
    began: float = 0.0
    ended: float = 0.0
    reasoning: str = ""
    calls: list[Call] = []
    call_id: str = ""
    failed: bool = False

    @property
    def is_blank(self) -> bool:
        return not (self.text or self.reasoning or self.calls)


def call_of(call: ToolCall | MalformedCall, id: str) -> Call:
    """Make the `Call` of what the policy wrote. One without a name is named `UNNAMED`: no client has such a tool, and
    some drop a call that has no name.
    """
    name = call.name.encode("utf-8", "replace").decode() or UNNAMED  # JSON can spell half a surrogate pair
    written = call.arguments
    return Call(id, name, written if isinstance(written, str) else _json(written))


def moved(turns: Iterable[Turn], by: int) -> list[Turn]:
    """Return the turns, with so many tokens before them."""
    return [replace(turn, start=turn.start + by, end=turn.end + by) for turn in turns]


def up_to(turns: Iterable[Turn], length: int) -> list[Turn]:
    """Return the turns of a sample that is cut to so many tokens."""
    return [replace(turn, start=min(turn.start, length), end=min(turn.end, length)) for turn in turns]


def read_blank(turns: Iterable[Turn], tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Turn]:
    """Return the turns, where those that nobody has read get the text of their tokens."""
    return [
        replace(turn, text=decode(tokens[turn.start : turn.end])) if turn.is_blank and turn.end > turn.start else turn
        for turn in turns
    ]


def of_episode(segments: Iterable[Sequence[Turn]]) -> list[Turn]:
    """Return the turns of an episode's samples in the order in which they ended, those that samples share once.

    Their token spans are those of the first sample that has them.
    """
    once = {
        (turn.role, turn.began, turn.ended, turn.text, turn.reasoning, tuple(turn.calls), turn.call_id): turn
        for turns in reversed([*segments])
        for turn in turns
    }
    first_seen = {id(turn): place for place, turn in enumerate(once.values())}
    return sorted(once.values(), key=lambda turn: (turn.ended, first_seen[id(turn)]))


def _json(arguments: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except (orjson.JSONEncodeError, RecursionError):  # numbers beyond 64 bits
        return json.dumps(arguments)


class StopReason(StrEnum):
    """The reason why an episode ended. The last three are infrastructure failures and never a reward."""

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
    """The wall time of an episode and its parts, in seconds. `started`: when it began, in seconds of Unix time; 0.0
    where that was not recorded.
    """

    total: float = 0.0
    engine: float = 0.0  # model calls, with the time that they waited at the run's gate
    sandbox: float = 0.0
    started: float = 0.0


@dataclass
class Counters:
    """Counts of what an agent did and of what its engine cached. `first_edit_patch`: the diff after the first applied
    edit.

    tries: 1, and one more for each time that it submitted and was shown failing tests (`rollout.tries`). known_tokens:
    tokens of the prompts that the same weights had computed in the prompt of the turn before. lost_tokens: how many of
    these the engine had no longer in its cache. engine_retries: why requests were made again within a turn -> how many
    (`Generation.retries`). broken_attempts: earlier attempts at this episode, or at its grading, that infrastructure
    broke, by the stop reason or `grader_error`; the rollout function counts them (`play.Player`).
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
    """An episode's counts and times so far, updated as it goes, so that they are complete even if it is cut short."""

    tool_calls: Counter[str] = field(default_factory=Counter)
    engine_retries: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    engine_seconds: float = 0.0
    sandbox_seconds: float = 0.0
    budget: asyncio.Timeout | None = None  # the episode's time budget, while it runs
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
        """Time a model call inside the context. The time budget does not run meanwhile: the policy does not control the
        engine's speed, and the engine's client has its own limit. Concurrent calls count once. A program's call may
        begin while the budget expires, or end after it.
        """
        try:
            self._calls += 1
            if self._calls == 1:
                self._called, self._deadline = perf_counter(), self.budget.when() if self.budget else None
                self._reschedule(None)
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                seconds = perf_counter() - self._called
                self.engine_seconds += seconds
                if self._deadline is not None:
                    self._reschedule(self._deadline + seconds)

    def _reschedule(self, deadline: float | None) -> None:
        """Move the end of the time budget, unless it is over."""
        if self.budget is not None and not self.budget.expired():
            self.budget.reschedule(deadline)

    @contextmanager
    def sandbox_time(self) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self.sandbox_seconds += perf_counter() - started


# `Session`: the token-exact record of every model call of one episode.
#
# A session is a tree: each node holds tokens that were either sampled by the policy (with the log-probability that the
# server returned) or supplied as context. A client that only ever appends makes one chain; one that rewrites its
# history forks. `segments()` turns each leaf into one training sequence in which every sampled token of the session is
# trained exactly once: the first segment that contains a node trains it, later siblings carry it as context.
@dataclass(frozen=True)
class Segment:
    """One training sequence. All four lists have length T; `tokens[:prompt_length]` is the first prompt.

    `loss_mask[i]` is 1 where the policy sampled `tokens[i]` by itself, not by a grammar, and this segment trains it;
    `log_probs[i]` is then the server's log-probability at sampling time, else 0.0. `routed_experts`, where they were
    asked for, are the parts of one table (int32 in bytes): of all tokens from the first up to the last but one of the
    path's last model call. `version_spans` cover all T tokens, with a version where `loss_mask` is 1. `turns` are those
    of the sequence, in order; every sampled token is in one assistant's turn. `tools` are the function schemas that the
    prompt offers. `end` is behind the last token that the policy sampled in this segment first, trained or not.
    """

    tokens: list[int]
    loss_mask: list[int]
    log_probs: list[float]
    prompt_length: int
    version_spans: tuple[VersionSpan, ...] = ()
    routed_experts: tuple[bytes, ...] = ()
    turns: tuple[Turn, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    end: int = 0

    @property
    def weight_versions(self) -> list[str]:
        """The versions that sampled what is trained here, in order of their first token."""
        return list(dict.fromkeys(version for version, _ in self.version_spans if version is not None))


@dataclass(eq=False)  # nodes are compared by identity: they are places in a tree
class Node:
    """A run of tokens of one origin, after all tokens on the path from the root.

    `routed_experts` are those of a model call's new tokens, as far as no node before this one has them. `turns`: the
    messages in it, placed in its own tokens. `tools`: of a root, the function schemas that it offers. `untrained`:
    places of sampled tokens that are not trained.
    """

    tokens: list[int]
    log_probs: list[float] | None  # None: context, not sampled
    parent: Node | None
    version_spans: tuple[VersionSpan, ...] = ()
    routed_experts: bytes | None = None
    turns: Sequence[Turn] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    untrained: frozenset[int] = frozenset()
    children: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pieces: tuple[list[bytes], int] | None = None
        self.end: int = len(self.tokens) + (self.parent.end if self.parent else 0)  # tokens from the root to here

    @property
    def experts_end(self) -> int:
        """The number of tokens, counted from the root, whose routed experts are in a node of the path."""
        node: Node | None = self
        while node is not None and node.routed_experts is None:
            node = node.parent
        return node.end - 1 if node is not None else 0  # a turn's last token was never put into the model

    def computed_by(self, version: str | None) -> int:
        """Return how many tokens the prompt of the path's latest model call had: an engine that has dropped nothing
        finds as many in its cache. 0 where weights of another version sampled then.

        The reply does not count: SGLang may leave out its end, or all of it (`srt/mem_cache/radix_cache.py`,
        `cache_finished_req`)."""
        node: Node | None = self
        while node is not None and node.log_probs is None:
            node = node.parent
        if node is None or not node.version_spans or node.version_spans[-1][0] != version:
            return 0
        return node.end - len(node.tokens)

    def encoded_path(self) -> list[bytes]:
        """Return the tokens of every node from the root to here which has some, as JSON has them in a list, with a
        comma after each. It takes time in proportion to the nodes that are new since the last call.

        Nodes of one branch share a list. Each knows its own part of it, and how much is before that.
        """
        fresh: list[Node] = []
        node: Node | None = self
        while node is not None and node._pieces is None:
            fresh.append(node)
            node = node.parent
        pieces, count = node._pieces if node is not None and node._pieces is not None else ([], 0)
        for node in reversed(fresh):
            if len(pieces) != count:  # another branch has gone on with it
                pieces = pieces[:count]
            if node.tokens:
                pieces.append(orjson.dumps(node.tokens)[1:-1] + b",")
            count = len(pieces)
            node._pieces = pieces, count
        return pieces[:count]

    def path(self) -> list[Node]:
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class Session:
    """Records one episode's model calls; `head` is where the next tokens go unless another node is named."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self.roots: list[Node] = []
        self.head: Node | None = None
        self._leaves: list[Node] = []

    def clear(self) -> None:
        """Forget everything."""
        self.roots, self.head, self._leaves = [], None, []

    @property
    def seconds(self) -> float:
        """The seconds since the episode began, to a tenth of a millisecond."""
        return round(perf_counter() - self._began, 4)

    def add_context(
        self, tokens: Sequence[int], turns: Sequence[Turn] = (), tools: Sequence[Mapping[str, Any]] = ()
    ) -> Node:
        """Append tokens that the policy did not sample (prompt, tool result); they are never trained on.

        turns: the messages in them. Without any, the tokens are one message of a user. tools: the function schemas that
        a prompt offers.
        """
        return self.add(Node(list(tokens), None, self.head, turns=turns or self._unread("user", tokens), tools=tools))

    def add_sampled(self, said: Generation, turn: Turn | None = None) -> Node:
        """Append tokens that the policy sampled, with the server's log-probability of each.

        turn: what they say, where it is known already; an agent that reads it later sets the node's.
        """
        if len(said.tokens) != len(said.log_probs):
            raise ValueError(f"{len(said.tokens)} sampled tokens came with {len(said.log_probs)} log-probabilities")
        if self.head is None:
            raise ValueError("sampled tokens need a prompt before them")
        if said.routed_experts is not None and said.experts_from != self.head.experts_end:
            raise ValueError(
                f"routed experts from {said.experts_from} on, and those before {self.head.experts_end} are known"
            )
        turns = (turn,) if turn else self._unread("assistant", said.tokens)
        spans, experts = said.version_spans, said.routed_experts
        return self.add(Node(said.tokens, said.log_probs, self.head, spans, experts, turns, untrained=said.untrained))

    def fork(self, node: Node | None) -> None:
        """Make `node` the head, so that what follows branches off there; None starts a new root."""
        self.head = node

    def segments(self) -> tuple[Segment, ...]:
        """Return one segment per leaf with sampled turns that no segment before it has, in order of creation.

        A leaf of context, all of whose sampled turns are on a branch that goes on, makes none: a side call would take
        the turns before it from that branch. Where turns were recorded without their tokens, each leaf makes one.
        """
        going_on = {id(node) for leaf in self._leaves if leaf.log_probs is not None for node in leaf.path()}
        trained: set[int] = set()
        segments = []
        for leaf in self._leaves:
            path = leaf.path()
            if leaf.log_probs is None and all(node.log_probs is None or id(node) in going_on for node in path):
                continue
            fresh = any(node.log_probs is not None and id(node) not in trained for node in path)
            segment = _segment(path, trained)
            if fresh or not segment.tokens:
                segments.append(segment)
        return tuple(segments)

    def _unread(self, role: Role, tokens: Sequence[int]) -> tuple[Turn, ...]:
        if not tokens:
            return ()
        before = self.head.turns if self.head else ()
        began = before[-1].ended if before and role == "assistant" else self.seconds
        return (Turn(role, "", 0, len(tokens), began, self.seconds),)

    def leave_out(self, node: Node) -> None:
        """Keep a sampled turn as context, untrained."""
        node.log_probs = None

    def add(self, node: Node) -> Node:
        """Append a node that was made for its place: its parent is in the session, or it has none."""
        siblings = node.parent.children if node.parent else self.roots
        siblings.append(node)
        if node.parent in self._leaves:
            self._leaves.remove(node.parent)
        self._leaves.append(node)
        self.head = node
        return node


def _segment(path: list[Node], trained: set[int]) -> Segment:
    tokens: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    prompt_length: int | None = None
    spans: list[VersionSpan] = []
    routed_experts: list[bytes] = []
    turns: list[Turn] = []
    end = 0
    for node in path:
        train = node.log_probs is not None and id(node) not in trained
        if node.log_probs is not None and prompt_length is None:
            prompt_length = len(tokens)
        turns += moved(node.turns, len(tokens))
        tokens += node.tokens
        if node.routed_experts is not None:
            routed_experts.append(node.routed_experts)
        kept = [int(train)] * len(node.tokens)
        values = [*node.log_probs] if train and node.log_probs is not None else [0.0] * len(node.tokens)
        for at in node.untrained:
            kept[at], values[at] = 0, 0.0
        mask += kept
        log_probs += values
        if train:
            trained.add(id(node))
            end = len(tokens)
        spans += without(node.version_spans, node.untrained) if train and node.version_spans else [(None, len(kept))]
    prompt_length = len(tokens) if prompt_length is None else prompt_length
    return Segment(
        tokens, mask, log_probs, prompt_length, joined(spans), tuple(routed_experts), tuple(turns), path[0].tools, end
    )
