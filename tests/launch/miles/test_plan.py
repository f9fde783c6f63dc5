"""What LoRA changes in a plan, and that it changes nothing of a recipe without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_swe.launch.plan import GIB, Assumptions
from slime_swe.launch.plan.images import task_images
from slime_swe.launch.plan.memory import budgets
from slime_swe.launch.plan.plan import fit
from slime_swe.launch.plan.training import checkpoint_bytes, layout_of, sent_bytes, train_flops, trained, whole
from slime_swe.recipes import adapters
from tests.recipes.changes import variant

LORA = {"engine": "miles", "algorithm__lora_rank": 32, "algorithm__reduction": "trajectory"}
DENSE, MIXTURE = "qwen25_coder_7b", "qwen3_coder_30b_a3b"

pytestmark = pytest.mark.usefixtures("nothing_measured")


def budgets_of(recipe):
    return budgets(recipe, Assumptions(), task_images(recipe, Assumptions()))


def parts_of(recipe, name):
    (found,) = (budget for budget in budgets_of(recipe) if budget.name == name)
    return {part.name: part.bytes for part in found.components}


@pytest.mark.parametrize("changes", [{"engine": "miles"}, LORA], ids=["whole weights", "adapters"])
@pytest.mark.parametrize("name", [DENSE, MIXTURE])
def test_it_is_legal_and_fits(name, changes):
    assert fit(variant(name, **changes)).fits


def test_without_an_adapter_nothing_is_counted_for_one():
    recipe = variant(MIXTURE, engine="miles")
    assert budgets_of(recipe) == budgets_of(variant(MIXTURE))
    assert all(parts_of(recipe, "serving")[name] == 0 for name in ("adapters", "adapters to train"))
    assert trained(recipe, layout_of(recipe), 0) == whole(recipe, layout_of(recipe), 0)


def test_weights_stay_and_only_adapters_have_gradients_and_states():
    recipe, changes = variant(DENSE, **LORA), {"gradients": 4, "optimizer states": 12}
    ours, before = parts_of(recipe, "training"), parts_of(variant(DENSE), "training")
    assert ours["weights"] == before["weights"] and ours["activations"] == before["activations"]
    held = adapters.shard(recipe, layout_of(recipe), 0).parameters
    assert (ours["adapters"], ours["gradients"]) == (2 * held, changes["gradients"] * held)
    shared = layout_of(recipe).dp * layout_of(recipe).cp
    assert ours["optimizer states"] == changes["optimizer states"] * held / shared
    assert before["adapters"] == 0


def test_a_server_has_room_for_an_adapter_and_what_the_trainer_leaves_there():
    ours, before = parts_of(variant(MIXTURE, **LORA), "serving"), parts_of(variant(MIXTURE), "serving")
    assert ours["weights"] == before["weights"]
    assert ours["KV cache"] + ours["adapters"] == pytest.approx(before["KV cache"])
    assert ours["adapters"] > 0 < ours["adapters to train"]
    apart = variant(MIXTURE, **LORA, cluster__colocate=False, cluster__rollout_gpus=8)
    assert "adapters to train" not in parts_of(apart, "serving")


def test_what_is_sent():
    recipe = variant(DENSE, **LORA)
    apart = variant(DENSE, **LORA, cluster__colocate=False, cluster__rollout_gpus=2)
    adapter = 2 * adapters.exported(recipe).parameters
    assert sent_bytes(recipe) == pytest.approx(2 * recipe.model.shape.parameters + adapter)
    assert sent_bytes(apart) == adapter < 0.02 * sent_bytes(variant(DENSE))


def test_training_takes_two_thirds_without_recomputation():
    shape = variant(DENSE).model.shape
    assert train_flops(shape, 4096, frozen=True) == pytest.approx(2 / 3 * train_flops(shape, 4096))
    assert train_flops(shape, 4096, "full", frozen=True) == pytest.approx(3 / 4 * train_flops(shape, 4096, "full"))


def test_checkpoints_hold_adapters_alone_and_all_of_them_stay():
    recipe = variant(MIXTURE, **LORA)
    assert checkpoint_bytes(recipe) == 16 * adapters.parameters(recipe) < 0.06 * checkpoint_bytes(variant(MIXTURE))
    assert recipe.most_checkpoints == recipe.run.num_rollouts // recipe.run.save_interval
    assert parts_of(recipe, "disk")["model"] == parts_of(variant(MIXTURE), "disk")["model"] / 2


HALF_A_NODE = {
    "cluster__gpus_per_node": 4, "cluster__memory_per_node": 512, "parallel__ep": 4, "parallel__cp": 1,
    "parallel__max_tokens_per_gpu": 65536,
}  # fmt: skip


def test_the_page_has_these_budgets():
    page = (Path(__file__).parents[3] / "docs" / "miles.md").read_text(encoding="utf-8")
    on_gpus = LORA | {"optimizer__cpu_offload": False}
    columns = [variant(MIXTURE, **changes) for changes in ({"engine": "miles"}, on_gpus, on_gpus | HALF_A_NODE)]
    for row in zip(*(budgets_of(recipe) for recipe in columns), strict=True):
        figures = " | ".join(f"{budget.bytes / GIB:.1f} of {budget.capacity / GIB:.0f}" for budget in row)
        assert f"| {row[0].name} | {figures} |" in page and all(budget.fits for budget in row)
    assert not all(budget.fits for budget in budgets_of(variant(MIXTURE, **HALF_A_NODE)))
