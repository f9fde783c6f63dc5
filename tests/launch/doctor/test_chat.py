"""Chat templates against the recipe's tool-call parser, both for real."""

from __future__ import annotations

import shutil

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.doctor import Machine
from slime_swe.launch.doctor.checkpoint import check_chat
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.slime.render import to_args
from tests.recipes.changes import variant
from tests.rollout.conftest import CHATML, make_tokenizer

TURN = '{{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" -}}'
CALLS = """{{- "<|im_start|>" + message.role + "\n" + message.content -}}
{%- for call in message.tool_calls or [] -%}FORMAT{%- endfor -%}{{- "<|im_end|>\n" -}}"""
HERMES = CALLS.replace(
    "FORMAT",
    """{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
    {{- call.function.arguments | tojson -}}{{- "}\n</tool_call>" -}}""",
)
CODER = CALLS.replace(
    "FORMAT",
    """{{- "\n<tool_call>\n<function=" + call.function.name + ">\n" -}}
    {%- for key, value in call.function.arguments | items -%}
    {{- "<parameter=" + key + ">\n" + value + "\n</parameter>\n" -}}
    {%- endfor -%}{{- "</function>\n</tool_call>" -}}""",
)
OWN = CALLS.replace("FORMAT", '{{- "[CALL " + call.function.name + "]" -}}')
LOWERING = CHATML.replace('"\n<tool_response>\n" + message.content', '"\n<tool_response>\n" + message.content | lower')


@pytest.fixture
def look(tmp_path):
    """What is found with such a template and such a parser: check -> (status, message and fix)."""

    def look(template: str, tool_format: str, chat_template: str = "") -> dict[str, tuple[str, str]]:
        make_tokenizer(template).save_pretrained(tmp_path)
        shutil.copy(checkpoint_folder(EMBEDDED_SEED) / "config.json", tmp_path)
        model = {"checkpoint": str(tmp_path), "tool_format": tool_format, "chat_template": chat_template}
        recipe = variant("tiny_cpu", **{f"model__{key}": value for key, value in model.items()})
        found = check_chat(recipe, Machine())
        return {finding.check: (finding.status.value, finding.message + finding.fix) for finding in found}

    return look


@pytest.mark.parametrize(
    ("turn", "right", "wrong"), [(HERMES, "hermes", "qwen3_coder"), (CODER, "qwen3_coder", "hermes")]
)
def test_the_parser_must_read_what_the_template_writes(look, turn, right, wrong):
    template = CHATML.replace(TURN, turn)
    assert template != CHATML
    assert look(template, right) == {
        "chat template": ("ok", "each turn's increment is proven exact"),
        "tool calls": ("ok", f"what the template writes, model.tool_format={right} reads back"),
    }
    status, said = look(template, wrong)["tool calls"]
    assert status == "failure" and f"set model.tool_format={right}" in said


def test_a_format_that_reads_more_than_the_template_writes_fits_too(look):
    status, said = look(CHATML.replace(TURN, HERMES), "qwen25_coder")["tool calls"]
    assert (status, said) == ("ok", "what the template writes, model.tool_format=qwen25_coder reads back")


def test_what_the_system_prompt_asks_for_is_not_compared_with_the_template(look):
    refusing = CHATML.replace(
        '{%- if message.role == "tool" -%}', '{%- if message.role == "tool" -%}{{ raise_exception("no tools") }}'
    )
    found = look(refusing, "bash_block")
    assert found["chat template"][0] == "ok"
    assert found["tool calls"][0] == "ok" and "asks for its calls in the system prompt" in found["tool calls"][1]
    assert look(refusing, "qwen25_coder")["chat template"][0] == "failure"


def test_a_format_of_its_own_wants_a_parser(look):
    status, said = look(CHATML.replace(TURN, OWN), "hermes")["tool calls"]
    assert status == "failure" and "add a format" in said


def test_a_template_without_calls_can_not_be_compared(look):
    assert look(CHATML, "hermes")["tool calls"][0] == "skipped"


def test_a_template_that_is_not_exact_names_the_rule(look):
    status, said = look(LOWERING, "hermes")["chat template"]
    assert status == "failure" and "rule 'verbatim' fails" in said


def test_a_recipe_s_own_template_is_the_one_that_is_looked_at(look, tmp_path):
    assert "model.chat_template: deepseek_v3, glm4_5, " in look(LOWERING, "hermes")["chat template"][1]
    assert {status for status, _ in look(LOWERING, "hermes", "qwen3").values()} == {"ok"}
    assert look(LOWERING, "hermes", "qwen3_5")["tool calls"][0] == "failure"
    own = tmp_path / "own.jinja"
    own.write_text(CHATML)
    assert look(LOWERING, "hermes", str(own))["chat template"][0] == "ok"


def test_a_template_reaches_the_plug_ins_by_its_name_or_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jinja").write_text(CHATML)
    for name, given in (("", ""), ("qwen3", "qwen3"), ("own.jinja", str(tmp_path / "own.jinja"))):
        recipe = variant("tiny_cpu", model__chat_template=name)
        assert to_args(recipe, tmp_path).swe_chat_template == given
    with pytest.raises(UserError, match=r"model\.chat_template=none: there is no such file"):
        to_args(variant("tiny_cpu", model__chat_template="none"), tmp_path)


def test_the_seed_policy_speaks_exactly():
    found = {finding.check: finding.status for finding in check_chat(variant("tiny_cpu"), Machine())}
    assert found["chat template"] == "ok"


def test_without_a_checkpoint_there_is_nothing_to_look_at(tmp_path):
    (finding,) = check_chat(variant("tiny_cpu", model__checkpoint=str(tmp_path)), Machine())
    assert finding.status == "skipped"
