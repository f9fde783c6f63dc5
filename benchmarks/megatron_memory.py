"""What a training step of each recipe's rank holds in memory, counted in megatron-core, beside what the planner says.

A rank's shape (heads / tp, feed-forward width / tp, vocabulary / tp, experts / ep, layers / pp) gets weights, fp32
gradients and AdamW, and trains on packed sequences of `parallel.max_tokens_per_gpu` tokens with the recipe's
recomputation. It runs at full size on PyTorch's `meta` device, whose tensors have sizes alone, and their bytes are
counted. The planner is asked about that same shape on one GPU, with even routing and without what isn't there:
fragmentation, CUDA context, communicators, a paused server. So this measures its formulae, not the cut of a model over
ranks, and nothing of time.

    python -m benchmarks.megatron_memory [--recipes NAME,NAME] [--recompute HOW] [--json] [--check] [--save]

Wants megatron-core 0.16.1 (`pip install --no-deps megatron-core==0.16.1`) and packaging. The baseline is of the dense
recipes; mixtures of experts take minutes.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import warnings

from benchmarks.command import Figures, run
from slime_swe.launch.plan import GIB, Assumptions
from slime_swe.launch.plan.memory import budgets
from slime_swe.launch.plan.training import padded_vocab
from slime_swe.recipes.base import Cluster, Model, Parallel, Recipe
from slime_swe.recipes.registry import load_recipe

DENSE = "qwen25_coder_1_5b,qwen25_coder_7b,qwen25_coder_32b,qwen3_4b_instruct"
EXACT = Assumptions(skew=1.0, fragmentation=0.0, context_gib=0.0, margin=0.0)
GPU = "H200-141GB"
TOLERANCE = 0.10  # of the planner's memory


async def measure(recipes: str, recompute: str) -> Figures:
    """GiB by recipe, planned and measured, and how far the peaks are apart as a share of the planned one.

    recompute: in place of the recipe's own; empty takes that. With `none` the modules here, which are not Transformer
    Engine's, keep 1.3 to 2 times the activations that are planned.
    """
    from benchmarks.megatron_rank import weigh

    warnings.simplefilter("ignore")  # Megatron's, of optional packages that are not there
    logging.getLogger("megatron").setLevel(logging.ERROR)
    figures: Figures = {}
    for name in recipes.split(","):
        recipe = load_recipe(name)
        parallel = dataclasses.replace(recipe.parallel, recompute=recompute or recipe.parallel.recompute)
        recipe = dataclasses.replace(recipe, parallel=parallel)
        rank = rank_model(recipe.model, recipe.parallel)
        planned = {f"planned_{part}": size for part, size in plan_memory(recipe, rank).items()}
        peak = sum(planned.values())
        measured = weigh(rank.shape, recipe, sequence_lengths(recipe.parallel.max_tokens_per_gpu))
        figures |= {f"{name}_{part}_gib": size / GIB for part, size in (planned | measured).items()}
        figures[f"{name}_off"] = abs(measured["peak"] / peak - 1)
    return figures


def rank_model(model: Model, parallel: Parallel) -> Model:
    """What one rank holds, as a model of its own: of families whose layers are all the same.

    A rank's experts see tokens * k * etp / tp rows: so many experts a token here.
    """
    config, parts = model.config, parallel.tp
    cut = {
        "num_hidden_layers": config["num_hidden_layers"] // parallel.pp,
        "intermediate_size": config["intermediate_size"] // parts,
        "num_attention_heads": config["num_attention_heads"] // parts,
        "num_key_value_heads": max(1, config["num_key_value_heads"] // parts),
        "head_dim": model.shape.megatron["kv_channels"],
        "vocab_size": padded_vocab(config["vocab_size"], parts) // parts,
    }
    if experts := model.shape.experts // parallel.ep:
        cut |= {
            "num_experts": experts,
            "num_experts_per_tok": min(max(1, config["num_experts_per_tok"] * parallel.etp // parts), experts),
            "moe_intermediate_size": config["moe_intermediate_size"] // parallel.etp,
        }
    return dataclasses.replace(model, config=config | cut)


def plan_memory(recipe: Recipe, rank: Model) -> dict[str, float]:
    """Bytes, by part, as the planner sees the recipe when one GPU is all there is and the rank's part is the model."""
    parallel = recipe.parallel
    alone = dataclasses.replace(
        recipe,
        model=rank,
        cluster=Cluster(nodes=1, gpus_per_node=1, gpu=GPU, colocate=False),
        parallel=Parallel(max_tokens_per_gpu=parallel.max_tokens_per_gpu, recompute=parallel.recompute),
        optimizer=dataclasses.replace(recipe.optimizer, cpu_offload=False),
    )
    return {part.name.replace(" ", "_"): part.bytes for part in budgets(alone, EXACT, ())[0].components if part.bytes}


def sequence_lengths(tokens: int) -> list[int]:
    """Of one packed micro-batch: a half, a quarter, an eighth, and two sixteenths or what is left."""
    lengths = [tokens >> shift for shift in range(1, 5)]
    return [*lengths, tokens - sum(lengths)]


if __name__ == "__main__":
    limits = {f"{name}_off": TOLERANCE for name in DENSE.split(",")}
    sys.exit(run(__doc__, "megatron_memory", measure, limits=limits, recipes=DENSE, recompute="full"))
