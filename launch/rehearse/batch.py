"""Batches of random tokens in the format of SLiME's dumps, to train on where no server can sample from the model.

They are no rollouts: there is no agent, no sandbox and no reward in them. Their log-probabilities, and experts where
the recipe replays them, are those that Transformers computes with the toy's weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from slime_swe.launch.rehearse.dumps import ROLLOUTS
from slime_swe.launch.rehearse.reference import Reference
from slime_swe.launch.rehearse.scaled import EPISODES, GROUPS
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.records import write_version_spans
from slime_swe.sample import Sample

LEAST, MOST, PROMPT = 200, 400, 100  # tokens of a sample, and of its prompt


def write_batches(recipe: Recipe, config: dict[str, Any], folder: Path) -> None:
    """One for each rollout of the recipe, all of the first weights."""
    model, generator = Reference(config, Path(recipe.model.checkpoint)), torch.Generator().manual_seed(recipe.run.seed)
    for number in range(recipe.run.num_rollouts):
        samples = [_sample(recipe, model, generator, number, place) for place in range(GROUPS * EPISODES)]
        path = folder / ROLLOUTS.format(rollout_id=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"rollout_id": number, "samples": [sample.to_dict() for sample in samples]}, path)


def _sample(recipe: Recipe, model: Reference, generator: torch.Generator, number: int, place: int) -> Sample:
    length = int(torch.randint(LEAST, MOST, (), generator=generator))
    tokens = torch.randint(recipe.model.shape.vocab, (length,), generator=generator).tolist()
    found, first = model.forward(tokens), number * GROUPS * EPISODES
    sample = Sample(index=first + place, group_index=number * GROUPS + place // EPISODES, metadata={})
    sample.tokens, sample.response_length = tokens, length - PROMPT
    sample.loss_mask = [1] * sample.response_length
    sample.rollout_log_probs = found.log_probs_T[PROMPT - 1 :].tolist()
    sample.reward, sample.status = float(torch.rand((), generator=generator)), Sample.Status.COMPLETED
    write_version_spans(sample, [("1", sample.response_length)])
    if recipe.algorithm.routing_replay == "rollout":
        layers = recipe.model.shape.megatron["num_layers"]
        chosen = next(iter(found.experts.values()))
        table = torch.zeros(length - 1, layers, chosen.shape[-1], dtype=torch.int32)
        for layer, experts in found.experts.items():
            table[:, layer] = experts[: length - 1].int()
        sample.rollout_routed_experts = table
    return sample
