"""What SGLang's engines allow. Sources: see `slime_swe.recipes.rules.trainer`."""

from __future__ import annotations

from collections.abc import Iterator

from slime_swe.recipes.base import Recipe
from slime_swe.recipes.families import load_family
from slime_swe.recipes.violation import Violation, divisors, listed

VOCAB_BLOCK = 64  # rows that SGLang pads the vocabulary to


def engine_gpus(recipe: Recipe) -> Iterator[Violation]:
    """Engines fill their GPUs, and each lies within one node or takes whole nodes."""
    cluster, size = recipe.cluster, recipe.serving.gpus_per_engine
    if recipe.serving.external_engines:
        return
    said = f"serving.gpus_per_engine={size}"
    if not size:
        yield Violation("serving.gpus_per_engine", f"{said}, and SGLang serves on GPUs", "give at least 1")
    elif cluster.serve_gpus % size:
        which = "train too" if cluster.colocate else "only serve (cluster.rollout_gpus)"
        yield Violation(
            "serving.gpus_per_engine",
            f"{said} does not divide the {cluster.serve_gpus} GPUs that {which}",
            f"use {listed(divisors(cluster.serve_gpus))}",
        )
    elif cluster.gpus_per_node and cluster.gpus_per_node % size and size % cluster.gpus_per_node:
        yield Violation(
            "serving.gpus_per_engine",
            f"{said} neither divides nor is a multiple of cluster.gpus_per_node={cluster.gpus_per_node}",
            f"use {listed(divisors(cluster.gpus_per_node))}, or whole nodes",
        )


def heads(recipe: Recipe) -> Iterator[Violation]:
    """With `dp_attention` each GPU keeps all heads of its own requests."""
    architecture, serving = recipe.model.architecture, recipe.serving
    if serving.gpus_per_engine and not serving.dp_attention and not architecture.splits_heads(serving.gpus_per_engine):
        yield Violation(
            "serving.gpus_per_engine",
            f"serving.gpus_per_engine={serving.gpus_per_engine} can't share out {architecture.heads} attention heads "
            f"and {architecture.kv_heads} KV heads",
            f"use {listed(architecture.head_splits)}",
        )


def weights(recipe: Recipe) -> Iterator[Violation]:
    """Feed-forward width and padded vocabulary, of a mixture the width of one expert."""
    architecture, serving = recipe.model.architecture, recipe.serving
    size = serving.gpus_per_engine
    vocab = -(-architecture.vocab // VOCAB_BLOCK) * VOCAB_BLOCK
    width, name, shared = architecture.ffn, "ffn", size
    if architecture.experts:
        width, name, shared = architecture.expert_ffn, "expert_ffn", max(1, size // serving.ep)
    if size and (width % shared or vocab % size):
        what = f"model.architecture.{name}={width}" if width % shared else f"the {vocab} rows of the padded vocabulary"
        yield Violation(
            "serving.gpus_per_engine",
            f"serving.gpus_per_engine={size} can't share out {what}",
            f"use {listed(way for way in architecture.head_splits if width % way == 0 and vocab % way == 0)}",
        )


def experts(recipe: Recipe) -> Iterator[Violation]:
    """Expert parallelism divides an engine; what is left of it splits each expert."""
    count, serving = recipe.model.architecture.experts, recipe.serving
    said = f"serving.ep={serving.ep}"
    if serving.ep == 1:
        return
    if not count:
        yield Violation("serving.ep", f"{said}, but the model has no experts", "use 1")
    elif serving.gpus_per_engine % serving.ep or count % serving.ep:
        legal = [size for size in divisors(serving.gpus_per_engine or 1) if count % size == 0]
        yield Violation(
            "serving.ep",
            f"{said} must divide both serving.gpus_per_engine={serving.gpus_per_engine} and the {count} experts",
            f"use {listed(legal)}",
        )


def dp_attention(recipe: Recipe) -> Iterator[Violation]:
    serving, architecture = recipe.serving, recipe.model.architecture
    if not serving.dp_attention:
        return
    if not load_family(architecture.family).dp_attention:
        yield Violation(
            "serving.dp_attention",
            f"serving.dp_attention=true is not there for {architecture.family} models",
            "set it to false",
        )
    elif 0 < serving.gpus_per_engine <= architecture.kv_heads:
        yield Violation(
            "serving.dp_attention",
            f"serving.dp_attention=true saves nothing: serving.gpus_per_engine={serving.gpus_per_engine} GPUs share "
            f"{architecture.kv_heads} KV heads without copies",
            "set it to false",
        )


RULES = (engine_gpus, heads, weights, experts, dp_attention)
