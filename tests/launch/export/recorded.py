"""A run's folder with episodes that real plug-ins have recorded: solved, unsolved, broken, of two samples, thinking."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from inspect_ai.log import read_eval_log

from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.rollout import slime_plugin
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import Episode, EpisodeStatistics, Session, StopReason
from slime_swe.rollout.journals import TRAINED, TrainedSample, append_trained
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.rollout.proxy.conversation import Message
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.records import Score, to_samples, write_failure, write_score
from slime_swe.rollout.scripted import by_turn, scripted_engine
from slime_swe.sample import Sample
from tests.planted import ENVIRONMENT, LINES
from tests.rollout.proxy.test_sessions import ASKED, OPENING, ask
from tests.rollout.support import END, FIX, PARAMS, SUBMIT, VIEW, call, make_args, make_sample

SOLVED = "I look.\n" + VIEW, FIX, SUBMIT
MALFORMED = "Hm.\n<tool_call>{</tool_call>" + END, call("bash", command="echo out; echo err") + END, SUBMIT
THOUGHT = [
    {"role": "user", "text": "Add.", "start": 0, "end": 2},
    {"role": "assistant", "text": "It is 2.", "reasoning": "One and one.", "start": 3, "end": 6, "ended": 1.5},
]


def recorded_run(tokenizer: Any, checkpoint: str, directory: Path) -> Path:
    """Training: solved (0), malformed and unsolved (1), forked (2), broken (3), all of rollout 4, and thinking (5) of
    rollout 5; all but the broken one are in `trained.jsonl`. Evaluation `heldout`: twice one task (0, 1), before the
    first rollout and after rollout 4.
    """
    folder = create_run(resolve("tiny_cpu", ["run.name=first", f"run.dir={directory}"]))
    asyncio.run(_record(tokenizer, checkpoint, folder))
    return folder


async def _record(tokenizer: Any, checkpoint: str, folder: Path) -> None:
    args = make_args(checkpoint, "http://x:1", folder.parent, swe_run_dir=str(folder))
    solved = await _played(tokenizer, args, 0, SOLVED, solved=True)
    malformed = await _played(tokenizer, args, 1, MALFORMED, solved=False)
    forked = await _forked(tokenizer, args)
    broken = make_sample(3)
    write_failure(broken, "sandbox_error", "the disk is gone: " + LINES["OpenAI Token"])
    slime_plugin.log_rollout(4, args, [[solved, malformed], [*forked, broken]], None, 1.0)
    slime_plugin.log_rollout(5, args, [_thinking()], None, 1.0)
    append_trained(folder / TRAINED, [
        TrainedSample(4, solved.index, 0.75, [-0.5 - at / 64 for at in range(sum(solved.loss_mask))], step=0),
        TrainedSample(4, malformed.index, -0.25, step=0),
        *(TrainedSample(4, sample.index, 0.0, step=1) for sample in forked),
        TrainedSample(5, 5, [1.5, 0.0, -0.125], [-0.25, -0.5, -0.25], step=0),
    ])  # fmt: skip
    for rollout in (-1, 4):
        samples = [await _played(tokenizer, args, at, (FIX, SUBMIT), solved=at == 0) for at in (0, 1)]
        slime_plugin.log_evaluation(rollout, args, {"heldout": {"samples": samples}})
    await close_loop_scope()


async def _played(tokenizer: Any, args: Any, index: int, turns: tuple[str, ...], *, solved: bool) -> Sample:
    async with scripted_engine(tokenizer, by_turn(*turns), log_prob=-0.5, weight_version="3") as engine:
        address = engine.url.removeprefix("http://").split(":")
        args.sglang_router_ip, args.sglang_router_port = address[0], int(address[1])
        sample = await slime_plugin.generate(args, make_sample(index), PARAMS)
    write_score([sample], Score(solved, float(solved), evidence={"log": "\n".join(LINES.values())}))
    return sample


async def _forked(tokenizer: Any, args: Any) -> list[Sample]:
    """An agent behind the proxy that shortens its history, and goes on from its last turn."""
    templates = Templates(tokenizer, "hermes")
    async with (
        scripted_engine(tokenizer, by_turn("One." + END, "Two." + END), log_prob=-0.5) as engine,
        EngineClient(engine.url) as client,
    ):
        policy = Policy(client, templates, "hermes", max_context=4096, max_turns=8)
        session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        one = await ask(session)
        again = (Message("assistant", one.text), Message("user", "Go on: " + LINES["Slack Token"]))
        two = await ask(session, replace(ASKED, messages=(*OPENING, *again)))
        shorter = (Message("user", "Shortened."), Message("assistant", two.text), Message("user", "And?"))
        await ask(session, replace(ASKED, messages=shorter))
    episode = Episode(
        "calc-1", session.session.segments(), f"+{LINES['Stripe Access Key']}\n", StopReason.GAVE_UP, turns=3
    )
    samples = to_samples(args, make_sample(2), episode, templates.decode, placeholder=0)
    write_score(samples, Score(solved=False))
    return samples


def _thinking() -> Sample:
    sample = make_sample(5)
    sample.tokens, sample.response_length = [1, 2, 3, 4, 5, 6], 3
    sample.loss_mask, sample.rollout_log_probs = [1, 1, 1], [-0.25, -0.5, -0.75]
    sample.status, sample.response = Sample.Status.COMPLETED, "One and one. It is 2."
    sample.metadata |= {"turns": THOUGHT, "episode": {"patch": "", "stop_reason": "submitted", "turns": 1}}
    write_score([sample], Score(solved=True, value=1.0))
    return sample


def check_no_secret(path: Path) -> None:
    """No file holds a planted secret."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    redacted = False
    for file in files:
        is_log = file.suffix == ".eval"
        content = read_eval_log(str(file)).model_dump_json() if is_log else file.read_bytes().decode(errors="replace")
        redacted |= "redacted]" in content
        written = [(name, text) for name, value in ENVIRONMENT.items() for text in (value, json.dumps(value)[1:-1])]
        assert not [name for name, text in written if text in content], file
    assert redacted, "or the test shows nothing"
