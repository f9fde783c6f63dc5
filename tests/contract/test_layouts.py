"""The same batch in a layout and on one rank, by real SLiME and Megatron with the recipes' own flags.

Log-probabilities, loss, gradient norm and the weights after one step, in float32. Transformer Engine and
flash-linear-attention are the stand-ins of `launch/slime_cpu/packages`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from slime_swe.launch.slime_cpu.render import ranks
from slime_swe.recipes.base import Parallel, Recipe
from tests.contract.layouts import LEARNING_RATE, Step, toy_recipe, train, write_batch, write_toy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MIXTURE = "qwen3_coder_30b_a3b"  # its routes are replayed
ROWS = {
    "Qwen2 TP2": ("qwen25_coder_7b", "qwen2", {"tp": 2}),
    "Qwen2 PP2": ("qwen25_coder_7b", "qwen2", {"pp": 2}),
    "Qwen2 TP2 CP2": ("qwen25_coder_7b", "qwen2", {"tp": 2, "cp": 2}),
    "Llama TP2 CP2": ("qwen25_coder_7b", "llama", {"tp": 2, "cp": 2}),
    "Qwen3 CP2": ("qwen3_32b", "qwen3", {"cp": 2}),
    "Qwen3-MoE TP2 ETP2": (MIXTURE, "qwen3_moe", {"tp": 2, "etp": 2}),
    "Qwen3-MoE TP2 CP2 EP4": (MIXTURE, "qwen3_moe", {"tp": 2, "cp": 2, "ep": 4, "recompute": "full"}),
    "Qwen3-Next TP2 EP2": ("qwen3_coder_next", "qwen3_next", {"tp": 2, "ep": 2}),
    "Qwen3-Next CP2": ("qwen3_coder_next", "qwen3_next", {"cp": 2, "recompute": "full"}),
    "Qwen3.5 TP2": ("qwen3_5_9b", "qwen3_5", {"tp": 2}),
    "Qwen3.5 CP2": ("qwen3_5_9b", "qwen3_5", {"cp": 2}),
    "Qwen3.6 TP2 CP2 EP4": ("qwen3_6_35b_a3b", "qwen3_5_moe", {"tp": 2, "cp": 2, "ep": 4}),
    "GLM-4.5 TP2 EP2": (MIXTURE, "glm4_moe", {"tp": 2, "ep": 2}),
    "GLM-4.7-Flash CP2": ("glm4_7_flash", "glm4_moe_lite", {"cp": 2}),
    "DeepSeek-V3 CP2 EP2": (MIXTURE, "deepseek_v3", {"cp": 2, "ep": 2}),
    "MiniMax-M2 CP2": (MIXTURE, "minimax_m2", {"cp": 2}),
}
THIRTY = ("Qwen3-MoE TP4 CP2 EP8", (MIXTURE, "qwen3_moe", {"tp": 4, "cp": 2, "ep": 8, "recompute": "full"}))
# What Megatron and SLiME compute wrongly, on a GPU as here: each row says what would have to be equal and is not.
FAULTS = {
    # The projections to a latent are whole on each rank, and Transformer Engine marks their weights as parts of one.
    "MLA's norm counts a weight of each rank": ("glm4_7_flash", "glm4_moe_lite", {"tp": 2, "ep": 2}, {"norm"}),
    # The weights' gradients are whole on each rank, and are summed over ranks as gradients of shares are.
    "MiniMax-M2's query norms": (MIXTURE, "minimax_m2", {"tp": 2, "ep": 2}, {"norm", "weights"}),
    # Without expert parallelism experts are reduced as other weights, which have seen all tokens on each rank.
    "whole experts beside TP": (MIXTURE, "qwen3_moe", {"tp": 2, "ep": 1, "etp": 1}, {"norm", "weights"}),
}


@pytest.fixture(scope="module")
def step(slime_home, tmp_path_factory):
    """A function that takes one step in a layout; in the same layout once."""
    folder = tmp_path_factory.mktemp("layouts")

    @cache
    def take(name: str, kind: str, layout: tuple[tuple[str, int | str], ...]) -> Step:
        recipe = toy_recipe(name, kind, folder / kind, Parallel(**{"max_tokens_per_gpu": 4096, **dict(layout)}))
        if not (folder / kind).exists():
            write_toy(folder / kind, kind)
        run = folder / "-".join([name, kind, *(f"{way}{size}" for way, size in layout)])
        return train(recipe, run, write_batch(folder / "batch.pt", recipe.model.shape.vocab, routes(recipe)))

    return take


def routes(recipe: Recipe) -> tuple[int, int, int] | None:
    if recipe.algorithm.routing_replay != "rollout":
        return None
    shape = recipe.model.shape
    return len(shape.layers), shape.experts, shape.megatron["moe_router_topk"]


def differences(one: Step, other: Step) -> dict[str, float]:
    """How far two steps are from each other, in what each is judged by."""
    gaps = [(mine - its).abs().max().item() for mine, its in zip(one.log_probs, other.log_probs, strict=True)]
    if tied := one.weights.keys() ^ other.weights.keys():  # SLiME writes the last pipeline stage's copy too
        assert tied == {"lm_head.weight"}
        assert torch.equal(one.weights["lm_head.weight"], one.weights["model.embed_tokens.weight"])
    moved = [(one.weights[name] - weight).abs().max().item() for name, weight in other.weights.items()]
    norms = [each.figures["train/grad_norm"] for each in (one, other)]
    return {
        "log-probabilities": max(gaps) / 1e-5,
        "loss": abs(one.figures["train/loss"] - other.figures["train/loss"]) / 1e-6,
        "norm": abs(norms[0] / norms[1] - 1) / 1e-5,
        "weights": max(moved) / LEARNING_RATE / 1e-3,  # of the largest step that Adam takes
    }


def wrong(step, name, kind, layout) -> set[str]:
    """What a layout computes otherwise than one rank."""
    found = differences(step(name, kind, tuple(layout.items())), step(name, kind, ()))
    return {what for what, value in found.items() if not value <= 1}


@pytest.mark.parametrize("row", ROWS)
def test_a_layout_computes_what_one_rank_does(step, row):
    assert wrong(step, *ROWS[row]) == set()


@pytest.mark.extended("tests/contract/test_layouts.py::test_a_layout_computes_what_one_rank_does")
def test_the_layout_of_the_30b_recipe(step, slime_home):
    assert wrong(step, *THIRTY[1]) == set()


@pytest.mark.parametrize("row", FAULTS)
def test_a_known_fault_is_still_there(step, row):
    *case, expected = FAULTS[row]
    assert wrong(step, *case) == expected


def test_linear_attention_is_wrong_without_the_mend(step, monkeypatch):
    """So that the mend goes when SLiME needs it no longer."""
    from slime_swe.recipes.layers.attention import GatedDeltaNet

    monkeypatch.setattr(GatedDeltaNet, "context_parallel_init", "")
    layout = {"cp": 2, "max_tokens_per_gpu": 4095}  # another than above
    assert wrong(step, "qwen3_5_9b", "qwen3_5", layout) == {"norm", "weights"}


def test_as_many_ranks_as_hold_one_copy():
    recipe = toy_recipe(MIXTURE, "qwen3_moe", Path("toy"), Parallel(tp=4, cp=2, ep=8))
    assert ranks(recipe) == 8
