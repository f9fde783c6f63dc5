from __future__ import annotations

import json
import random
from importlib import resources
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from slime_swe.data_sources.synthetic.bugs import TRAINED_CLASSES
from slime_swe.data_sources.synthetic.tasks import RUNNER_PATH, TEST_COMMAND, runner_source
from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.seed.demonstrations import SYSTEM_PROMPT, Part, Script, demonstration, gold_edit, play
from slime_swe.embedded.seed.gate import clean_share, is_clean
from slime_swe.embedded.seed.tokenizer import SPECIAL_TOKENS
from slime_swe.recipes.tiny_cpu import recipe
from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.chat.tool_formats import parse
from slime_swe.rollout.tools import TOOLS
from slime_swe.sandbox.pool import SandboxPool

CHECKPOINT = Path(str(resources.files("slime_swe.embedded.seed") / "checkpoint"))


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return load_tokenizer(CHECKPOINT)


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts)


def test_demonstrations_are_a_function_of_the_seed() -> None:
    assert demonstration(random.Random(5)) == demonstration(random.Random(5))
    assert demonstration(random.Random(5)) != demonstration(random.Random(6))


def test_the_system_prompt_is_the_recipes() -> None:
    assert recipe().rollout.system_prompt == SYSTEM_PROMPT


def test_the_checkpoint_is_small_and_loads_in_transformers() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 10 << 20
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 4e6


def test_the_gate_figures_are_recorded() -> None:
    training = json.loads((CHECKPOINT / "training.json").read_text())
    _, run = training["runs"]  # from random weights, and from what that had come to
    last = training["curve"][-1]
    assert last["step"] == run["steps"]
    assert last["heldout/view"] > 0.99
    assert 0.2 < last["heldout/fix"] < 0.4  # able to, and mediocre at choosing


@pytest.mark.slow
def test_most_first_edits_change_one_function_at_most(tokenizer: object) -> None:
    assert clean_share(Qwen2.load(CHECKPOINT), tokenizer, "heldout") >= 0.85


def test_what_is_no_clean_edit() -> None:
    script = Script.draw(random.Random(0))
    after = gold_edit(script).text
    turn = (
        "<tool_call>\n<function={}>\n<parameter=path>\n{}\n</parameter>\n"
        "<parameter=new_str>\n{}\n</parameter>\n</function>\n</tool_call>"
    )
    path = script.module.path
    assert is_clean(turn.format("str_replace", path, after.rstrip("\n")), script)
    assert not is_clean(turn.format("view", path, after), script)
    assert not is_clean(turn.format("str_replace", f"not/{path}", after), script)
    assert not is_clean(turn.format("str_replace", path, after + "\nx = 1"), script)
    assert not is_clean(turn.format("str_replace", path, after + "\ndef"), script)
    assert not is_clean("I give up.", script)


def test_the_chat_template_is_proven_and_demonstrations_are_what_it_renders(tokenizer: object) -> None:
    template = ChatTemplate(tokenizer, [tool.spec.schema() for tool in TOOLS])
    template.prove()
    parts = demonstration(random.Random(3))
    statement = parts[0].text.rpartition("user\n")[2].partition("<|im_end|>")[0]
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": statement}]
    encode = tokenizer.backend_tokenizer.encode  # type: ignore[attr-defined]
    assert template.first_prompt(messages) == encode(parts[0].text, add_special_tokens=False).ids
    for part in parts[2::2]:
        shown = part.text.partition("<tool_response>\n")[2].partition("\n</tool_response>")[0]
        expected = encode(part.text, add_special_tokens=False).ids
        assert template.delta([{"role": "tool", "content": shown}]) == expected


def test_any_text_survives_the_tokenizer(tokenizer: object) -> None:
    text = "def café(x):\n\treturn '日本' + x  # \U0001f600\r\n" + SPECIAL_TOKENS[0]
    assert tokenizer.decode(tokenizer.encode(text)) == text  # type: ignore[attr-defined]


async def test_demonstrations_show_what_the_real_tools_show() -> None:
    """Replay transcripts through the real tools in real sandboxes: every result is as demonstrated, to the byte."""
    tools = {tool.spec.name: tool for tool in TOOLS}
    rng = random.Random(11)
    async with SandboxPool("local") as sandboxes:
        for _ in range(25):
            script = Script.draw(rng)
            play(rng, script)
            files = script.repository.files() | {RUNNER_PATH: runner_source()}
            oracle = TestsOracle(("x",), (), (), TEST_COMMAND, "")
            task = Task("replay", "", Workspace(files), oracle, "synthetic", "train")
            async with sandboxes.open(files) as sandbox:
                for said, shown in zip(script.parts[1::2], script.parts[2::2], strict=False):
                    (call,) = parse(said.text.removesuffix("<|im_end|>"), recipe().model.tool_format).calls
                    result = await tools[call.name](sandbox, task, call.arguments)
                    assert f"<tool_response>\n{result.text}\n</tool_response>" in shown.text


def test_no_demonstration_spells_out_a_held_out_bug() -> None:
    rng = random.Random(2)
    for _ in range(200):
        script = Script.draw(rng)
        play(rng, script)
        mutant = script.repository.bug.mutant
        assert mutant.mutation.bug_class in TRAINED_CLASSES
        assert not mutant.is_held_out
        for function, source in zip(
            script.repository.modules[script.repository.bug.module].functions, script.sources, strict=True
        ):
            assert not [m for m in function.template.mutants if m.is_held_out and m.mutation.source == source]
