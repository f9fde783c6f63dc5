"""A first look at scripted policies: can they act, what do they write, and what is to be changed?"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from slime_swe.launch.cli import run
from slime_swe.launch.config import resolve
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.probe import Look, Spread, advice
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.scripted import Request, Say, ScriptedEngine, scripted_engine
from tests.data_sources.tasks import make_task
from tests.rollout.support import END, FIX, SUBMIT, VIEW

FENCED = f"I look at it.\n```json\n{json.dumps({'name': 'view', 'arguments': {'path': 'calc.py'}})}\n```{END}"
PROSE = f"The sum is wrong.\nIt should add.{END}"


@pytest.fixture
def probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`await probe(say, *words)`: exit code, page and document of the command for a policy behind a real server."""

    async def made(say: Say, *words: str, output: str = "look") -> tuple[int, str, dict]:
        (tmp_path / "tasks.jsonl").write_bytes(orjson.dumps(make_task().to_dict()))
        folder = tmp_path / output
        async with scripted_engine(load_tokenizer(checkpoint_folder(EMBEDDED_SEED)), say) as engine:
            address = urlsplit(engine.url)
            command = [
                "probe", "recipe=tiny_cpu", "model.tool_format=hermes", f"data.train=[{tmp_path}/tasks.jsonl]",
                f"serving.router_ip={address.hostname}", f"serving.router_port={address.port}",
                "rollout.max_context=2048", "--output", str(folder), *words,
            ]  # fmt: skip
            code = await asyncio.to_thread(run, command)
        return code, capsys.readouterr().out, orjson.loads((folder / "probe.json").read_bytes())

    return made


async def test_a_policy_that_acts_has_a_page_without_a_complaint(probe, tmp_path, capsys):
    """One of its two episodes solves the task: the one whose second turn is asked for first."""
    second = iter((FIX, VIEW))

    def say(engine: ScriptedEngine, asked: Request) -> str:
        turn = engine.turns_in(asked["input_ids"])
        return next(second) if turn == 1 else [VIEW, SUBMIT][min(turn, 1)]

    code, page, found = await probe(say)
    assert code == 0, page
    assert "The policy can act. 100.0 %" in page and "Nothing: it is fine as it is." in page
    assert (found["acts"], found["advice"], found["tasks"], found["samples"]) == (True, [], 1, 2)
    assert (found["turns"], found["with_call"], found["solved"], found["broken"]) == (6, 6, 1, {})
    assert found["stop_reasons"] == {"submitted": 2} and found["turns_of_episode"]["median"] == 3
    assert run(["episodes", str(tmp_path / "look"), "--list"]) == 0
    assert "submitted" in capsys.readouterr().out, "the episodes are beside it"


async def test_a_policy_that_writes_json_in_fences_needs_another_format(probe):
    code, page, found = await probe(lambda engine, asked: FENCED)
    assert code == 1
    assert "model.tool_format=qwen25_coder" in found["advice"][0]
    assert (found["with_call"], found["read_by"]["qwen25_coder"]) == (0, found["turns"])
    assert [*found["first_lines"]] == ["I look at it."]
    assert "The policy can't act." in page and "model.tool_format=qwen25_coder" in page
    assert "warm start" not in " ".join(found["advice"])


async def test_the_form_of_each_call_is_shown(probe):
    code, page, found = await probe(lambda engine, asked: FENCED, "model.tool_format=qwen25_coder")
    assert code == 0, page
    assert found["forms"] == {"fenced": found["turns"]}
    assert "fenced" in page


async def test_tools_that_the_system_prompt_tells_are_known(probe):
    """No record names them."""
    bash = f"I look at it.\n\n```bash\ncat calc.py\n```{END}"
    code, page, found = await probe(lambda engine, asked: bash, "model.tool_format=bash_block")
    assert code == 0, page
    assert found["with_call"] == found["turns"] > 2
    code, _, found = await probe(lambda engine, asked: bash, output="other")
    assert code == 1 and found["advice"][0].startswith("Set model.tool_format=bash_block")


async def test_a_policy_that_writes_prose_needs_a_warm_start(probe):
    code, page, found = await probe(lambda engine, asked: PROSE)
    assert code == 1
    assert "warm start" in found["advice"][0] and "slime-swe sft" in found["advice"][0]
    assert found["read_by"] == {} and found["first_lines"] == {"The sum is wrong.": found["turns"]}
    assert "The sum is wrong." in page


async def test_calls_of_tools_that_are_not_offered_count_as_malformed(probe):
    unknown = f"<tool_call>\n{json.dumps({'name': 'open_file', 'arguments': {}})}\n</tool_call>{END}"
    code, _, found = await probe(lambda engine, asked: unknown)
    assert code == 1
    assert (found["malformed"], found["without_call"]) == (found["turns"], 0)
    assert [*found["errors"]] == ["there is no tool 'open_file'"]
    assert "malformed" in found["advice"][0]


async def test_turns_that_their_limit_cuts_need_more_tokens(probe):
    code, _, found = await probe(lambda engine, asked: "Let me think. " * 200, "rollout.max_response=32")
    assert code == 1
    assert found["cut"] == found["turns"]
    assert found["advice"][0].startswith("Set rollout.max_response=64")


async def test_a_narrow_terminal_cuts_nothing(probe, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    _, page, _ = await probe(lambda engine, asked: FENCED)
    assert max(map(len, page.splitlines()[:-1])) <= 50
    assert "model.tool_format=qwen25_coder" in page.replace("\n", "")


def test_a_server_that_is_not_there_is_said_before_a_folder_is_made(tmp_path, capsys):
    words = ["serving.router_ip=127.0.0.1", "serving.router_port=1", "--output", str(tmp_path / "look")]
    assert run(["probe", "recipe=tiny_cpu", *words]) == 1
    assert "no SGLang can be asked at http://127.0.0.1:1" in capsys.readouterr().err
    assert not (tmp_path / "look").exists()


def test_a_recipe_for_gpus_says_how_its_server_is_started(tmp_path, capsys):
    name = "Qwen/Qwen2.5-Coder-7B-Instruct"
    (tmp_path / name).mkdir(parents=True)
    recipe = resolve("qwen25_coder_7b")
    (tmp_path / name / "config.json").write_bytes(orjson.dumps(recipe.model.config))
    words = ["sandbox=local", "data.train=[synthetic:train]", "data.eval={}", f"model.folder={tmp_path}"]
    assert run(["probe", "recipe=qwen25_coder_7b", *words]) == 2
    said = capsys.readouterr().err
    assert f"python -m sglang.launch_server --model-path {tmp_path / name} --tp-size 2" in said
    assert "slime-swe probe recipe=qwen25_coder_7b serving.router_ip=127.0.0.1 serving.router_port=30000" in said


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (
            ["rollout.agent=blocks"],
            "rollout.agent=blocks has no tool calls to look at: agents that call tools are native",
        ),
        (["--limit", "0"], "--limit must be at least 1, got 0"),
    ],
)
def test_what_can_not_be_looked_at_is_refused(tmp_path, capsys, words, wrong):
    assert run(["probe", "recipe=tiny_cpu", "--output", str(tmp_path / "look"), *words]) == 2
    assert wrong in capsys.readouterr().err


FINE = Look(
    tool_format="hermes", episodes=16, broken={}, turns=160, with_call=150, forms={"hermes": 150}, malformed=4, cut=2,
    read_by={"hermes": 150, "qwen25_coder": 155}, first_lines={"Done.": 6}, errors={}, stop_reasons={"submitted": 16},
    tokens_of_turn=Spread(100, 300), turns_of_episode=Spread(10, 14), cached=0.9, solved=5, reward=-0.4,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "acts", "said"),
    [
        ({}, True, []),
        ({"with_call": 79}, False, ["model.tool_format=qwen25_coder"]),
        ({"with_call": 9, "read_by": {"glm45": 40}}, False, ["Set model.tool_format=glm45", "Begin with a warm start"]),
        (
            {"with_call": 120},
            True,
            ["model.tool_format=qwen25_coder: it reads a call in 155 of 160 turns, where hermes"],
        ),
        ({"stop_reasons": {"context_full": 8, "submitted": 8}}, True, ["Set rollout.max_context=131072: 8 of 16"]),
        ({"stop_reasons": {"max_turns": 12, "submitted": 4}}, True, ["Set rollout.max_turns=100: 12 of 16"]),
        ({"stop_reasons": {"time_budget": 12, "submitted": 4}}, True, ["Set rollout.time_budget=1800: 12 of 16"]),
        ({"cut": 40}, True, ["Set rollout.max_response=8192: its limit of 4096 tokens cut 40 of 160 turns"]),
        ({"solved": 0, "interval": (0.0, 0.19)}, True, ["No episode of 16 solved its task (a solve rate of 19 % may"]),
        ({"solved": 16, "interval": (0.81, 1.0)}, True, ["All 16 episodes solved their tasks (a solve rate of 81 %"]),
        (
            {"broken": {"sandbox_error: no such image": 2}},
            True,
            ["Infrastructure broke 2 of 18 episodes, most of them"],
        ),
        ({"broken": {"engine_error: gone": 16}}, False, ["Infrastructure broke 16 of 32 episodes"]),
        (
            {"episodes": 0, "turns": 0, "with_call": 0, "broken": {"engine_error": 16}},
            False,
            ["Infrastructure broke 16"],
        ),
        ({"turns": 0, "with_call": 0, "cut": 0, "read_by": {}}, False, ["The policy had no turn"]),
    ],
)
def test_each_shortcoming_has_a_field_and_a_value(changes, acts, said):
    recipe = resolve("qwen3_4b_instruct")
    found = replace(FINE, **changes)
    assert found.acts is acts
    sentences = advice(found, recipe)
    assert len(sentences) == len(said)
    assert all(part in sentence for part, sentence in zip(said, sentences, strict=True))


def test_a_model_at_its_longest_context_needs_easier_tasks():
    recipe = resolve("qwen25_coder_7b")  # 32,768 tokens, as many as the model was made for
    (sentence,) = advice(replace(FINE, stop_reasons={"context_full": 16}), recipe)
    assert sentence.startswith("Take easier tasks or a model of more context (this one was made for 32768 tokens)")
