"""`slime-swe agent check`: real agents in a real sandbox, whose policy is a script."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.commands.agent import SEED, Report, check_agent, ends, prefix_cache_ceiling, problems_of, retained
from slime_swe.rollout.agents.base import AGENTS, IN_PROCESS
from slime_swe.rollout.agents.mini_swe_agent import MiniSweAgent
from slime_swe.rollout.agents.toy_task import with_malformed_call
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.chat.tool_formats import parse
from slime_swe.rollout.client import Generation
from slime_swe.rollout.episode import Segment, Session
from slime_swe.rollout.proxy.conversation import Message, MessageCall, Request
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.proxy.tree import ConversationTree, _joined
from slime_swe.rollout.scripted import Sampled
from tests.rollout.agents.tiny_agent import PROGRAM, TinyAgent
from tests.rollout.support import of_agents

PROGRAMS = sorted({*AGENTS} - IN_PROCESS)


def test_retained_tokens_are_those_trained_once_as_they_were_sampled():
    log = [Sampled([1], [2, 3], [-1.0, -2.0]), Sampled([1, 2, 3, 4], [5], [-3.0])]
    whole = Segment([1, 2, 3, 4, 5], [0, 1, 1, 0, 1], [0, -1.0, -2.0, 0, -3.0], 1)
    assert retained(log, [whole]) == 1
    assert retained(log, [whole, whole]) == 0
    assert retained(log, [replace(whole, tokens=[1, 2, 9, 4, 5])]) == pytest.approx(2 / 3)
    assert retained(log, [replace(whole, loss_mask=[0, 1, 1, 0, 0])]) == pytest.approx(2 / 3)
    assert retained([], []) == 0


def test_the_prefix_cache_could_hold_what_was_prompt_or_reply_before():
    log = [Sampled([1, 2], [3], [-1.0]), Sampled([1, 2, 3, 4], [5], [-1.0]), Sampled([1, 9], [5], [-1.0])]
    assert prefix_cache_ceiling(log) == pytest.approx((0 + 3 + 1) / 8)
    assert prefix_cache_ceiling([]) == 0


def test_a_turn_that_a_later_prompt_goes_on_from_is_no_end():
    log = [Sampled([1], [2], [-1.0]), Sampled([1, 2, 3], [4], [-1.0]), Sampled([1, 2, 5], [6], [-1.0])]
    assert ends(log) == 2
    assert ends(log[:2]) == 1
    assert ends([]) == 0


def test_the_second_call_of_a_script_is_made_malformed():
    script = tuple(MiniSweAgent.check_script)
    broken = with_malformed_call(script)
    assert (broken[0], broken[2:]) == (script[0], script[1:])
    turn = parse(broken[1], "hermes")
    assert (turn.calls, [call.name for call in turn.written]) == ([], ["bash"])
    assert turn.error
    only = with_malformed_call((script[0], "Done."))
    assert only[1:] == (script[0], "Done.")
    assert parse(only[0], "hermes").error
    assert with_malformed_call(("Done.",)) == ()


def test_an_unknown_agent_is_refused_with_those_there_are(capsys):
    assert run(["agent", "check", "aidr"]) == 2
    assert "Did you mean 'aider'" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there_is_refused(capsys):
    assert run(["agent", "check", "aider", "--checkpoint", "/nowhere"]) == 2
    assert "there is no folder /nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "wrong"), [("x", "malformed"), ("[]", "length >= 1"), ('["a", 1]', "got `int`")])
def test_a_script_that_is_none_is_refused(tmp_path, capsys, text, wrong):
    (tmp_path / "script.json").write_text(text)
    assert run(["agent", "check", "aider", "--script", str(tmp_path / "script.json")]) == 2
    assert wrong in capsys.readouterr().err


@pytest.fixture(scope="module")
def checked() -> Callable[[str], Report]:
    """The report on an agent, made once."""
    reports: dict[str, Report] = {}
    requests: dict[str, list[Request]] = {}

    def get(name: str) -> Report:
        if name not in reports:
            placed = requests.setdefault(name, [])
            usual = ConversationTree.place

            def place(self, request, start=None):
                placed.append(request)
                return usual(self, request, start)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ConversationTree, "place", place)
                try:
                    reports[name] = asyncio.run(check_agent(name, str(SEED), "overlay"))
                except UserError as error:
                    pytest.skip(f"{name} can't be installed or run here: {error}")
        return reports[name]

    get.requests = requests  # type: ignore[attr-defined]
    return get


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", of_agents(*PROGRAMS))
def test_an_agent_repairs_the_task_and_no_sampled_token_is_lost(checked, name):
    report = checked(name)
    assert report["problems"] == [], report
    assert (report["reward"], report["tokens_retained"], report["stop_reason"]) == (1, 1, "submitted")
    assert report["turns"] >= 2 - (name == "aider")
    if name != "aider":  # which has no tools, and never only appends
        assert report["tool_calls_executed"] >= report["turns"] - 1
        assert report["forks"] == 0
        assert report["unmatched"] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", of_agents(*PROGRAMS))
def test_an_agent_goes_on_after_a_malformed_call_and_repairs_the_task(checked, name):
    usual, report = checked(name), checked(name)["malformed"]
    assert (report["reward"], report["tokens_retained"], report["stop_reason"]) == (1, 1, "submitted"), report
    assert report["turns"] == usual["turns"] + 1 + (name == "aider")  # which is given an edit before
    assert report["malformed_calls"] == (name != "aider")
    assert report["false_forks"] == 0
    assert report["forks"] == {"aider": report["turns"] - 1, "mini_swe_agent": 1}.get(name, 0)  # turns left out


class Fragile(TinyAgent):
    """Ends at arguments that are no JSON."""

    name = "fragile_agent"

    @classmethod
    def install(cls, folder):
        (folder / "run.py").write_text(PROGRAM.replace("except ValueError", "except KeyError"))


@pytest.mark.slow
def test_an_agent_that_ends_at_a_malformed_call_is_reported():
    try:
        report = asyncio.run(check_agent(f"{__name__}.Fragile", str(SEED), "overlay"))
    except UserError as error:
        pytest.skip(f"overlay sandboxes do not work here: {error}")
    assert (report["reward"], report["malformed"]["reward"]) == (1, -1)
    assert report["problems"] == [
        "after a malformed call: the task was not solved (gave_up)",
        "after a malformed call: no tool call was executed: such training could earn reward without a single call",
    ]


def _noisy(message: Message, chance: random.Random) -> Message:
    """The same, written as another client would."""
    if message.role != "assistant":
        return replace(message, text=message.text + chance.choice(["", "\n"]))
    calls = tuple(replace(call, arguments=_relaid(call, chance)) for call in message.calls)
    return replace(message, text=chance.choice(["", " "]) + message.text, calls=calls)


def _relaid(call: MessageCall, chance: random.Random) -> str:
    pairs = list(json.loads(call.arguments).items())
    chance.shuffle(pairs)
    return json.dumps(dict(pairs), indent=chance.choice([None, 1, 4]))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", of_agents(*(name for name in PROGRAMS if name != "aider")))
def test_real_traffic_in_another_hand_loses_no_turn(checked, name):
    """What an agent sent is placed again with noise, and every prompt is the one that it was."""
    played = checked(name)["turns"]
    requests: list[Request] = checked.requests[name][:played]  # what follows is the play with a malformed call
    templates = Templates(load_tokenizer(str(SEED)), "hermes")
    for seed in range(20):
        chance, session = random.Random(seed), Session()
        tree = ConversationTree(session, templates)
        for number, request in enumerate(requests):
            prompt = tree.place(replace(request, messages=tuple(_noisy(one, chance) for one in request.messages)))
            said = _said_next(requests, number)
            tokens = templates.turn(said)
            tree.record(prompt, said, Generation(tokens, [-1.0] * len(tokens), "stop"))
        assert len(session.segments()) == 1, seed
        assert tree.unmatched == tree.edited == []


def _said_next(requests: list[Request], number: int) -> Message:
    """What the policy said to a request, as the next one echoes it: in one message or several."""
    if number + 1 == len(requests):
        return Message("assistant", "The end.")
    new = requests[number + 1].messages[len(requests[number].messages) :]
    return _joined([*takewhile(lambda one: one.role == "assistant", new)])


@pytest.mark.slow
def test_the_report_on_the_terminal(capsys):
    code = run(["agent", "check", f"{TinyAgent.__module__}.{TinyAgent.__qualname__}"])
    shown = capsys.readouterr()
    if "sandbox" in shown.err and code and not shown.out:
        pytest.skip(f"overlay sandboxes do not work here: {shown.err}")
    assert code == 0
    assert "reward 1.0, submitted, 3 turns" in shown.out
    assert "tiny_agent is fit for training" in shown.out


def test_a_policy_whose_calls_are_never_executed_raises_the_alarm():
    report = {
        "reward": 1.0,
        "tokens_retained": 1.0,
        "false_forks": 0,
        "tool_calls_parsed": 2,
        "tool_calls_executed": 0,
        "malformed_calls": 0,
    }
    assert [line for line in problems_of(report, True) if "executed" in line]
    assert list(problems_of(report | {"tool_calls_executed": 1}, True)) == []
    assert [line for line in problems_of(report | {"tool_calls_parsed": 0}, True) if "tool format" in line]
    assert [line for line in problems_of(report | {"false_forks": 1}, True) if "training sequences" in line]
