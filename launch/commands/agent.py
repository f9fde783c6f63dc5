"""Check real agents against the recording proxy.

slime-swe agent check mini_swe_agent
slime-swe agent check qwen_code --sandbox docker --json
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from rich.table import Table

from slime_swe.errors import UserError
from slime_swe.files import read_given
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_path
from slime_swe.launch.output import print_json, visible
from slime_swe.rewards.grade import grade
from slime_swe.rollout.agents.base import AGENTS, IN_PROCESS, agent_class
from slime_swe.rollout.agents.cli import CliAgent
from slime_swe.rollout.agents.toy_task import toy_task, with_malformed_call
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import Segment
from slime_swe.rollout.play import run_episode
from slime_swe.rollout.proxy.conversation import Message
from slime_swe.rollout.proxy.sessions import ProxySession
from slime_swe.rollout.scripted import Sampled, ScriptedEngine, by_call, by_content, scripted_engine
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.pool import SandboxPool

SEED = checkpoint_path(EMBEDDED_SEED)
END = "<|im_end|>"  # of a turn
MAX_REPLY = 2048  # tokens
MAX_CONTEXT = 1 << 20  # the tokenizer may be one of a tiny model, with few words
MAX_TURNS = 40
TIME_BUDGET = 300.0  # seconds
_PARAMS = {"max_new_tokens": MAX_REPLY, "temperature": 1.0, "top_p": 1.0}

Report = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="run one on a bundled task with a scripted policy, and report")
    check.add_argument(
        "name", metavar="NAME", help=f"{', '.join(sorted({*AGENTS} - IN_PROCESS))}, or a dotted path to one of your own"
    )
    check.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help="what the policy says: a JSON list of turns (default: the agent's own)",
    )
    check.add_argument("--sandbox", default="overlay", metavar="NAME", help="where it runs (default: %(default)s)")
    check.add_argument("--checkpoint", type=Path, default=SEED, metavar="FOLDER",
                       help="whose tokenizer and chat template to use (default: the seed policy's)")  # fmt: skip
    check.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    report = asyncio.run(_check(options))
    if options.json:
        print_json(report)
    else:
        _show(report)
    return 1 if report["problems"] else 0


async def _check(options: argparse.Namespace) -> Report:
    if not options.checkpoint.is_dir():
        raise UserError(f"--checkpoint: there is no folder {options.checkpoint}")
    script = None
    if options.script:
        try:
            script = msgspec.json.decode(
                read_given(options.script, "the script"), type=Annotated[list[str], msgspec.Meta(min_length=1)]
            )
        except msgspec.DecodeError as error:
            raise UserError(f"{options.script} must hold a JSON list of turns, each a text: {error}") from error
    return await check_agent(options.name, str(options.checkpoint), options.sandbox, script)


def _show(report: Report) -> None:
    console = Console()
    table = Table("", f"{report['agent']} {report['version']}", title="agent check", title_justify="left")
    for name, value in report.items():
        if name not in ("agent", "version", "malformed", "problems"):
            table.add_row(name.replace("_", " "), str(len(value) if isinstance(value, list) else value))
    if report["malformed"]:
        table.add_row("after a malformed call", ", ".join(_in_short(report["malformed"])))
    console.print(table)
    for kind in ("edited", "unmatched"):
        for one in report[kind]:
            console.print(visible(f"{kind}:\n{one['diff']}"), markup=False, highlight=False)
    for problem in report["problems"]:
        console.print(visible(f"problem: {problem}"), markup=False, highlight=False)
    if not report["problems"]:
        console.print(f"{report['agent']} is fit for training")


def _in_short(play: Report) -> Iterator[str]:
    yield f"reward {play['reward']}"
    yield play["stop_reason"]
    yield f"{play['turns']} turns"
    yield f"{play['tokens_retained']:.0%} of tokens retained"
    yield f"{play['false_forks']} false forks"


# An agent's run on the bundled task against a scripted policy: what was recorded is held against what was sampled.
async def check_agent(name: str, checkpoint: str, sandbox: str, script: Sequence[str] | None = None) -> Report:
    """Play one agent on the bundled task, and report what it did. `script`: what the policy says turn by turn, in place
    of the agent's own script.

    The agent's own is played twice: as it is, and with a malformed call that the policy repairs when it sees the error.

    Token counts are the checkpoint's own. tokens_retained: sampled tokens that are trained on exactly once, with their
    log-probability, of all. forks: training sequences of the episode, less one. false_forks: those that the agent did
    not bring about by leaving a turn out of its history. tool_calls_executed: calls whose result came back.
    prefix_cache_ceiling: prompt tokens that a cache of all that was seen before would hold, of all. unmatched: what the
    client sent as the policy's words that were not, with the nearest of the same place and how they differ; edited: its
    words, changed. malformed: the second play's report, None without one. problems: what an agent that is fit for
    training does not have, in either play.

    Raises `UserError` where the agent or the sandbox is not to be had here.
    """
    made = agent_class(name)
    if not issubclass(made, CliAgent):
        raise UserError(f"{name} is no program that runs in a sandbox: there is nothing to check against the proxy")
    usual = script or made.check_script
    if not usual:
        raise UserError(f"{name} states no check_script: give one by --script")
    malformed = () if script else made.malformed_script or with_malformed_call(usual)
    tokenizer = load_tokenizer(checkpoint)
    async with (
        scripted_engine(tokenizer, by_content(*_ended(usual))) as engine,
        SandboxPool(sandbox, concurrency=1) as pool,
        made.open(_settings(name, checkpoint, sandbox, engine.url)) as agent,
    ):
        report = await _play(agent, engine, pool)
        problems = [*problems_of(report, _has_calls(usual))]
        second = None
        if malformed:
            engine.say, engine.sampled = by_call(*_ended(malformed)), []
            second = await _play(agent, engine, pool)
            found = problems_of(second, _has_calls(malformed), malformed_calls=int(_has_calls(malformed)))
            problems += [f"after a malformed call: {problem}" for problem in found]
    return {"agent": made.name, "version": made.version, **report, "malformed": second, "problems": problems}


def _settings(name: str, checkpoint: str, sandbox: str, engine_url: str) -> RolloutSettings:
    address = urlsplit(engine_url)
    return RolloutSettings(
        engine_host=address.hostname or "",
        engine_port=address.port or 0,
        checkpoint=checkpoint,
        max_context=MAX_CONTEXT,
        agent=name,
        tool_format="hermes",
        system_prompt="",
        max_turns=MAX_TURNS,
        time_budget=TIME_BUDGET,
        sandbox=sandbox,
        sandbox_concurrency=1,
        run_dir=Path(),
        seed=0,
    )


def _ended(script: Sequence[str]) -> list[str]:
    return [f"{turn}{END}" for turn in script]


def _has_calls(script: Sequence[str]) -> bool:
    return any("<tool_call>" in turn for turn in script)


async def _play(agent: CliAgent, engine: ScriptedEngine, pool: SandboxPool) -> Report:
    """Play one episode on the bundled task, and report on it and all that the engine has sampled."""
    sessions: list[ProxySession] = []
    agent.on_session = sessions.append
    task = toy_task()
    episode = await run_episode(agent, task, pool, Sampling(_PARAMS), time_budget=TIME_BUDGET)
    score = await grade(task, episode.patch, pool)
    log, trees = engine.sampled, [session.tree for session in sessions]
    return {
        "reward": score.value,
        "stop_reason": episode.stop_reason.value,
        "detail": episode.detail,
        "turns": episode.turns,
        "tokens_sampled": sum(len(one.tokens) for one in log),
        "tokens_retained": retained(log, episode.segments),
        "forks": max(0, len(episode.segments) - 1),
        "false_forks": max(0, len(episode.segments) - ends(log)),
        "tool_calls": dict(episode.counters.tool_calls),
        "tool_calls_parsed": sum(episode.counters.tool_calls.values()),
        "tool_calls_executed": sum(session.executed for session in sessions),
        "malformed_calls": episode.counters.malformed_calls,
        "first_prompt_tokens": len(log[0].prompt) if log else 0,
        "prefix_cache_ceiling": prefix_cache_ceiling(log),
        "unmatched": [_difference(*unmatched) for tree in trees for unmatched in tree.unmatched],
        "edited": [_difference(echo, said) for tree in trees for said, echo in tree.edited],
        "overridden": {name: count for session in sessions for name, count in session.overridden.items()},
        "seconds": round(episode.timings.total, 2),
    }


def retained(log: Sequence[Sampled], segments: Sequence[Segment]) -> float:
    """Return the share of sampled tokens that are trained once, as they were sampled. 0 where nothing was."""
    trained: dict[float, list[int]] = {}
    for segment in segments:
        for token, mask, log_prob in zip(segment.tokens, segment.loss_mask, segment.log_probs, strict=True):
            if mask:
                trained.setdefault(log_prob, []).append(token)
    pairs = [pair for one in log for pair in zip(one.tokens, one.log_probs, strict=True)]
    return sum(trained.get(log_prob) == [token] for token, log_prob in pairs) / len(pairs) if pairs else 0.0


def ends(log: Sequence[Sampled]) -> int:
    """Count the turns that no later prompt goes on from: the last, and those that the agent left out of its history."""
    turns = [[*one.prompt, *one.tokens] for one in log]
    return sum(
        not any(later.prompt[: len(turn)] == turn for later in log[number + 1 :]) for number, turn in enumerate(turns)
    )


def prefix_cache_ceiling(log: Sequence[Sampled]) -> float:
    """Return the share of prompt tokens that a cache of everything seen before would hold."""
    seen: list[list[int]] = []
    cached = 0
    for one in log:
        cached += max((_common(one.prompt, earlier) for earlier in seen), default=0)
        seen.append([*one.prompt, *one.tokens])
    total = sum(len(one.prompt) for one in log)
    return cached / total if total else 0.0


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _difference(echo: Message, said: Message | None) -> dict[str, Any]:
    lines = difflib.unified_diff(_lines(said), _lines(echo), "said", "sent", lineterm="")
    return {"sent": asdict(echo), "said": None if said is None else asdict(said), "diff": "\n".join(lines)}


def _lines(message: Message | None) -> list[str]:
    if message is None:
        return []
    return [*message.text.splitlines(), *(f"{call.name}({call.arguments}) {call.id}" for call in message.calls)]


def problems_of(report: Report, calls_expected: bool, malformed_calls: int = 0) -> Iterator[str]:
    """Yield what makes an agent unfit for training, a sentence each. malformed_calls: how many the script has."""
    if report["reward"] <= 0:
        yield f"the task was not solved ({': '.join(filter(None, (report['stop_reason'], report['detail'])))})"
    if report["tokens_retained"] < 1:
        yield f"{1 - report['tokens_retained']:.1%} of the sampled tokens are lost or changed"
    if report["false_forks"]:
        yield f"{report['false_forks']} training sequences more than the agent's history has"
    if calls_expected and not (report["tool_calls_parsed"] or report["malformed_calls"]):
        yield "no tool call was parsed: the tool format is not the policy's"
    elif calls_expected and not report["tool_calls_executed"]:
        yield "no tool call was executed: such training could earn reward without a single call"
    if report["malformed_calls"] != malformed_calls:
        yield f"{report['malformed_calls']} calls were malformed, of a script that has {malformed_calls}"
