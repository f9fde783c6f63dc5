"""A toy's replies end by themselves, some sooner than others."""

from __future__ import annotations

import pytest
import torch

from slime_swe.data_sources.registry import load_tasks
from slime_swe.launch.rehearse.evidence import Reference
from slime_swe.launch.rehearse.toy import end_replies, write_toy
from slime_swe.recipes.registry import load_recipe
from slime_swe.rollout.agents.native import load_template, opening
from tests.launch.rehearse.gpus import node
from tests.launch.rehearse.small import CPU

NAMES = ["qwen25_coder_1_5b", "qwen3_coder_30b_a3b", "glm4_7_flash", "qwen3_coder_next", "qwen3_5_4b", "qwen3_5_9b"]


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        *((name, CPU) for name in NAMES),
        ("qwen3_coder_30b_a3b", node(8)),
        *(
            pytest.param(name, node(8), marks=pytest.mark.extended("families' toys for GPUs"))
            for name in NAMES
            if name != "qwen3_coder_30b_a3b"
        ),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_after_a_prompt_each_token_ends_the_reply_at_some_percent(tmp_path, name, platform):
    recipe = load_recipe(name)
    config = write_toy(recipe.model, platform, tmp_path)["config"]
    template = load_template(str(tmp_path), recipe.model.chat_template)
    first, other = (
        template.first_prompt(opening(task, recipe.rollout.system_prompt)) for task in load_tasks("synthetic:train")[:2]
    )
    before = ending(config, tmp_path, template, other)
    end_replies(tmp_path, config, template.stop_token_ids, first)
    assert 0.004 < ending(config, tmp_path, template, other) < 0.2, f"it was {before}"


@torch.no_grad()
def ending(config, folder, template, prompt):
    """The probability of a token that ends a reply of random tokens, its mean over 32."""
    model, generator = Reference(config, folder).model, torch.Generator().manual_seed(0)
    ids = [*prompt, *torch.randint(0, 1000, (32,), generator=generator).tolist()]
    probabilities = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, len(prompt) :].softmax(-1)
    return float(probabilities[:, template.stop_token_ids].sum(-1).mean())
