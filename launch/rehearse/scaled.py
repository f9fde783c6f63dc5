"""A recipe -> the recipe that is rehearsed: its algorithm, schedule and layout, with a toy of its model, small amounts
and no more ranks than one machine bears."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.toy import layers
from slime_swe.recipes.base import Data, Parallel, Recipe
from slime_swe.rewards.compose import GAPS

ROLLOUTS = 3
GROUPS, EPISODES = 2, 4
CONTEXT, REPLY, TURNS = 2048, 48, 4  # tokens of an episode, and of a micro-batch; of a reply; replies
EPSILON = 1e-4  # of AdamW: what a gradient of 0 has of rounding is then no step
SECONDS = 900.0  # of an episode, on a machine that trains meanwhile


@dataclass(frozen=True)
class Layout:
    """parallel: the sizes that are rehearsed. ranks: of the trainer. halved: what is smaller than the recipe's."""

    parallel: Parallel
    ranks: int
    halved: tuple[str, ...]


def layout_of(recipe: Recipe, platform: Platform) -> Layout:
    """The recipe's layout, of which context, then tensor, then pipeline parallelism is halved, the largest first, until
    it fits; then experts' parallelism. A stage of the pipeline has one of the toy's layers at least. As many copies of
    the model as the recipe has, fit, and show how they share."""
    given, most = recipe.parallel, platform.ranks(recipe)
    sizes = {"cp": given.cp, "tp": given.tp, "pp": given.pp}
    while layers(recipe.model) % sizes["pp"]:
        sizes["pp"] //= 2
    while prod(sizes.values()) > most:
        largest = max(sizes, key=lambda way: sizes[way])
        sizes[largest] //= 2
    group = prod(sizes.values())
    copies = recipe.cluster.train_gpus // prod((given.cp, given.tp, given.pp))
    kept = min(copies, platform.copies, most // group)
    ranks = kept * group
    sizes |= {"ep": given.ep, "etp": given.etp}
    while ranks % (sizes["ep"] * sizes["etp"] * sizes["pp"]):
        sizes["ep" if sizes["ep"] > 1 else "etp"] //= 2
    if given.etp > 1 and sizes["ep"] == 1:
        sizes["etp"] = sizes["tp"]  # another size leaves gradients unsummed (recipes/rules.py)
    parallel = replace(
        given,
        tp=sizes["tp"],
        pp=sizes["pp"],
        cp=sizes["cp"],
        ep=sizes["ep"],
        etp=sizes["etp"],
        max_tokens_per_gpu=CONTEXT // sizes["cp"],
    )
    pairs = {f"parallel.{way}": (int(getattr(given, way)), size) for way, size in sizes.items()}
    pairs["copies of the model"] = (copies, kept)
    halved = tuple(f"{name} {whole} -> {size}" for name, (whole, size) in pairs.items() if whole != size)
    return Layout(parallel, ranks, halved)


def scaled(recipe: Recipe, platform: Platform, toy: Path, config: dict[str, Any], folder: Path) -> Recipe:
    """What is rehearsed, of a toy at a path whose `config.json` says that, in a folder of runs."""
    layout = layout_of(recipe, platform)
    small = replace(
        recipe,
        model=replace(recipe.model, checkpoint=str(toy), config=config, folder=str(toy.parent)),
        cluster=replace(recipe.cluster, nodes=1, ray_address=""),
        parallel=layout.parallel,
        serving=replace(
            recipe.serving,
            concurrency=2 * GROUPS * EPISODES,
            external_engines=[],
            router_ip="",
            router_port=0,
        ),
        rollout=replace(
            recipe.rollout,
            batch_size=GROUPS,
            samples_per_task=EPISODES,
            max_turns=TURNS,
            max_response=REPLY,
            max_context=CONTEXT,
            time_budget=SECONDS,
            wall_time_budget=0.0,
            agent="native",
            grammar="",
            sandbox="local",
            sandbox_concurrency=2,
        ),
        reward=replace(
            recipe.reward,
            overlong_tokens=CONTEXT - 1,
            overlong_penalty=GAPS[recipe.reward.mode] / 2,
            overlong_turns=0,
            weights={},
        ),
        data=Data(train=["synthetic:train"], shuffle=recipe.data.shuffle),
        algorithm=replace(recipe.algorithm, group_filter="", opsm_delta=0.0),
        optimizer=replace(recipe.optimizer, lr=platform.learning_rate, eps=EPSILON, warmup_steps=0),
        run=replace(
            recipe.run,
            name="",
            dir=str(folder),
            num_rollouts=ROLLOUTS,
            eval_interval=0,
            save_interval=1,
            save_every_minutes=0.0,
            keep_checkpoints=0,
            keep_exports=0,
            keep_best="",
            trackers=["tensorboard"],
        ),
    )
    return platform.placed(small, layout.ranks)


def one_rank(recipe: Recipe) -> Recipe:
    """The rehearsed recipe, trained by a single rank."""
    alone = Parallel(max_tokens_per_gpu=CONTEXT, recompute=recipe.parallel.recompute)
    serving = replace(recipe.serving, gpus_per_engine=1, ep=1, dp_attention=False)
    return replace(recipe, parallel=alone, serving=serving, cluster=replace(recipe.cluster, gpus_per_node=1))
