"""`Family.served_on_cpu` beside SGLang itself: it serves a toy of the family on a CPU, or ends before it answers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from slime_swe.launch.rehearse.toy import write_toy
from slime_swe.recipes.families import load_family
from slime_swe.recipes.registry import load_recipe
from tests.launch.rehearse.small import CPU
from tests.real_sglang import needed, serving

pytestmark = [needed, pytest.mark.slow, pytest.mark.timeout(600)]

RECIPES = (
    *("qwen25_coder_1_5b", "qwen3_4b_instruct", "qwen3_coder_30b_a3b"),
    *("glm4_7_flash", "qwen3_coder_next", "qwen3_5_9b", "qwen3_6_35b_a3b"),
)
OTHERS = ("llama", "deepseek_v3")  # families without a recipe


@pytest.mark.extended(
    "tests/launch/rehearse/test_toy.py::test_after_a_prompt_each_token_ends_the_reply_at_some_percent"
)
@pytest.mark.parametrize("name", [*RECIPES, *OTHERS])
def test_sglang_serves_a_family_on_a_cpu_or_not_as_the_family_says(tmp_path, name):
    model = load_recipe(name if name in RECIPES else "qwen3_4b_instruct").model
    if name in OTHERS:
        model = replace(model, checkpoint="me/none", folder=str(tmp_path), config=load_family(name).toy())
    write_toy(model, CPU, tmp_path / "toy")
    served = model.kind.served_on_cpu
    found = nullcontext() if served else pytest.raises(AssertionError, match="SGLang did not start")
    with found, serving(tmp_path / "toy", tmp_path / "log") as server:
        status, answer = server.generate([1, 2, 3])
        assert status == 200, answer
