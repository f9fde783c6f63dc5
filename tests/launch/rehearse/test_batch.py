"""Batches of random tokens stand where nothing can be served, and are never taken for rollouts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slime_swe.launch.rehearse.checks import CHECKS, WITHOUT_ROLLOUTS, run_check
from slime_swe.launch.rehearse.evidence import Evidence, Reference, Trainer, read_rollouts
from slime_swe.launch.rehearse.toy import PROMPT, write_batches
from tests.launch.rehearse.small import CPU, small_recipe


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    recipe, config = small_recipe(folder)
    recipe = replace(recipe, run=replace(recipe.run, num_rollouts=1))
    write_batches(recipe, config, folder / "batch")
    return recipe, config, folder, read_rollouts(folder / "batch")


def test_a_batch_has_transformers_log_probabilities_and_experts(batches):
    _, config, folder, (samples,) = batches
    forward = Reference(config, folder / "toy").forward(samples[0].tokens)
    assert torch.tensor(samples[0].log_probs_R).equal(forward.log_probs_T[PROMPT - 1 :])
    assert samples[0].experts.shape == (len(samples[0].tokens) - 1, 2, 2)
    assert samples[0].experts[:, 1].equal(forward.experts[1][:-1].int())
    assert len({sample.reward for sample in samples}) == len(samples)


def test_checks_of_rollouts_are_not_made_of_it(batches):
    recipe, config, folder, rollouts = batches
    nothing = Trainer({}, {}, {})
    trainers, skipped = [nothing, nothing, nothing], {"rollouts": "no server"}
    evidence = Evidence(recipe, CPU.limits, {}, folder, config, [], rollouts, [], *trainers, folder, folder, skipped)
    for name in CHECKS.keys() - set(WITHOUT_ROLLOUTS):
        check = run_check(name, evidence)
        assert (check.ok, check.look_at) == (None, "no server")
