"""`Look`: what a few episodes of a recipe show of its policy, read from their records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from slime_swe.launch.args import chat_template, checkpoint_folder
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.agents.base import agent_class
from slime_swe.rollout.agents.native import SCHEMAS, NativeAgent, load_template
from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, ParsedTurn, ToolCall, Tools, parse
from slime_swe.rollout.chat.tool_formats import tool_format as load_tool_format
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.metrics import wilson_interval
from slime_swe.rollout.records import EVALUATIONS, Record, is_broken, trajectories
from slime_swe.rollout.tool_lists import read_tools

ENOUGH = 0.5  # share of the turns with a call from which on a policy can act
LINES, LENGTH = 3, 100  # first lines that are shown, and characters of one


@dataclass(frozen=True)
class PolicyTurn:
    """One turn of the policy. tokens: how many it sampled. cut: its limit ended it. content: without the reasoning.
    tools: that it was offered."""

    tokens: int
    cut: bool
    content: str
    tools: Tools

    @property
    def first_line(self) -> str:
        """Its first line with text; empty where it has none."""
        return next((line.strip()[:LENGTH] for line in self.content.splitlines() if line.strip()), "")

    def read_as(self, tool_format: str) -> ParsedTurn:
        return parse(self.content, tool_format, self.tools)

    def forms(self, tool_format: str) -> list[str]:
        """Of each well-formed call of a tool that it was offered, in this format: the form, or the format's own name
        where it has one form."""
        names = {tool["function"]["name"] for tool in self.tools}
        written = self.read_as(tool_format).written
        return [call.form or tool_format for call in written if isinstance(call, ToolCall) and call.name in names]

    def has_call(self, tool_format: str) -> bool:
        return bool(self.forms(tool_format))


@dataclass(frozen=True)
class Spread:
    """The median of some counts, and the count that nine in ten are not above."""

    median: float
    nine_in_ten: float

    @classmethod
    def of(cls, counts: Sequence[int]) -> Spread:
        if not counts:
            return cls(0, 0)
        return cls(median(counts), sorted(counts)[math.ceil(0.9 * len(counts)) - 1])


@dataclass(frozen=True)
class Look:
    """episodes: those that infrastructure did not break. broken: the others, by the reason of each. turns: of the
    policy. with_call: turns that hold a well-formed call of an offered tool in the recipe's format. forms: in which of
    the format's forms the well-formed calls are written. malformed: turns whose calls are none of these. cut: turns
    without such a call that their limit ended. read_by: how many of all turns hold such a
    call in each shipped format that reads one. first_lines: of turns without a call. errors: of malformed calls.
    stop_reasons: of the episodes. cached: share of the prompt tokens, None where the server counts none.
    """

    tool_format: str
    episodes: int
    broken: Mapping[str, int]
    turns: int
    with_call: int
    forms: Mapping[str, int]
    malformed: int
    cut: int
    read_by: Mapping[str, int]
    first_lines: Mapping[str, int]
    errors: Mapping[str, int]
    stop_reasons: Mapping[str, int]
    tokens_of_turn: Spread
    turns_of_episode: Spread
    cached: float | None
    solved: int
    reward: float | None
    interval: tuple[float, float] = field(default=(0.0, 1.0))

    @property
    def share(self) -> float:
        """Of the turns, those with a call."""
        return self.with_call / self.turns if self.turns else 0.0

    @property
    def without_call(self) -> int:
        """Turns in which the recipe's format finds nothing of a call."""
        return self.turns - self.with_call - self.malformed

    @property
    def acts(self) -> bool:
        """Whether the policy can act: most episodes were played, and half of their turns hold a call."""
        return self.episodes > sum(self.broken.values()) and self.share >= ENOUGH

    @property
    def better_format(self) -> str:
        """The shipped format that reads a tenth more of the turns than the recipe's; empty where none does."""
        name, count = max(self.read_by.items(), key=lambda item: item[1], default=("", 0))
        return name if count - self.with_call > 0.1 * self.turns else ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "without_call": self.without_call, "acts": self.acts}


def look(folder: Path, recipe: Recipe) -> Look:
    """What the episodes in the folder's journal show. Raises `UserError` where the chat template can't be used."""
    model, own = recipe.model, issubclass(agent_class(recipe.rollout.agent), NativeAgent)
    checkpoint = str(checkpoint_folder(model.checkpoint, model.folder))
    template = load_template(checkpoint, chat_template(model), load_tool_format(model.tool_calls) if own else None)
    return look_at(folder, template, model.tool_calls, SCHEMAS if own else ())


def look_at(folder: Path, template: ChatTemplate, tool_format: str, tools: Tools = ()) -> Look:
    """tools: that the policy was offered where the records name none, as those that a system prompt tells."""
    episodes = trajectories([*read_records(folder / EVALUATIONS)])
    sound = [segments for segments in episodes if not is_broken(segments)]
    reports = [segments[0].episode for segments in sound if segments[0].episode is not None]
    turns = [turn for segments in sound for record in segments for turn in _turns(folder, record, template, tools)]
    silent = [turn for turn in turns if not turn.has_call(tool_format)]
    malformed = [turn for turn in silent if turn.read_as(tool_format).written]
    without = [turn for turn in silent if not turn.read_as(tool_format).written]
    read_by = {name: sum(turn.has_call(name) for turn in turns) for name in TOOL_FORMATS}
    prompt = sum(report.counters.prompt_tokens for report in reports)
    rewards = [segments[0].reward for segments in sound if segments[0].reward is not None]
    solved = sum(segments[0].solved for segments in sound)
    return Look(
        tool_format=tool_format,
        episodes=len(sound),
        broken=dict(Counter(_why_broken(segments) for segments in episodes if is_broken(segments))),
        turns=len(turns),
        with_call=len(turns) - len(silent),
        forms=dict(Counter(form for turn in turns for form in turn.forms(tool_format))),
        malformed=len(malformed),
        cut=sum(turn.cut for turn in silent),
        read_by={name: count for name, count in read_by.items() if count},
        first_lines=_most_common([turn.first_line for turn in without]),
        errors=_most_common([_error(turn, tool_format) for turn in malformed]),
        stop_reasons=dict(Counter(report.stop_reason for report in reports)),
        tokens_of_turn=Spread.of([turn.tokens for turn in turns]),
        turns_of_episode=Spread.of([report.turns for report in reports]),
        cached=sum(report.counters.cached_tokens for report in reports) / prompt if prompt else None,
        solved=solved,
        reward=sum(rewards) / len(rewards) if rewards else None,
        interval=wilson_interval(solved, len(sound)),
    )


def _turns(folder: Path, record: Record, template: ChatTemplate, tools: Tools) -> Iterator[PolicyTurn]:
    """Those that this sample of an episode is the first to have: in others they are context, whose mask is 0."""
    mask = [0] * (len(record.tokens) - record.response_length) + (record.loss_mask or [])
    offered = read_tools(folder, record.tools) or tools
    for turn in record.turns or ():
        if turn.role == "assistant" and any(mask[turn.start : turn.end]):
            tokens = record.tokens[turn.start : turn.end]
            cut = tokens[-1] not in template.stop_token_ids
            yield PolicyTurn(len(tokens), cut, template.read(tokens).content, offered)


def _error(turn: PolicyTurn, tool_format: str) -> str:
    """What is wrong with the turn's calls."""
    parsed = turn.read_as(tool_format)
    return parsed.error or f"there is no tool {parsed.calls[0].name!r}"


def _why_broken(segments: Sequence[Record]) -> str:
    failure = next((record.infrastructure for record in segments if record.infrastructure), None)
    detail = failure.detail.splitlines()[0][:LENGTH] if failure and failure.detail else ""
    return ": ".join(filter(None, [failure.where if failure else "no reason given", detail]))


def _most_common(texts: Sequence[str]) -> dict[str, int]:
    return dict(Counter(texts).most_common(LINES))
