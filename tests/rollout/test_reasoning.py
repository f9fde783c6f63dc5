"""Thinking policies: shipped templates against the proof and the families' own, and 30 turns without a token twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.agents.native import NativeAgent
from slime_swe.rollout.chat.template import ChatTemplate, TemplateError
from slime_swe.rollout.chat.tokenizer import load_tokenizer, shipped_templates, template_path
from slime_swe.rollout.chat.tool_formats import THINK, ToolCall, tool_format
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Session, StopReason
from slime_swe.rollout.play import run_episode
from slime_swe.rollout.proxy.server import open_proxy
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.scripted import scripted_engine
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.rollout.tools import TOOLS
from slime_swe.sandbox.pool import SandboxPool
from tests.data_sources.tasks import make_task
from tests.rollout.conftest import make_tokenizer
from tests.rollout.support import call
from tests.rollout.test_turns import check_turns

SCHEMAS = [tool.spec.schema() for tool in TOOLS]
CONTROL = "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> ]~!b[ ]~b] [e~[ <think> </think>".split()
CONTROL += "<｜begin▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜>".split()
CONTROL += "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|python_tag|>".split()
TEMPLATES = {  # what opens the reasoning in the prompt, and what the policy ends a turn with
    "qwen3": ("", ["<|im_end|>"]),
    "qwen3_thinking": ("<think>\n", ["<|im_end|>"]),
    "qwen3_5": ("<think>\n", ["<|im_end|>"]),
    "glm4_5": ("", ["<|user|>", "<|observation|>"]),
    "glm4_7": ("<think>", ["<|user|>", "<|observation|>"]),
    "minimax_m2": ("<think>\n", ["[e~["]),
}
PLAIN = {"llama3": "<|eot_id|>", "deepseek_v3": "<｜end▁of▁sentence｜>"}  # of models that don't think
TURNS = 30


def tokenizer_of(source: str) -> Any:
    """Without an end of its own: which it is differs with the template."""
    tokenizer = make_tokenizer(source)
    tokenizer.eos_token = None
    tokenizer.add_tokens(CONTROL, special_tokens=True)
    return tokenizer


def shipped(name: str) -> str:
    return template_path(name).read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=TEMPLATES)
def named(request) -> tuple[str, ChatTemplate]:
    template = ChatTemplate(tokenizer_of(shipped(request.param)), SCHEMAS)
    template.prove()
    return request.param, template


def test_every_shipped_template_is_proven(named):
    name, template = named
    opened, ends = TEMPLATES[name]
    prompt = template.encoder.decode(template.first_prompt([{"role": "user", "content": "Hi"}]))
    assert prompt.endswith(opened or "<|im_start|>assistant\n" if "qwen" in name else opened or "<|assistant|>")
    assert [template.encoder.decode([token]) for token in template.stop_token_ids] == ends
    assert template.with_tools(()).stop_token_ids == template.stop_token_ids
    assert shipped_templates().keys() - TEMPLATES.keys() == {*PLAIN}


@pytest.mark.parametrize(("name", "tools"), [("llama3", SCHEMAS), ("llama3", ()), ("deepseek_v3", ())])
def test_every_shipped_template_of_models_that_do_not_think_is_proven(name, tools):
    """With tools, and for formats whose instructions stand in the system prompt, where results are a user's."""
    template = ChatTemplate(tokenizer_of(shipped(name)), tools, tool_messages=bool(tools))
    template.prove()
    assert [template.encoder.decode([token]) for token in template.stop_token_ids] == [PLAIN[name]]
    for said in ("Done.", "  I look.\n", '{"name": "view", "parameters": {"path": "a.py"}}'):
        read = template.read([*template.encoder.whole(said), template.stop_token_ids[0]])
        assert (read.reasoning, read.content, read.kept) == ("", said, True)


def test_calls_are_written_by_llama_s_template_as_its_tool_format_writes_them():
    tokenizer, format = tokenizer_of(shipped("llama3")), tool_format("llama3")
    calls = [ToolCall("view", {"path": 'a "b".py'}), ToolCall("submit", {})]
    asked = [{"type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in calls]
    for said in ("", "I look."):
        messages = [{"role": "user", "content": "Fix it."}, {"role": "assistant", "content": said, "tool_calls": asked}]
        text = tokenizer.apply_chat_template(messages, tools=SCHEMAS, tokenize=False)
        turn = text.rpartition("<|end_header_id|>\n\n")[2].removesuffix("<|eot_id|>")
        assert turn == said + "\n" * bool(said) + "".join(format.render(calls))
        assert format.parse(turn, SCHEMAS).written == calls


def written(name: str, reasoning: str, content: str) -> str:
    """A turn as the policy samples it."""
    tail = {
        "glm4_5": f"\n<think>{reasoning}</think>" + (f"\n{content}" if content else ""),
        "glm4_7": f"{reasoning}</think>{content}",
        "qwen3": f"<think>\n{reasoning}\n</think>\n\n{content}",
    }
    return tail.get(name, f"{reasoning}\n</think>\n\n{content}")


def test_a_turn_is_read_and_said_to_be_kept_or_not(named):
    name, template = named

    def read(text: str):
        return template.read([*template.encoder.whole(text), template.stop_token_ids[0]])

    for reasoning, content in [("Hm.\n\nSo.", "Done."), ("Hm.", ""), ("Hm.", "a</think>b")]:
        said = read(written(name, reasoning, content))
        assert (said.reasoning, said.content, said.kept) == (reasoning, content, True)
    opens = "" if TEMPLATES[name][0] else "<think>\n"
    cut = read(f"{opens}I think that")
    assert (cut.reasoning, cut.content, cut.kept) == ("I think that", "", False)
    loose = read(written(name, "Hm.", "Done.").replace("</think>", "\n\n\n</think>\n\n\n\n"))
    assert (loose.reasoning, loose.content, loose.kept) == ("Hm.", "Done.", False)


def test_a_token_that_opens_the_next_message_ends_the_turn():
    template = ChatTemplate(tokenizer_of(shipped("glm4_7")), SCHEMAS)
    user, observation = template.stop_token_ids
    result = [{"role": "tool", "content": "a.py"}]
    whole = template.delta(result, [1, 2])
    assert whole[0] == observation
    assert template.delta(result, [1, 2, observation]) == whole[1:]
    assert template.delta(result, [1, 2, user]) == whole
    assert template.delta([{"role": "user", "content": "x"}], [1, 2, user])[0] != user


def test_trimmed_contents_and_a_blank_system_message_are_what_the_template_makes_of_them():
    tokenizer = tokenizer_of(shipped("qwen3_5"))
    template = ChatTemplate(tokenizer, SCHEMAS)
    for system in ("Be brief.", "  Be brief.\n", "", " \n "):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "\n Fix it. \u3000"}]
        text = tokenizer.apply_chat_template(messages, tools=SCHEMAS, add_generation_prompt=True, tokenize=False)
        assert template.first_prompt(messages) == template.encoder.whole(text)
    turn = {"role": "assistant", "reasoning_content": "Hm.", "content": "Done."}
    longer = [*messages, turn, {"role": "tool", "content": " \n"}, {"role": "user", "content": "Go on.\n"}]
    text = tokenizer.apply_chat_template(longer, tools=SCHEMAS, add_generation_prompt=True, tokenize=False)
    added = template.encoder.decode(template.delta(longer[3:]))
    assert text.endswith(f"Done.<|im_end|>{added}")


DROPPING = shipped("qwen3").replace(
    '{{- "<|im_start|>assistant\\n<think>\\n" ~ thought ~ "\\n</think>\\n\\n" ~ said -}}',
    '{{- "<|im_start|>assistant\\n" ~ ("<think>\\n" ~ thought ~ "\\n</think>\\n\\n" if loop.revindex < 3) ~ said -}}',
)
FORGETTING = shipped("qwen3").replace(
    '"\\n</think>\\n\\n" ~ said', '"\\n</think>\\n\\n" ~ said | replace("Let", "LET")'
)


@pytest.mark.parametrize("source", [DROPPING, FORGETTING])
def test_a_template_that_changes_what_its_policy_said_is_refused(source):
    assert source != shipped("qwen3")
    with pytest.raises(TemplateError, match="append-only"):
        ChatTemplate(tokenizer_of(source), SCHEMAS).prove()


def test_a_template_is_named_or_a_file(tmp_path, checkpoint):
    path = tmp_path / "own.jinja"
    path.write_text("{{ 1 }}")
    assert load_tokenizer(checkpoint, str(path)).chat_template == "{{ 1 }}"
    assert load_tokenizer(checkpoint, "qwen3").chat_template == shipped("qwen3")
    with pytest.raises(UserError, match=r"model.chat_template=qwen4: .*glm4_5, .*qwen3"):
        load_tokenizer(checkpoint, "qwen4")


@pytest.mark.parametrize(
    ("text", "opened", "read"),
    [
        ("<think>\nHm.\n</think>\n\nDone.", False, ("Hm.", "Done.")),
        ("\n<think></think>\nDone.", False, ("", "Done.")),
        ("Hm.</think>Done.", True, ("Hm.", "Done.")),
        ("<think>Hm.</think>Done.", True, ("Hm.", "Done.")),
        ("Hm.</think>Done.", False, ("", "Hm.</think>Done.")),
        (" Done. ", False, ("", " Done. ")),
        ("never closed", True, ("never closed", "")),
    ],
)
def test_reasoning_is_split_from_what_is_said(text, opened, read):
    assert THINK.split(text, opened=opened) == read


# The families' own templates, which drop the reasoning of turns before the last user's message.
OWN = [
    ("qwen3", "LLAMA_CPP_HOME", "models/templates/Qwen-Qwen3-0.6B.jinja"),
    ("glm4_5", "LLAMA_CPP_HOME", "models/templates/GLM-4.6.jinja"),
    ("glm4_7", "LLAMA_CPP_HOME", "models/templates/GLM-4.7-Flash.jinja"),
    ("minimax_m2", "LLAMA_CPP_HOME", "models/templates/MiniMax-M2.jinja"),
    ("qwen3", "MILES_HOME", "qwen3_fixed.jinja"),
    ("qwen3_thinking", "MILES_HOME", "qwen3_thinking_2507_and_next_fixed.jinja"),
    ("qwen3_5", "MILES_HOME", "qwen3.5_fixed.jinja"),
    ("minimax_m2", "MILES_HOME", "minimax_m25_fixed.jinja"),
    ("minimax_m2", "MILES_HOME", "minimax_m27_fixed.jinja"),
    (None, "MILES_HOME", "kimi_k25_fixed.jinja"),
]
MILES = "miles/utils/chat_template_utils/templates"


def own_template(home: str, path: str) -> str:
    if home not in os.environ:
        pytest.skip(f"{home} names no checkout")
    return (Path(os.environ[home]) / (f"{MILES}/{path}" if home == "MILES_HOME" else path)).read_text(encoding="utf-8")


def conversations() -> Iterator[list[dict[str, Any]]]:
    function = {"name": "view", "arguments": {"path": "a b.py", "text": "ü <x>\n"}}
    calls = [{"id": "c", "type": "function", "function": function}]
    for opening in ([{"role": "system", "content": "Be brief."}], [{"role": "system", "content": "Ü\n\nx"}]):
        history = [*opening, {"role": "user", "content": "Fix it.\n\nNow."}]
        yield list(history)
        for said, asked, results in [("I look.", calls, ["a"]), ("", calls * 2, ["b\n c", "d"]), ("Done.", [], [])]:
            history.append({"role": "assistant", "content": said, "reasoning_content": "Hm.\n\nSo."})
            if asked:
                history[-1]["tool_calls"] = asked
            history += [{"role": "tool", "content": text} for text in results]
            yield list(history)


@pytest.mark.parametrize(("name", "home", "path"), OWN)
def test_a_shipped_template_writes_what_the_family_s_own_does(name, home, path):
    own = tokenizer_of(own_template(home, path))
    if home == "MILES_HOME":  # which keeps reasoning where it is asked to
        own.chat_template = "{%- set clear_thinking, preserve_thinking = false, true -%}" + own.chat_template
        ChatTemplate(own, SCHEMAS).prove()
    if name is None:
        return
    ours = tokenizer_of(shipped(name))
    for messages in conversations():
        for tools in (SCHEMAS, None):
            opens = messages[-1]["role"] != "assistant"
            options = {"tools": tools, "add_generation_prompt": opens, "tokenize": False}
            assert ours.apply_chat_template(messages, **options) == own.apply_chat_template(messages, **options)


def thirty(name: str) -> list[str]:
    """What the policy says: reasoning, words or none, and a call in each turn but the last."""
    turns = [
        written(name, f"step {n}\n\nso I {n}", ("I look." if n % 3 else "") + call("bash", command=f"echo {n}"))
        for n in range(TURNS - 1)
    ]
    end = {"glm4_5": "<|observation|>", "glm4_7": "<|observation|>", "minimax_m2": "[e~["}.get(name, "<|im_end|>")
    return [f"{turn}{end}" for turn in turns]


def in_order(turns: list[str]):
    return lambda engine, asked: turns[min(len(engine.sampled), len(turns) - 1)]


@pytest.fixture
def tokenised(monkeypatch) -> list[int]:
    """How many tokens each first prompt and each delta has."""
    counts: list[int] = []

    def counting(of: str) -> None:
        real = getattr(ChatTemplate, of)

        def counted(self, *args: Any) -> Any:
            counts.append(len(made := real(self, *args)))
            return made

        monkeypatch.setattr(ChatTemplate, of, counted)

    for of in ("render_first", "render_delta", "unsampled"):
        counting(of)
    return counts


def check(segments: Any, engine: Any, tokenised: list[int]) -> None:
    """One sequence, which is what the engine was sent and said; everything else of it was tokenised just once."""
    (segment,) = segments
    sampled = [token for one in engine.sampled for token in one.tokens]
    assert [token for token, mask in zip(segment.tokens, segment.loss_mask, strict=True) if mask] == sampled
    for one in engine.sampled:
        whole = [*one.prompt, *one.tokens]
        assert segment.tokens[: len(whole)] == whole
    assert len(segment.tokens) - len(sampled) == sum(tokenised)
    check_turns(segment.tokens, segment.loss_mask, [*segment.turns], engine.tokenizer.decode)
    assert all(turn.reasoning for turn in segment.turns if turn.role == "assistant")


@pytest.mark.parametrize("name", TEMPLATES)
async def test_thirty_thinking_turns_of_the_native_agent(name, tmp_path, tokenised):
    tokenizer = tokenizer_of(shipped(name))
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    settings = RolloutSettings(
        engine_host="", engine_port=0, checkpoint=str(tmp_path / "checkpoint"), max_context=40_000, agent="native",
        tool_format="hermes", system_prompt="Be brief.", max_turns=TURNS, time_budget=60.0, sandbox="local",
        sandbox_concurrency=1, run_dir=tmp_path, seed=1, chat_template=name,
    )  # fmt: skip
    turns = [*thirty(name), written(name, "That is all.", call("submit")) + "<|im_end|>"]
    async with (
        scripted_engine(tokenizer, in_order(turns)) as engine,
        SandboxPool("local", concurrency=1) as pool,
        EngineClient(engine.url) as client,
    ):
        agent = NativeAgent(settings, client, ChatTemplate(tokenizer, SCHEMAS))
        sampling = Sampling({"max_new_tokens": 500, "temperature": 1.0, "stop": None})
        episode = await run_episode(agent, make_task(), pool, sampling, time_budget=60)
    assert (episode.stop_reason, episode.turns) == (StopReason.SUBMITTED, TURNS)
    check(episode.segments, engine, tokenised)


def chat_echo(reply: Any, echo: str) -> list[Any]:
    message = dict(reply["choices"][0]["message"])
    reasoning = message.pop("reasoning_content")
    if echo == "verbatim":
        message["reasoning_content"] = reasoning
    elif echo == "trimmed":
        message["reasoning_content"] = reasoning[:3]
    elif echo == "inline":
        message["content"] = f"<think>{reasoning}</think>{message['content'] or ''}"
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in message["tool_calls"]]
    return [message, *results]


def messages_echo(reply: Any, echo: str) -> list[Any]:
    blocks = [block for block in reply["content"] if echo != "dropped" or block["type"] != "thinking"]
    assert any(block["type"] == "thinking" and block["signature"] for block in reply["content"])
    calls = [block for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": one["id"], "content": "ok"} for one in calls]
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]


def responses_echo(reply: Any, echo: str) -> list[Any]:
    assert reply["output"][0]["type"] == "reasoning"
    items = [item for item in reply["output"] if echo != "dropped" or item["type"] != "reasoning"]
    calls = [item for item in items if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": one["call_id"], "output": "ok"} for one in calls]
    return [*items, *results]


PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
PROTOCOLS = {
    "/v1/chat/completions": (
        "messages",
        {"tools": [{"type": "function", "function": {"name": "bash", "parameters": PARAMETERS}}]},
        chat_echo,
    ),
    "/v1/messages": (
        "messages",
        {"tools": [{"name": "bash", "input_schema": PARAMETERS}], "max_tokens": 500},
        messages_echo,
    ),
    "/v1/responses": (
        "input",
        {"tools": [{"type": "function", "name": "bash", "parameters": PARAMETERS}]},
        responses_echo,
    ),
}


@asynccontextmanager
async def opened(name: str, turns: list[str]):
    tokenizer = tokenizer_of(shipped(name))
    async with (
        scripted_engine(tokenizer, in_order(turns)) as engine,
        EngineClient(engine.url) as client,
        open_proxy() as proxy,
        aiohttp.ClientSession() as http,
    ):
        policy = Policy(client, Templates(tokenizer, "hermes"), "hermes", max_context=40_000, max_turns=100)
        params = {"max_new_tokens": 500, "temperature": 1.0, "top_p": 1.0, "stop": None, "stop_token_ids": None}
        session = ProxySession(policy, Session(), Sampling(params), EpisodeStatistics())
        async with proxy.serve(session) as path:

            async def post(where: str, body: Any) -> bytes:
                headers = {"Authorization": f"Bearer {session.key}"}
                url = f"{proxy.url}{path}{where}"
                async with http.post(url, data=orjson.dumps(body), headers=headers) as reply:
                    assert reply.status == 200, await reply.text()
                    return await reply.read()

            yield session, engine, post


ECHOES = [
    (name, path, echo)
    for name in ("qwen3", "qwen3_5", "glm4_7")
    for path in PROTOCOLS
    for echo in ("verbatim", "dropped")
]
ECHOES += [("qwen3_5", "/v1/chat/completions", echo) for echo in ("trimmed", "inline")]


@pytest.mark.parametrize(("name", "path", "echo"), ECHOES)
async def test_thirty_thinking_turns_through_the_proxy(name, path, echo, tokenised):
    key, more, echoed = PROTOCOLS[path]
    async with opened(name, thirty(name)) as (session, engine, post):
        tokenised.clear()
        history: list[Any] = [{"role": "user", "content": "Fix the bug."}]
        for _ in range(TURNS):
            reply = orjson.loads(await post(path, {"model": "m", key: history, **more}))
            history += echoed(reply, echo)
        assert session.tree.unmatched == session.tree.edited == []
        assert session.statistics.unkept_turns == 0
        check(session.session.segments(), engine, tokenised)


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_reasoning_is_streamed_in_the_protocol_s_own_field(path):
    key, more, _ = PROTOCOLS[path]
    thought = "so it is " * 40
    async with opened("qwen3_5", [f"{thought.strip()}\n</think>\n\nDone.<|im_end|>"]) as (_, _, post):
        asked = {"model": "m", key: [{"role": "user", "content": "Fix."}], "stream": True, **more}
        lines = (await post(path, asked)).splitlines()
        events = [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    if key == "input":
        pieces = [one["delta"] for one in events if one["type"] == "response.reasoning_text.delta"]
        words = [one["delta"] for one in events if one["type"] == "response.output_text.delta"]
        response = events[-1]["response"]
        assert response["output"][0]["content"][0]["text"] == thought.strip()
        counted = response["usage"]["output_tokens_details"]["reasoning_tokens"]
        ids = tokenizer_of(shipped("qwen3_5")).encode(f"{thought.strip()}\n</think>", add_special_tokens=False)
        assert counted == len(ids) < response["usage"]["output_tokens"]
    elif path == "/v1/messages":
        deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
        pieces = [one["thinking"] for one in deltas if one["type"] == "thinking_delta"]
        words = [one["text"] for one in deltas if one["type"] == "text_delta"]
        assert [one["type"] for one in deltas].count("signature_delta") == 1
    else:
        deltas = [one["choices"][0]["delta"] for one in events]
        pieces = [one["reasoning_content"] for one in deltas if "reasoning_content" in one]
        words = [one["content"] for one in deltas if one.get("content")]
    assert len(pieces) > 1
    assert ("".join(pieces), "".join(words)) == (thought.strip(), "Done.")
