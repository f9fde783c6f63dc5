"""Each token at which an engine ends a turn: it is trained, its text is in no message, and the next prompt goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slime_swe.embedded.server import Detokenizer
from slime_swe.errors import UserError
from slime_swe.rollout.agents.native import load_template
from slime_swe.rollout.chat.bash_block import INSTRUCTIONS
from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.chat.tokenizer import eos_token_ids, template_path
from slime_swe.rollout.chat.tool_formats import tool_format
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Session, StopReason
from slime_swe.rollout.proxy.conversation import Message
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.scripted import by_turn, scripted_engine
from tests.rollout.conftest import CHATML, make_tokenizer
from tests.rollout.proxy.test_sessions import ASKED, ask
from tests.rollout.support import FIX, PARAMS, SUBMIT
from tests.rollout.test_native import play, settings  # noqa: F401

# What a kind's template is, the `eos_token` of its tokenizer, and the `eos_token_id` of its generation_config.json.
KINDS: dict[str, tuple[str, str, list[str]]] = {
    "qwen": ("", "<|im_end|>", ["<|im_end|>", "<|endoftext|>"]),
    "llama3": ("llama3", "<|eot_id|>", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
    "deepseek": ("deepseek_v3", "<｜end▁of▁sentence｜>", ["<｜end▁of▁sentence｜>"]),
    "glm": ("glm4_7", "<|endoftext|>", ["<|endoftext|>", "<|user|>", "<|observation|>"]),
}
CONTROL = {
    "qwen": [],
    "llama3": "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|end_of_text|> <|eom_id|> <|eot_id|>".split(),
    "deepseek": "<｜begin▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜>".split(),
    "glm": "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think>".split(),
}
OTHER = "<|endoftext|>"  # of Qwen's, whose template ends a turn with <|im_end|>


def write(folder: Path, kind: str = "qwen") -> Any:
    """A checkpoint's tokenizer, in a folder with a generation_config.json."""
    name, eos, ends = KINDS[kind]
    tokenizer = make_tokenizer(template_path(name).read_text(encoding="utf-8") if name else CHATML)
    tokenizer.add_tokens(CONTROL[kind], special_tokens=True)
    tokenizer.eos_token = eos
    tokenizer.save_pretrained(folder)
    ids = tokenizer.convert_tokens_to_ids(ends)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids if len(ids) > 1 else ids[0]}))
    return tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_may_end_in_each_stop_token_of_its_checkpoint(kind, tmp_path):
    tokenizer = write(tmp_path, kind)
    format = tool_format("bash_block") if kind == "deepseek" else None
    assert not format or format.instructions == INSTRUCTIONS
    template = load_template(str(tmp_path), format=format)
    ends = set(tokenizer.convert_tokens_to_ids(KINDS[kind][2]))
    assert set(template.stop_token_ids) == ends == Detokenizer(tmp_path).eos_ids
    said = template.encoder.plain("Let me look.")
    for role in ("user",) if format else ("tool", "user"):
        new = [{"role": role, "content": "a.py"}]
        behind_a_cut_turn = template.delta(new, said)
        own, rest = behind_a_cut_turn[0], behind_a_cut_turn[1:]
        assert own in ends
        for end in ends:
            turn = [*said, end]
            assert template.decode(turn) == "Let me look."
            read = template.read(turn)
            assert read.reasoning + read.content == "Let me look."
            assert template.delta(new, turn) == (rest if end == own else behind_a_cut_turn)
    assert template.decode([*said, *ends]).startswith("Let me look."), "only the last token ends a turn"
    assert template.with_tools(()).stop_token_ids == template.stop_token_ids


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (None, []),
        ({}, []),
        ({"eos_token_id": None}, []),
        ({"eos_token_id": 3}, [3]),
        ({"eos_token_id": []}, []),
        ({"eos_token_id": [3, 5, 3]}, [3, 5]),
        ({"eos_token_id": [None, -1, True, "3", 2.0, 5]}, [5]),
        ({"eos_token_id": {"a": 1}}, []),
        ([3], []),
    ],
)
def test_an_odd_generation_config_names_what_it_names(tmp_path, written, found):
    if written is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(written))
    assert eos_token_ids(tmp_path) == found
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert eos_token_ids(str(tmp_path)) == [7, *found]


def test_a_generation_config_that_is_no_json_is_refused_by_its_path(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match=r"generation_config\.json must be JSON"):
        eos_token_ids(tmp_path)


def test_ids_that_the_tokenizer_does_not_have_are_left_out():
    tokenizer = make_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for ids in ([10**6], [2**31], [2**70], [end]):
        assert ChatTemplate(tokenizer, (), eos_ids=ids).stop_token_ids == [end]


async def test_the_native_agent_reads_a_call_before_the_other_end(play, tmp_path):  # noqa: F811
    tokenizer = write(tmp_path)
    turns = [one.replace("<|im_end|>", OTHER) for one in (FIX, SUBMIT)]
    async with scripted_engine(tokenizer, by_turn(*turns)) as engine:
        episode = await play(engine.url, checkpoint=str(tmp_path))
    assert (episode.stop_reason, episode.turns) == (StopReason.SUBMITTED, 2)
    assert not any(OTHER in turn.text for segment in episode.segments for turn in segment.turns)
    (segment,) = episode.segments
    other, own = tokenizer.convert_tokens_to_ids([OTHER, "<|im_end|>"])
    at = segment.tokens.index(other)
    assert segment.tokens[at + 1] == own
    assert segment.loss_mask[at : at + 2] == [1, 0], "what was sampled is trained, what is supplied is not"


async def test_a_client_of_the_proxy_does_not_see_the_other_end_and_its_echo_is_the_turn(tmp_path):
    tokenizer = write(tmp_path)
    templates = Templates(tokenizer, "hermes", eos_token_ids(tmp_path))
    async with (
        scripted_engine(tokenizer, by_turn(f"Yes.{OTHER}", f"And no.{OTHER}")) as engine,
        EngineClient(engine.url, attempts=1) as client,
    ):
        policy = Policy(client, templates, "hermes", max_context=4096, max_turns=50)
        session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        first = await ask(session)
        assert (first.text, first.finish) == ("Yes.", "stop")
        echo = (*ASKED.messages, Message("assistant", "Yes."), Message("user", "Really?"))
        assert (await ask(session, replace(ASKED, messages=echo))).text == "And no."
        (segment,) = session.session.segments()
        sent = engine.requests[1]["input_ids"]
        assert sent == segment.tokens[: len(sent)]
        assert tokenizer.decode(sent).count(OTHER) == 1
        assert f"Yes.{OTHER}<|im_end|>\n<|im_start|>user\nReally?<|im_end|>\n" in tokenizer.decode(sent)
        assert set(engine.requests[0]["sampling_params"]["stop_token_ids"]) == {*templates.stop_token_ids}
