"""A first look at a recipe's policy before a run: does it act, in which form, and what should be changed?

A few of the recipe's training tasks are played as its run would play them. `Look` is what their records show, `advice`
what to change by it, and `show` prints both.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import orjson
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slime_swe.data_sources.registry import load_tasks, write_tasks
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import replace_file, writing
from slime_swe.launch.config import with_value
from slime_swe.launch.doctor.served import servers_of
from slime_swe.launch.engines import engine_of
from slime_swe.launch.evaluation import Evaluation, known_episodes, output
from slime_swe.launch.evaluation.play import play_sets, play_sets_here
from slime_swe.launch.evaluation.target import PORT, models_at, start_command
from slime_swe.launch.extras import EMBEDDED, require
from slime_swe.launch.model import chat_template, checkpoint_folder
from slime_swe.launch.output import rate, visible
from slime_swe.launch.preflight import require_plug_ins, require_sandbox
from slime_swe.launch.slime.render import to_args
from slime_swe.recipes.base import SGLANG, Recipe
from slime_swe.rollout.agents.base import AGENTS, agent_class
from slime_swe.rollout.agents.native import SCHEMAS, NativeAgent, load_template
from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, ParsedTurn, ToolCall, Tools, parse
from slime_swe.rollout.chat.tool_formats import tool_format as load_tool_format
from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.journals import read_records, read_tools
from slime_swe.rollout.loop_scope import require_room_for
from slime_swe.rollout.metrics import wilson_interval
from slime_swe.rollout.records import EVALUATIONS, Record, is_broken, trajectories

PROBE, TASK_FILE = "probe.json", "tasks.jsonl"
SET = "probe"  # the set's name in the journal
PATIENCE = 60.0  # seconds of an outage, after which a first look ends with the next try that breaks


@dataclass(frozen=True)
class Found:
    """A first look. served: the model, and who serves it. advice: what to change, a sentence each."""

    recipe: str
    agent: str
    served: str
    tasks: int
    samples: int
    look: Look
    advice: list[str]

    def as_json(self) -> dict[str, Any]:
        about = {"recipe": self.recipe, "agent": self.agent, "served": self.served}
        counts = {"tasks": self.tasks, "samples": self.samples}
        return {**about, **counts, **self.look.as_json(), "advice": self.advice}


def probe(recipe: Recipe, folder: Path, limit: int, samples: int) -> Found:
    """Play `samples` episodes of each of `limit` training tasks into a new folder, which has what was found as JSON
    too. Raises `UserError` for a recipe that can't be probed, and `InfrastructureError` where its server can't be
    asked."""
    _require_probed(recipe)
    url = _server_of(recipe)
    served = f"{recipe.model.checkpoint} by {_asked(url) if url else 'the embedded server'}"
    tasks = [task for spec in recipe.data.training_sets for task in load_tasks(spec)]
    tasks = random.Random(recipe.run.seed).sample(tasks, min(limit, len(tasks)))
    played = with_value(recipe, "data.eval", {SET: str((folder / TASK_FILE).resolve())})
    played = with_value(played, "data.eval_samples_per_task", samples)
    played = with_value(played, "rollout.outage_limit", min(recipe.rollout.outage_limit, PATIENCE))
    episodes = len(tasks) * samples
    evaluation = Evaluation(recipe.model.checkpoint, "", episodes, left=episodes)
    with output(folder, played, evaluation, resume=False):
        write_tasks(folder / TASK_FILE, tasks)
        try:
            asyncio.run(_play(played, folder, url))
        except InfrastructureError:
            if not known_episodes(folder, SET):
                raise
        left = episodes - len(known_episodes(folder, SET))
        Evaluation(recipe.model.checkpoint, "", episodes, left).write(folder)
        seen = look(folder, played)
        found = Found(recipe.name, recipe.rollout.agent, served, len(tasks), samples, seen, advice(seen, recipe))
        with writing(folder / PROBE):
            options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            replace_file(folder / PROBE, orjson.dumps(found.as_json(), option=options))
    return found


async def _play(recipe: Recipe, folder: Path, url: str) -> None:
    args = to_args(recipe, folder)
    args.eval_temperature = recipe.rollout.temperature
    args.use_rollout_routing_replay = False  # nothing is trained
    tasks = {SET: load_tasks(recipe.data.eval[SET])}
    if not url:
        await play_sets_here(args, folder, tasks)
        return
    address = urlsplit(url)
    args.sglang_router_ip, args.sglang_router_port = address.hostname, address.port
    await play_sets(args, folder, tasks)


def _require_probed(recipe: Recipe) -> None:
    """Raise `UserError` where there is no policy to look at, or nothing that could play it."""
    if recipe.supervised or not agent_class(recipe.rollout.agent).calls_tools:
        callers = ", ".join(name for name in AGENTS if agent_class(name).calls_tools)
        what = "data.source" if recipe.supervised else f"rollout.agent={recipe.rollout.agent}"
        raise UserError(f"{what} has no tool calls to look at: agents that call tools are {callers}")
    checkpoint_folder(recipe.model.checkpoint, recipe.model.folder)
    require_plug_ins(recipe)
    require_sandbox(recipe)
    require_room_for(recipe.rollout.agent, recipe.rollout.sandbox)


def _server_of(recipe: Recipe) -> str:
    """Return the URL of the server that the recipe names; empty where the embedded one is to start. Raises `UserError`
    where the policy needs SGLang and the recipe names none."""
    if named := [*servers_of(recipe).values()]:
        return named[0]
    if recipe.serving.server == SGLANG or engine_of(recipe).on_gpus:
        raise UserError(
            f"recipe={recipe.name} is served by SGLang, and serving.router_ip names none. On a machine with its GPUs:\n"
            f"  {start_command(recipe)}\n"
            f"  slime-swe probe recipe={recipe.name} serving.router_ip=127.0.0.1 serving.router_port={PORT}"
        )
    require(*EMBEDDED)
    return ""


def _asked(url: str) -> str:
    """Describe the server at a URL with the models that it states. Raises `InfrastructureError` where none answers."""
    has = " and ".join(sorted({path for path in asyncio.run(models_at(url)).values() if path}))
    return f"{url}, which has {has}" if has else url


# The policy's behaviour, read from the episodes' records.
ENOUGH = 0.5  # share of the turns with a call from which on a policy can act
LINES, LENGTH = 3, 100  # first lines that are shown, and characters of one


@dataclass(frozen=True)
class PolicyTurn:
    """One turn of the policy.

    tokens: how many it sampled. cut: whether its limit ended it. content: its text without the reasoning. tools: those
    that it was offered.
    """

    tokens: int
    cut: bool
    content: str
    tools: Tools

    @property
    def first_line(self) -> str:
        """The turn's first line with text, cut to `LENGTH` characters; empty where it has none."""
        return next((line.strip()[:LENGTH] for line in self.content.splitlines() if line.strip()), "")

    def read_as(self, tool_format: str) -> ParsedTurn:
        return parse(self.content, tool_format, self.tools)

    def forms(self, tool_format: str) -> list[str]:
        """Return the form of each well-formed call of an offered tool in this format.

        It is the format's own name where the format has one form.
        """
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
    """The figures that the episodes give of a policy.

    episodes: those that infrastructure did not break. broken: the others, by the reason of each. turns: those of the
    policy. with_call: turns that hold a well-formed call of an offered tool in the recipe's format. forms: in which of
    the format's forms the well-formed calls are written. malformed: turns whose calls are none of these. cut: turns
    without such a call that their limit ended. read_by: how many of all turns hold such a call in each shipped format
    that reads one. first_lines: those of turns without a call. errors: those of malformed calls. stop_reasons: those of
    the episodes. cached: the share of the prompt tokens, None where the server counts none.
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
        """The share of the turns that hold a call; 0.0 without turns."""
        return self.with_call / self.turns if self.turns else 0.0

    @property
    def without_call(self) -> int:
        """The number of turns in which the recipe's format finds nothing of a call."""
        return self.turns - self.with_call - self.malformed

    @property
    def acts(self) -> bool:
        """True where the policy can act: most episodes were played, and half of their turns hold a call."""
        return self.episodes > sum(self.broken.values()) and self.share >= ENOUGH

    @property
    def better_format(self) -> str:
        """The shipped format that reads a tenth more of the turns than the recipe's; empty where none does."""
        name, count = max(self.read_by.items(), key=lambda item: item[1], default=("", 0))
        return name if count - self.with_call > 0.1 * self.turns else ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "without_call": self.without_call, "acts": self.acts}


def look(folder: Path, recipe: Recipe) -> Look:
    """Read what the episodes in the folder's journal show. Raises `UserError` where the chat template can't be used."""
    model, own = recipe.model, issubclass(agent_class(recipe.rollout.agent), NativeAgent)
    checkpoint = str(checkpoint_folder(model.checkpoint, model.folder))
    template = load_template(checkpoint, chat_template(model), load_tool_format(model.tool_calls) if own else None)
    return look_at(folder, template, model.tool_calls, SCHEMAS if own else ())


def look_at(folder: Path, template: ChatTemplate, tool_format: str, tools: Tools = ()) -> Look:
    """Read what the episodes in the folder's journal show. template: reads their turns.

    tools: those offered where the records name none, as when a system prompt states them.
    """
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
    """Yield the policy's turns that this sample is the first to have: in later samples they are context, of mask 0."""
    mask = [0] * (len(record.tokens) - record.response_length) + (record.loss_mask or [])
    offered = read_tools(folder, record.tools) or tools
    for turn in record.turns or ():
        if turn.role == "assistant" and any(mask[turn.start : turn.end]):
            tokens = record.tokens[turn.start : turn.end]
            cut = tokens[-1] not in template.stop_token_ids
            yield PolicyTurn(len(tokens), cut, template.read(tokens).content, offered)


def _error(turn: PolicyTurn, tool_format: str) -> str:
    """Say what is wrong with the turn's calls."""
    parsed = turn.read_as(tool_format)
    return parsed.error or f"there is no tool {parsed.calls[0].name!r}"


def _why_broken(segments: Sequence[Record]) -> str:
    failure = next((record.infrastructure for record in segments if record.infrastructure), None)
    detail = failure.detail.splitlines()[0][:LENGTH] if failure and failure.detail else ""
    return ": ".join(filter(None, [failure.where if failure else "no reason given", detail]))


def _most_common(texts: Sequence[str]) -> dict[str, int]:
    return dict(Counter(texts).most_common(LINES))


# Advice after a first look: sentences on what to change in the recipe, each with a field and its value.
OFTEN = 0.25  # share of the episodes that a limit ends, from which on it is worth more
CUT = 0.1  # the same of turns


def advice(look: Look, recipe: Recipe) -> list[str]:
    """Say what to change, the most pressing first; the list is empty where the recipe is fine as it is."""
    if not look.episodes:
        return [_broken(look, recipe)]
    found = [_broken(look, recipe)] if look.broken else []
    found += _calls(look)
    found += _limits(look, recipe)
    if look.acts:
        found += _rewards(look)
    return found


def _broken(look: Look, recipe: Recipe) -> str:
    count = sum(look.broken.values())
    reason, _ = max(look.broken.items(), key=lambda item: item[1])
    return (
        f"Infrastructure broke {count} of {count + look.episodes} episodes, most of them by {reason}. Mend that first: "
        f"slime-swe doctor recipe={recipe.name}"
    )


def _calls(look: Look) -> list[str]:
    """Say what to change where too few turns hold a call."""
    if not look.turns:
        return ["The policy had no turn: the tasks' statements leave no room. Give it a larger rollout.max_context."]
    found, better = [], look.better_format
    if better:
        found.append(
            f"Set model.tool_format={better}: it reads a call in {look.read_by[better]} of {look.turns} turns, where "
            f"{look.tool_format} reads one in {look.with_call}."
        )
    if max(look.with_call, look.read_by.get(better, 0)) >= ENOUGH * look.turns:
        return found
    missing = look.turns - look.with_call
    if look.cut > missing / 2:
        return found  # more room may be all that it needs, which `_limits` says
    why = (
        f"its calls are malformed in {look.malformed} of {look.turns} turns"
        if look.malformed > look.without_call
        else f"it writes no call in {look.without_call} of {look.turns} turns, and no model.tool_format reads more"
    )
    return [
        *found,
        f"Begin with a warm start: {why}. Play tasks with a model that calls tools (slime-swe eval ... --output kept), "
        "choose solved episodes (slime-swe sft kept --out solved.jsonl), and set warm_start.data=solved.jsonl. Or take "
        "a model of the family that calls tools (model=ORG/NAME).",
    ]


def _limits(look: Look, recipe: Recipe) -> list[str]:
    """Say which limits of the recipe to raise, as they end many turns or episodes."""
    rollout, most = recipe.rollout, recipe.model.config.get("max_position_embeddings")
    found = []
    if look.cut > CUT * look.turns:
        found.append(
            f"Set rollout.max_response={2 * rollout.max_response}: its limit of {rollout.max_response} tokens cut "
            f"{look.cut} of {look.turns} turns before a call was complete."
        )
    full = look.stop_reasons.get(StopReason.CONTEXT_FULL, 0)
    if full > OFTEN * look.episodes:
        wider = min(2 * rollout.max_context, most) if isinstance(most, int) else 2 * rollout.max_context
        what = (
            f"Set rollout.max_context={wider}"
            if wider > rollout.max_context
            else f"Take easier tasks or a model of more context (this one was made for {most} tokens)"
        )
        found.append(f"{what}: {full} of {look.episodes} episodes filled their {rollout.max_context} tokens.")
    over = look.stop_reasons.get(StopReason.MAX_TURNS, 0)
    if over > OFTEN * look.episodes and look.share >= ENOUGH:
        found.append(
            f"Set rollout.max_turns={2 * rollout.max_turns}: {over} of {look.episodes} episodes used all of their "
            f"{rollout.max_turns}."
        )
    late = look.stop_reasons.get(StopReason.TIME_BUDGET, 0)
    if late > OFTEN * look.episodes:
        found.append(
            f"Set rollout.time_budget={2 * rollout.time_budget:g}: {late} of {look.episodes} episodes used all of "
            f"their {rollout.time_budget:g} seconds."
        )
    return found


def _rewards(look: Look) -> list[str]:
    """Say where outcomes leave nothing to learn; with few episodes that is a hint, and no more."""
    low, high = (f"{100 * bound:.0f} %" for bound in look.interval)
    if look.solved == 0:
        return [
            f"No episode of {look.episodes} solved its task (a solve rate of {high} may look so): groups without a "
            "solved episode teach nothing. Take easier tasks (data.train, data.filters), or a warm start "
            "(warm_start.data)."
        ]
    if look.solved == look.episodes:
        return [
            f"All {look.episodes} episodes solved their tasks (a solve rate of {low} may look so): groups without an "
            "unsolved episode teach nothing. Take harder tasks (data.train, data.filters)."
        ]
    return []


# A first look as a page of text.
WIDTH = 100


def show(look: Look, wanted: Sequence[str], served: str, console: Console) -> None:
    """Print a first look. wanted: what to change. served: the model, and who serves it."""
    console.width = min(console.width, WIDTH)
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for heading, text in _rows(look, served):
        table.add_row(heading, escape(visible(text)))
    console.print(table)
    verdict = "[green]The policy can act.[/]" if look.acts else "[bold red]The policy can't act.[/]"
    console.print(f"{verdict} {escape(_why(look))}", highlight=False)
    console.print("\n[bold]What to change[/]", highlight=False)
    sentences = Table(box=None, show_header=False, pad_edge=False)
    sentences.add_column(no_wrap=True)
    sentences.add_column(overflow="fold")
    for sentence in wanted or ["Nothing: it is fine as it is."]:
        sentences.add_row("-", escape(visible(sentence)))
    console.print(sentences)


def _rows(look: Look, served: str) -> list[tuple[str, str]]:
    """Return the heading and text of each line, without lines that have no text."""
    tokens, turns = look.tokens_of_turn, look.turns_of_episode
    rows = [
        ("model", served),
        ("episodes", f"{look.episodes} played" + (f", {sum(look.broken.values())} broken" if look.broken else "")),
        ("broken by", _counted(look.broken)),
        ("turns with a call", f"{look.with_call} of {look.turns} in {look.tool_format}" if look.turns else "no turn"),
        ("written as", _counted(look.forms) if [*look.forms] != [look.tool_format] else ""),
        ("malformed calls", f"{look.malformed} turns: {'; '.join(look.errors)}" if look.malformed else ""),
        ("without a call", f"{look.without_call} turns, which begin with\n{_lines(look.first_lines)}"
                           if look.without_call else ""),
        ("cut", f"{look.cut} turns by their limit, before a call was complete" if look.cut else ""),
        ("other formats", _others(look)),
        ("stop reasons", _counted(look.stop_reasons)),
        ("tokens of a turn", f"median {tokens.median:,g}, 90 % at most {tokens.nine_in_ten:,g}"),
        ("turns of an episode", f"median {turns.median:g}, 90 % at most {turns.nine_in_ten:g}"),
        ("cached", f"{rate(look.cached)} of the prompt tokens" if look.cached is not None else ""),
        ("solved", f"{look.solved} of {look.episodes}, {rate(look.solved / look.episodes, look.interval)}"
                   if look.episodes else ""),
        ("reward", f"{look.reward:.2f} on average" if look.reward is not None else ""),
    ]  # fmt: skip
    return [(heading, text) for heading, text in rows if text]


def _why(look: Look) -> str:
    if not look.episodes:
        return "No episode was played to its end."
    if look.episodes <= sum(look.broken.values()):
        return "Infrastructure broke at least half of the episodes, so that the others say little."
    return f"{rate(look.share)} of its turns hold a call, and {100 * ENOUGH:.0f} % should."


def _others(look: Look) -> str:
    read = {name: count for name, count in look.read_by.items() if name != look.tool_format and count}
    return ", ".join(f"{name} reads a call in {count}" for name, count in _sorted(read))


def _lines(lines: Mapping[str, int]) -> str:
    return "\n".join(f"{count} × {line or '(nothing)'}" for line, count in lines.items())


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in _sorted(counts))


def _sorted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Sort by count, the most frequent first."""
    return sorted(counts.items(), key=lambda item: -item[1])
