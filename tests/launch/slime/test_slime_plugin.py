"""The parts of the loss that SLiME takes as functions; SLiME's own reducer is needed for one of them."""

from __future__ import annotations

import inspect
from argparse import Namespace

import torch

from slime_swe.launch.slime.slime_plugin import advantages_less_kl, constant_reduction


def test_the_penalty_is_taken_off_each_token():
    data = {"rewards": [1.0, -0.5], "kl": [torch.tensor([0.0, 2.0]), torch.tensor([-1.0])]}
    advantages_less_kl(Namespace(kl_coef=0.1), data)
    assert [kept.tolist() for kept in data["advantages"]] == [
        torch.tensor([1.0, 0.8]).tolist(),
        torch.tensor([-0.4]).tolist(),
    ]
    assert all(torch.equal(a, b) for a, b in zip(data["advantages"], data["returns"], strict=True))


def test_the_reducer_takes_what_slime_gives():
    """Its numbers are compared with SLiME's loss where SLiME is (tests/contract)."""
    names = ["total_lengths", "response_lengths", "loss_masks", "per_token"]
    assert list(inspect.signature(constant_reduction).parameters) == names
