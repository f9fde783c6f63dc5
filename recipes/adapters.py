"""LoRA (Hu et al. 2021, arXiv:2106.09685): which of a model's linear layers get an adapter, and how large these are.

An adapter of rank r beside a layer of n inputs and m outputs is two matrices, r x n and m x r. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from slime_swe.recipes.base import TARGETS, Recipe
from slime_swe.recipes.checks import Violation, against, listed
from slime_swe.recipes.layers import ONE_GPU, Layout, Part, Shape, Shard, summed


def targets(recipe: Recipe) -> tuple[str, ...]:
    """Return the layers that get an adapter, by Megatron's names: those that the recipe names, else all that it may."""
    return tuple(recipe.algorithm.lora_targets) or TARGETS


def shard(recipe: Recipe, layout: Layout, stage: int) -> Shard:
    """Count the parameters of adapters that one GPU of a pipeline stage holds; none without LoRA.

    Source: Megatron-Bridge `peft/utils.py`, `ParallelLinearAdapter`: both matrices are shared out by tensor
    parallelism, those of routed experts as the experts are. In miles each expert has its own (docs/advanced/lora.md).
    """
    layers = recipe.model.shape.stage(stage, layout.pp)

    def held(part: Part) -> Shard:
        return part.adapters(layout, recipe.algorithm.lora_rank, targets(recipe))

    dense, expert = summed(layers, lambda part: held(part).dense), summed(layers, lambda part: held(part).expert)
    return Shard(dense=dense, expert=expert)


def parameters(recipe: Recipe) -> int:
    """Count the parameters of all adapters."""
    return round(shard(recipe, ONE_GPU, 0).parameters)


def exported(recipe: Recipe) -> Shard:
    """Count adapters' parameters as a server takes them: a fused layer's projections each have a copy of the first
    matrix.

    Source: PEFT's names, which Megatron-Bridge exports: `q_proj`, `k_proj`, `v_proj`; `gate_proj`, `up_proj`.
    """
    rank, chosen = recipe.algorithm.lora_rank, targets(recipe)

    def of_part(part: Part, *, expert: bool) -> int:
        linears = [linear for linear in part.linears() if linear.name in chosen and bool(linear.experts) == expert]
        return sum(
            rank * (linear.fused * linear.inputs + linear.outputs) * max(1, linear.experts) for linear in linears
        )

    total = recipe.model.shape.total
    return Shard(total(partial(of_part, expert=False)), total(partial(of_part, expert=True)))


def untrainable(recipe: Recipe) -> Iterator[Violation]:
    """Yield what the recipe asks for that miles' LoRA can't train, or can't serve."""
    no, algorithm, parallel = against(recipe), recipe.algorithm, recipe.parallel
    if not algorithm.lora_rank:
        return
    yield from _model(recipe, recipe.model.shape)
    if algorithm.reduction == "token":
        why = (
            "with algorithm.lora_rank would weigh each micro-batch alike, not each token: the model that "
            "Megatron-Bridge makes for LoRA is not told of --calculate-per-token-loss"
        )
        yield no("algorithm.reduction", why, "use trajectory")
    for way in ("tp", "etp"):
        if algorithm.lora_rank % (size := getattr(parallel, way)):
            why = f"can't be shared out by parallel.{way}={size}"
            yield no("algorithm.lora_rank", why, f"make it a multiple of {size}")
    if parallel.pp > 1 and not recipe.cluster.colocate:
        why = "leaves no GPU with a whole adapter to send to the servers (algorithm.lora_rank, cluster.colocate=false)"
        yield no("parallel.pp", why, "use 1, or colocate")


def _model(recipe: Recipe, shape: Shape) -> Iterator[Violation]:
    no, chosen = against(recipe), targets(recipe)
    if not recipe.model.kind.adapters:
        kind = recipe.model.config["model_type"]
        why = f"is not known to work for {kind} models with packed sequences"
        yield no("algorithm.lora_rank", why, "use 0, or a qwen2, qwen3 or qwen3_moe model")
    experts = {"linear_fc1", "linear_fc2"} & set(chosen)
    if shape.experts and len(experts) == 1:
        why = f"adapts {experts.pop()} alone, and SGLang serves experts with adapters of both layers, or of neither"
        yield no("algorithm.lora_targets", why, f"name {listed(['both', 'neither'])} of linear_fc1 and linear_fc2")
