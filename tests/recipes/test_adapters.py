"""Adapters beside real modules: the models of Transformers on meta tensors, their linear layers one by one."""

from __future__ import annotations

import dataclasses

import pytest

from slime_swe.recipes import adapters
from slime_swe.recipes.families import load_family
from slime_swe.recipes.layers import Layout
from tests.recipes.changes import variant

RANK = 4
FUSED = {  # Megatron's layer -> what it is made of, by Hugging Face's names
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
EXPERTS = {"linear_fc1": "gate_up_proj", "linear_fc2": "down_proj"}  # one tensor of all experts: experts x out x in


@pytest.fixture
def model():
    """A family's toy, as Transformers builds it."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def build(family):
        content = load_family(family).toy()
        config = transformers.AutoConfig.for_model(content.pop("model_type"), **content)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config)

    return build


def of_fused(layer, names, *, exported):
    """Parameters of the adapter of one fused layer, whose projections share the first matrix unless it is exported."""
    found = [module for name, module in layer.named_modules() if name.rpartition(".")[2] in names]
    inputs = sum(module.in_features for module in found) if exported else found[0].in_features if found else 0
    return RANK * (inputs + sum(module.out_features for module in found))


def of_experts(layer, name, fused, *, exported):
    """The same of all experts of a layer, each of which has its own."""
    for path, tensor in layer.named_parameters():
        if path.endswith(f"experts.{name}"):
            experts, outputs, inputs = tensor.shape
            return RANK * experts * ((fused if exported else 1) * inputs + outputs)
    return 0


def counted(model, targets, *, exported):
    total = 0
    for layer in model.model.layers:
        for target in targets:
            total += of_fused(layer, FUSED[target], exported=exported)
            if target in EXPERTS:
                total += of_experts(layer, EXPERTS[target], len(FUSED[target]), exported=exported)
    return total


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe"])
@pytest.mark.parametrize("targets", [[], ["linear_qkv"], ["linear_fc1", "linear_fc2"]], ids=["all", "qkv", "mlp"])
def test_adapters_are_counted_as_beside_real_modules(model, family, targets):
    recipe = variant("qwen25_coder_7b", algorithm__lora_rank=RANK, algorithm__lora_targets=targets)
    recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, config=load_family(family).toy()))
    built, chosen = model(family), targets or list(FUSED)
    assert adapters.parameters(recipe) == counted(built, chosen, exported=False) > 0
    assert adapters.exported(recipe).parameters == counted(built, chosen, exported=True)


@pytest.mark.parametrize("name", ["qwen25_coder_7b", "qwen3_coder_30b_a3b"])
def test_what_gpus_hold_adds_up_to_all_adapters(name):
    recipe = variant(name, algorithm__lora_rank=32)
    layout = Layout(gpus=8, tp=2, pp=2, cp=2, ep=4, etp=1)
    stages = [adapters.shard(recipe, layout, stage) for stage in range(2)]
    total = sum(layout.tp * held.dense + layout.ep * layout.etp * held.expert for held in stages)
    assert total == adapters.parameters(recipe)
    assert adapters.parameters(variant(name)) == 0


def test_known_counts():
    """PEFT counts 40,370,176 at rank 16 beside the seven projections of Qwen2.5-7B. Of Qwen3-30B-A3B most are the
    experts'."""
    dense = variant("qwen25_coder_7b", algorithm__lora_rank=16)
    assert adapters.exported(dense).parameters == 40_370_176
    mixture = adapters.shard(variant("qwen3_coder_30b_a3b", algorithm__lora_rank=32), Layout(), 0)
    assert mixture.expert == 48 * 128 * 32 * ((2048 + 2 * 768) + (768 + 2048))
    assert mixture.expert > 20 * mixture.dense
