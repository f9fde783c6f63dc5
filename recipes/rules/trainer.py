"""What SLiME's three parts refuse of a recipe, found before any of them starts. Pure: no file, no GPU.

Sources: Megatron-LM 1dcf0daf (`core/parallel_state.py`, `core/transformer/transformer_config.py`,
`training/arguments.py`), SLiME 624b824a (`utils/arguments.py`, `utils/dp_schedule.py`, `train_async.py`) and SGLang
0.5.15 (`models/qwen*.py`). No rule is about the hidden size, which none of them splits, or about the trainer's
vocabulary, which Megatron pads.

This module holds the trainer's sizes; `slime_swe.recipes.rules` has those of placement, serving and objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import prod

from slime_swe.recipes.base import Recipe, Run
from slime_swe.recipes.rules import objective, placement, serving
from slime_swe.recipes.violation import Violation, divisors, listed

MEGATRON_LENGTH = 4096  # --seq-length as SLiME sets it; packed sequences don't have this length


def violations(recipe: Recipe) -> list[Violation]:
    """Every rule of the engine `slime` that the recipe breaks; fields are taken to be valid one by one."""
    return list(chain.from_iterable(rule(recipe) for rule in RULES))


def heads(recipe: Recipe) -> Iterator[Violation]:
    architecture, tp = recipe.model.architecture, recipe.parallel.tp
    if not architecture.splits_heads(tp):
        yield Violation(
            "parallel.tp",
            f"parallel.tp={tp} can't share out {architecture.heads} attention heads and "
            f"{architecture.kv_heads} KV heads",
            f"use {listed(architecture.head_splits)}",
        )


def feed_forward(recipe: Recipe) -> Iterator[Violation]:
    architecture, parallel = recipe.model.architecture, recipe.parallel
    if architecture.experts:
        key, size, width, name = "parallel.etp", parallel.etp, architecture.expert_ffn, "expert_ffn"
    else:
        key, size, width, name = "parallel.tp", parallel.tp, architecture.ffn, "ffn"
    if width % size:
        yield Violation(
            key, f"{key}={size} does not divide model.architecture.{name}={width}", f"use {listed(divisors(width, 64))}"
        )


def layers(recipe: Recipe) -> Iterator[Violation]:
    depth, pp = recipe.model.architecture.layers, recipe.parallel.pp
    if depth % pp:
        yield Violation(
            "parallel.pp",
            f"parallel.pp={pp} does not divide the {depth} layers (model.architecture.layers)",
            f"use {listed(divisors(depth))}",
        )


def model_groups(recipe: Recipe) -> Iterator[Violation]:
    """tp x pp x cp GPUs hold one copy of the model."""
    return _whole_groups(recipe, ("tp", "pp", "cp"))


def expert_groups(recipe: Recipe) -> Iterator[Violation]:
    """etp x ep x pp GPUs hold one copy of the experts, whose data-parallel groups differ from the others'."""
    return _whole_groups(recipe, ("etp", "ep", "pp")) if recipe.model.architecture.experts else iter(())


def _whole_groups(recipe: Recipe, ways: tuple[str, ...]) -> Iterator[Violation]:
    cluster = recipe.cluster
    sizes = {f"parallel.{way}": int(getattr(recipe.parallel, way)) for way in ways}
    group = prod(sizes.values())
    if cluster.train_gpus % group:
        yield Violation(
            max(sizes, key=lambda key: sizes[key]),
            f"{' x '.join(f'{key}={size}' for key, size in sizes.items())} makes groups of {group} GPUs, which do not "
            f"divide the {cluster.train_gpus} of cluster.nodes={cluster.nodes} x "
            f"cluster.gpus_per_node={cluster.gpus_per_node}",
            f"make their product {listed(divisors(cluster.train_gpus))}",
        )


def experts(recipe: Recipe) -> Iterator[Violation]:
    count, parallel = recipe.model.architecture.experts, recipe.parallel
    if count and count % parallel.ep:
        yield Violation(
            "parallel.ep",
            f"parallel.ep={parallel.ep} does not divide the {count} experts (model.architecture.experts)",
            f"use {listed(divisors(count))}",
        )
    for way in ("ep", "etp"):
        size = getattr(parallel, way)
        if not count and size > 1:
            yield Violation(f"parallel.{way}", f"parallel.{way}={size}, but the model has no experts", "use 1")


def context_parallel(recipe: Recipe) -> Iterator[Violation]:
    """SLiME pads each sequence to 2 x cp chunks, so any length will do; Megatron checks one that is not used."""
    cp = recipe.parallel.cp
    if cp > 1 and MEGATRON_LENGTH % (2 * cp):
        yield Violation(
            "parallel.cp",
            f"parallel.cp={cp} is not a power of 2: Megatron wants 2 x cp to divide its --seq-length {MEGATRON_LENGTH}",
            "use 1, 2, 4, 8 or 16",
        )


def batch(recipe: Recipe) -> Iterator[Violation]:
    """Megatron gives each copy of the model as many of a step's episodes."""
    rollout, steps, copies = recipe.rollout, recipe.algorithm.steps_per_rollout, recipe.data_parallel
    episodes = rollout.batch_size * rollout.samples_per_task
    if copies and episodes % steps == 0 and episodes // steps % copies:
        yield Violation(
            "rollout.batch_size",
            f"the {episodes // steps} episodes of a step (rollout.batch_size={rollout.batch_size} x "
            f"rollout.samples_per_task={rollout.samples_per_task} / algorithm.steps_per_rollout={steps}) can't be "
            f"dealt to {copies} copies of the model (GPUs / (parallel.tp x parallel.pp x parallel.cp))",
            f"make them a multiple of {copies}",
        )


def kept_checkpoints(recipe: Recipe) -> Iterator[Violation]:
    """Megatron removes checkpoints by `--save-retain-interval` alone, which keeps every n-th and not the newest."""
    if recipe.run.keep_checkpoints != Run.keep_checkpoints:
        yield Violation(
            "run.keep_checkpoints",
            f"run.keep_checkpoints={recipe.run.keep_checkpoints}, but SLiME has no flag for it and keeps all",
            "leave run.keep_checkpoints out, and raise run.save_interval for fewer",
        )


RULES = (
    placement.gpus,
    heads,
    feed_forward,
    layers,
    model_groups,
    experts,
    expert_groups,
    context_parallel,
    batch,
    kept_checkpoints,
    *placement.RULES,
    *serving.RULES,
    *objective.RULES,
)
