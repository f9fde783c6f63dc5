"""The engine for GPUs with SLiME's fork miles: its `train.py`, our plug-ins, and LoRA.

`MILES` is the fork as a job sees it: what is otherwise of the attributes that SLiME's `args` get. `Miles` is the engine
on it, which refuses what miles does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.engines import Start
from slime_swe.launch.engines.slime import Slime
from slime_swe.launch.slime import checkouts, flags
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.launch.slime.paths import CHECKPOINTS
from slime_swe.launch.slime.render import HEADING
from slime_swe.launch.slime.upstream import Upstream
from slime_swe.recipes import adapters, rules
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import Violation, against
from slime_swe.rollout.retention import last_saved

SPECULATIVE = "sglang-speculative-algorithm"
GONE = {
    "plug-ins": ("rollout_data_postprocess_path",),  # what miles hands to that function has not been tried
    "model": ("use_gated_attention",),  # Megatron's own `attention_output_gate` says it
    "loss": ("custom_advantage_function_path",),  # no such hook: what needs it is refused (`left_out`)
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
    kept = {
        heading: {dest: _own(value) for dest, value in group.items() if dest not in GONE.get(heading, ())}
        for heading, group in found.items()
    }
    kept["serving"]["pause_generation_mode"] = "abort"
    if recipe.data.eval:
        saved = last_saved(folder / CHECKPOINTS, unreadable=-1)
        kept["evaluation"]["skip_eval_before_train"] = resume and saved >= 0
    if recipe.algorithm.lora_rank:
        kept["checkpoints"] |= {"megatron_to_hf_mode": "bridge", "ref_load": kept["checkpoints"]["hf_checkpoint"]}
        kept["adapter"] = adapter_section(recipe)
    return kept


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
        "target_modules": ",".join(adapters.targets(recipe)),
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


class Miles(Slime):
    """miles, its Megatron-LM and SGLang on the GPUs of a Ray cluster."""

    upstream = MILES
    rehearsed = False  # the rehearsal starts SLiME's own train.py

    def violations(self, recipe: Recipe) -> Iterable[Violation]:
        own = (left_out(recipe), adapters.untrainable(recipe), flags.violations(recipe, self.upstream))
        return chain(rules.violations(recipe), *own)

    def check(self, recipe: Recipe, start: Start) -> None:
        if start.resume and recipe.algorithm.lora_rank:
            raise UserError(
                "--resume: a run with algorithm.lora_rank can't go on. miles saves the adapter with its optimizer's "
                "state (checkpoints/iter_*/adapter), and does not read on from the newest of them. Start a run anew, "
                "from that adapter by slime.flags.lora-adapter-path if you like"
            )
        super().check(recipe, start)


def left_out(recipe: Recipe) -> Iterator[Violation]:
    """Yield what the recipe asks for that SLiME has and miles 31f1ca96 has not (`utils/arguments.py`,
    `backends/training_utils/loss_hub`), or that SGLang has not with adapters (`srt/server_args.py`,
    `check_lora_server_args`)."""
    no, algorithm, kind = against(recipe), recipe.algorithm, recipe.model.config["model_type"]
    if not recipe.model.kind.in_miles:
        yield Violation("model.config.model_type", f"miles trains no {kind} models", "use engine=slime")
    if algorithm.estimator == "cispo":
        yield no("algorithm.estimator", "is not a loss of miles", "use grpo or gspo, or engine=slime")
    if algorithm.kl_coef and algorithm.kl_in == "reward":
        why = "takes the penalty off by a function of ours, for which miles has no hook"
        yield no("algorithm.kl_in", why, "use loss, or engine=slime")
    drafted = recipe.slime.flags.get(SPECULATIVE)
    if algorithm.lora_rank and drafted not in (None, "NGRAM"):
        key = f"{HEADING}.{SPECULATIVE}"
        why = f"{key}={drafted} drafts tokens beside an adapter, which SGLang does by n-grams alone"
        yield Violation(key, why, "use NGRAM, or leave it out")
    if recipe.warm_start.data:
        why = "is for a supervised stage, which has not been tried with miles"
        fix = (
            "leave it empty, train the stage under engine=slime (algorithm.lora_rank=0 run.num_rollouts=1) and give "
            "its weights as model.checkpoint: RUN/warm_start/exports/STEP, the last of them"
        )
        yield no("warm_start.data", why, fix)
    if recipe.serving.external_engines:
        why = "load new weights from a shared folder, which miles has no transfer for"
        yield no("serving.external_engines", why, "leave it empty, or use engine=slime")
