"""miles as an `Upstream`: what differs from SLiME."""

from __future__ import annotations

from pathlib import Path

from slime_swe.launch.slime import checkouts
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.launch.slime.paths import CHECKPOINTS
from slime_swe.launch.slime.upstream import Upstream
from slime_swe.recipes.adapters import targets
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.retention import last_saved

GONE = {
    "plug-ins": ("rollout_data_postprocess_path",),  # what miles hands to that function has not been tried
    "model": ("use_gated_attention",),  # Megatron's own `attention_output_gate` says it
    "loss": ("custom_advantage_function_path",),  # no such hook: what needs it is refused (engines/miles.py)
}
MOVED = {  # functions of SLiME -> the same in miles
    "slime.backends.megatron_utils.loss.icepop_function": (
        "miles.backends.training_utils.loss_hub.corrections.icepop_function"
    ),
    "slime_plugins.models.qwen3_5": "miles_plugins.models.qwen3_5",
    "slime_plugins.models.qwen3_next": "miles_plugins.models.qwen3_next",
}


def adapted(found: dict[str, Attributes], recipe: Recipe, folder: Path, *, resume: bool) -> dict[str, Attributes]:
    """Turn SLiME's sections into those of miles.

    Engines drop what they sample before they take new weights, as SLiME has them do: a turn is then taken up again
    under the new ones, and each token's version is known. A run that goes on from a checkpoint is not evaluated first,
    as under SLiME: this evaluation would have the number of one that follows.
    """
    kept = {heading: _moved(heading, group) for heading, group in found.items()}
    kept["serving"]["pause_generation_mode"] = "abort"
    if recipe.data.eval:
        saved = last_saved(folder / CHECKPOINTS, unreadable=-1)
        kept["evaluation"]["skip_eval_before_train"] = resume and saved >= 0
    if recipe.algorithm.lora_rank:
        kept["checkpoints"] |= {"megatron_to_hf_mode": "bridge", "ref_load": kept["checkpoints"]["hf_checkpoint"]}
        kept["adapter"] = adapter_section(recipe)
    return kept


def _moved(heading: str, group: Attributes) -> Attributes:
    return {dest: _own(value) for dest, value in group.items() if dest not in GONE.get(heading, ())}


def _own(value: object) -> object:
    if isinstance(value, list):
        return [_own(inner) for inner in value]
    return MOVED.get(value, value) if isinstance(value, str) else value


def adapter_section(recipe: Recipe) -> Attributes:
    """Return the attributes of LoRA by Megatron-Bridge, which reads the weights in Hugging Face format.

    SGLang's default kernels leave out the adapters of experts (miles' docs/advanced/lora.md, "MoE adapters").
    """
    algorithm, mixture = recipe.algorithm, bool(recipe.model.shape.experts)
    return {
        "lora_rank": algorithm.lora_rank,
        "lora_alpha": algorithm.lora_alpha or algorithm.lora_rank,
        "target_modules": ",".join(targets(recipe)),
        **({"sglang_lora_backend": "triton"} if mixture else {}),
    }


MILES = Upstream(
    "miles",
    "miles",
    checkouts.MILES,
    checkouts.MILES_MEGATRON,
    "miles' own image (its docker/Dockerfile)",
    checkouts.MILES_COMMANDS,
    adapted,
    # Both set the router's policy. Only this one takes every name that the router has, and is asked for routing keys
    # (miles/ray/rollout/router_manager.py, miles/rollout/generate_utils/generate_endpoint_utils.py).
    renamed={"router-policy": "sglang-router-policy"},
)
