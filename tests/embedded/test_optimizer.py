"""AdamW by PyTorch's function is PyTorch's AdamW, and leaves its compiler alone."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from torch import nn

from slime_swe.embedded.trainer import OptimizerError, PolicyOptimizer

ARGS = Namespace(
    lr=1e-3, lr_decay_style="linear", lr_warmup_iters=3, num_rollout=5, num_steps_per_rollout=2,
    adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, weight_decay=0.1,
)  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(37, 53), nn.LayerNorm(53), nn.Linear(53, 11))


def take_step(network: nn.Module, inputs: torch.Tensor, optimizer) -> None:
    network.zero_grad()
    network(inputs).pow(2).mean().backward()
    optimizer.step()


def test_it_moves_the_parameters_as_pytorch_s_class_does_also_after_a_checkpoint(tmp_path):
    ours, theirs = network(), network()
    optimizer = PolicyOptimizer(ours, ARGS)
    matrices = [p for p in theirs.parameters() if p.ndim >= 2]
    others = [p for p in theirs.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    expected = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, fused=True)
    for step in range(8):
        for group in expected.param_groups:
            group["lr"] = optimizer.learning_rate()
        inputs = torch.randn(8, 37)
        take_step(ours, inputs, optimizer)
        take_step(theirs, inputs, expected)
        assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
        if step == 3:
            torch.save(optimizer.state_dict(), tmp_path / "saved")
            optimizer = PolicyOptimizer(ours, ARGS)
            optimizer.load_state_dict(torch.load(tmp_path / "saved", weights_only=True))


def test_another_version_s_state_is_refused():
    with pytest.raises(OptimizerError, match="saved by another version"):
        PolicyOptimizer(network(), ARGS).load_state_dict({"steps": 1, "optimizer": {}})


PROGRAM = """
import sys, torch
from argparse import Namespace
from slime_swe.embedded.loop import _fix_numerics
from slime_swe.embedded.trainer import PolicyOptimizer
from tests.embedded.test_optimizer import ARGS, network, take_step

_fix_numerics(Namespace(swe_threads=1, seed=0))
assert torch.are_deterministic_algorithms_enabled()
model = network()
take_step(model, torch.randn(8, 37), PolicyOptimizer(model, ARGS))
sys.exit("torch._dynamo" in sys.modules)
"""


def test_a_run_does_not_import_the_compiler():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
