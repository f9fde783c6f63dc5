"""Which GPUs train and which serve, and what schedules that allows. Sources: see `slime_swe.recipes.rules.trainer`."""

from __future__ import annotations

from collections.abc import Iterator

from slime_swe.recipes.base import Recipe
from slime_swe.recipes.violation import Violation


def gpus(recipe: Recipe) -> Iterator[Violation]:
    cluster = recipe.cluster
    if not cluster.gpus_per_node:
        yield Violation(
            "cluster.gpus_per_node", "cluster.gpus_per_node=0, and engine=slime trains on GPUs", "give at least 1"
        )
    if not cluster.gpu:
        yield Violation("cluster.gpu", "cluster.gpu is empty", "name the kind of GPU, e.g. H100-80GB")


def colocation(recipe: Recipe) -> Iterator[Violation]:
    """Either the trainer's GPUs serve too, or others do, or servers that run already."""
    cluster, external = recipe.cluster, recipe.serving.external_engines
    if cluster.colocate and cluster.rollout_gpus:
        yield Violation(
            "cluster.rollout_gpus",
            f"cluster.rollout_gpus={cluster.rollout_gpus} beside cluster.colocate=true, which serves on the "
            "trainer's GPUs",
            "set rollout_gpus to 0 or colocate to false",
        )
    if not (cluster.colocate or cluster.rollout_gpus or external):
        yield Violation(
            "cluster.rollout_gpus",
            "cluster.rollout_gpus=0 with cluster.colocate=false leaves no GPU to serve on",
            "give rollout_gpus, set colocate to true, or name serving.external_engines",
        )


def external_engines(recipe: Recipe) -> Iterator[Violation]:
    """SLiME takes external engines in place of all its own; a co-located one is reached by memory handles."""
    cluster = recipe.cluster
    if recipe.serving.external_engines and cluster.colocate:
        yield Violation(
            "serving.external_engines",
            "serving.external_engines serve on other machines, and cluster.colocate=true on the trainer's",
            "set cluster.colocate to false",
        )
    if recipe.serving.external_engines and cluster.rollout_gpus:
        yield Violation(
            "serving.external_engines",
            f"serving.external_engines replace SLiME's own servers, and "
            f"cluster.rollout_gpus={cluster.rollout_gpus} asks for these",
            "set rollout_gpus to 0",
        )


def schedule(recipe: Recipe) -> Iterator[Violation]:
    """`train_async.py` asserts that nothing is co-located: both halves work at once."""
    asked = recipe.rollout.schedule
    if asked != "sync" and recipe.cluster.colocate:
        yield Violation(
            "rollout.schedule",
            f"rollout.schedule={asked} trains and samples at once, which cluster.colocate=true can't",
            "use sync, or set cluster.colocate to false and give cluster.rollout_gpus",
        )


def fully_async(recipe: Recipe) -> Iterator[Violation]:
    """`fully_async_rollout.py` takes groups as they come: it neither filters nor samples more than it returns."""
    rollout, group_filter = recipe.rollout, recipe.algorithm.group_filter
    if rollout.schedule != "fully_async":
        return
    if group_filter:
        yield Violation(
            "algorithm.group_filter",
            f"algorithm.group_filter={group_filter} would not be called: SLiME's rollout.schedule=fully_async filters "
            "no groups",
            "write algorithm.group_filter='' or use rollout.schedule=async",
        )
    if recipe.data.eval:
        yield Violation(
            "data.eval",
            f"data.eval={','.join(recipe.data.eval)} can't be played: SLiME's rollout.schedule=fully_async does not "
            "evaluate",
            f"write {' '.join(f'~data.eval.{name}' for name in recipe.data.eval)}, or use rollout.schedule=async",
        )
    if rollout.over_sampling or rollout.partial:
        key = "over_sampling" if rollout.over_sampling else "partial"
        yield Violation(
            f"rollout.{key}",
            f"rollout.{key} has no meaning with rollout.schedule=fully_async, which never ends a rollout early",
            f"leave rollout.{key} out",
        )


def partial(recipe: Recipe) -> Iterator[Violation]:
    """SLiME hands an unfinished sample to `generate` again, and asks that it isn't a list of siblings."""
    rollout = recipe.rollout
    if rollout.partial and rollout.generate == "slime_swe.rollout.slime_plugin.generate":
        yield Violation(
            "rollout.partial",
            "rollout.partial=true, but rollout.generate=slime_swe.rollout.slime_plugin.generate can't go on with an "
            "unfinished episode: its sandbox is gone",
            "set partial to false, or use rollout.schedule=fully_async, which cuts no episode short",
        )


RULES = (colocation, external_engines, schedule, fully_async, partial)
