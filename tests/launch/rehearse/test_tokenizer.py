"""The tokenizer of a toy: the end of its family's turns, and the template that stands in for a checkpoint's."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.rehearse.toy import template_of, write_tokenizer
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.registry import load_recipe
from slime_swe.rollout.agents.native import load_template
from slime_swe.rollout.chat.tokenizer import template_path
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, ParsedTurn, ToolCall, ToolFormat, tool_format

OTHER = ToolFormat(lambda text, tools: ParsedTurn(text, []), None)


def model_of(name: str, folder, **changes):
    model = load_recipe("qwen25_coder_7b").model
    model = replace(model, checkpoint="me/none", folder=str(folder), tool_format="")
    return replace(model, config=load_family(name).toy(), **changes)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_turns_end_with_the_tokens_that_it_states(name, tmp_path):
    """Those that the template of its tool calls is proven to end a turn with, its end of sequence first."""
    model = model_of(name, tmp_path)
    template, source = template_of(model)
    written = tool_format(model.tool_calls)
    assert source.startswith(f"shipped {model.kind.template or written.template},")
    made = write_tokenizer(tmp_path, template, model.kind.control_tokens)
    proven = load_template(str(tmp_path), "", written)
    assert made.convert_ids_to_tokens(proven.stop_token_ids) == list(model.kind.control_tokens.ends)
    assert made.eos_token == model.kind.control_tokens.ends[0]
    ids = proven.first_prompt([{"role": role, "content": "x"} for role in ("system", "user")])
    ids += proven.delta([{"role": "user" if written.instructions else "tool", "content": "x"}], [])
    assert set(model.kind.control_tokens.control) <= set(made.convert_ids_to_tokens(ids))


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if not tool_format(name).instructions])
def test_the_template_of_a_tool_format_asks_for_calls_in_it(name):
    """Its example names no tool of ours, so its tags are looked for, or the keys of a call that has none."""
    found = tool_format(name)
    assert found.render is not None
    written = found.render([ToolCall("NAME", {})])
    tags = [tag for text in written[::2] for tag in re.findall(r"<[^<>]+>?", text)]
    text = template_path(found.template).read_text(encoding="utf-8")
    assert all(tag in text for tag in tags or [f'"{key}": ' for key in json.loads("".join(written))])


def test_a_checkpoints_own_template_comes_first_and_a_recipes_before_it(tmp_path):
    model = model_of("qwen2", tmp_path)
    (tmp_path / "me" / "none").mkdir(parents=True)
    (tmp_path / "me" / "none" / "tokenizer_config.json").write_text(json.dumps({"chat_template": "its own"}))
    assert template_of(model)[0] == "its own"
    assert template_of(replace(model, chat_template="qwen3"))[1] == "qwen3"


def test_without_a_template_of_the_tool_format_it_says_what_to_name(tmp_path):
    model = model_of("qwen2", tmp_path, tool_format=f"{__name__}.OTHER")
    with pytest.raises(UserError, match=r"none is shipped for model\.tool_format=.*OTHER.*model\.chat_template"):
        template_of(model)


def test_a_template_of_another_family_is_refused(tmp_path):
    template = template_path("glm4_7").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"holds none of <\|im_end\|>, which end a turn by the model's family"):
        write_tokenizer(tmp_path, template, load_family("qwen2").control_tokens)
