"""The benchmark of a training step's memory: what it counts, what it puts in CUDA's place, and its command."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.megatron_device import TensorMeter, meta_device
from benchmarks.megatron_memory import plan_memory, rank_model, sequence_lengths
from slime_swe.launch.plan import GIB, training
from slime_swe.launch.plan.training import Layout
from slime_swe.recipes.base import Parallel
from slime_swe.recipes.registry import RECIPES, load_recipe

UNIFORM = ("qwen2", "qwen3", "qwen3_moe")  # families of which `rank_model` makes a rank
GPU_RECIPES = [
    name for name in RECIPES if name != "tiny_cpu" and load_recipe(name).model.config["model_type"] in UNIFORM
]
MIB = 2**20
ROOT = Path(__file__).parents[2]
needs_megatron = pytest.mark.skipif(
    find_spec("megatron") is None, reason="megatron-core is not installed (pip install --no-deps megatron-core==0.16.1)"
)


@pytest.mark.parametrize("kind", ("cpu", "meta"))
def test_the_meter_knows_what_there_is_and_what_there_was(kind):
    with TensorMeter(kind) as meter:
        kept = torch.zeros(MIB, dtype=torch.bfloat16, device=kind)
        view = kept.view(2, -1)[1]
        assert meter.now == 2 * MIB
        passing = view.float() + 1  # two of 2 MiB, of which one goes at once
        assert meter.now == 4 * MIB
        assert meter.peak == 6 * MIB
        del passing
        meter.reset()
        assert meter.now == meter.peak == 2 * MIB
    del kept, view
    assert meter.now == 0


def test_what_autograd_keeps_is_counted_until_the_backward_pass():
    weight = torch.ones(MIB // 4, requires_grad=True)
    with TensorMeter("cpu") as meter:
        loss = weight.exp().sum()
        assert meter.now == MIB + 4
        loss.backward()
        assert meter.now == MIB + 4  # the exponentials have gone, the gradient has come
    assert weight.grad is not None


def test_cuda_is_answered_for_and_is_itself_again():
    before = torch.cuda.current_device, torch.cuda.Stream
    with meta_device():
        assert torch.distributed.get_world_size() == 1
        made = torch.zeros(3, device=torch.cuda.current_device())
        assert made.device == torch.ones(3, device="cuda").device == torch.device("meta")
        assert made.bfloat16().type() == "torch.cuda.BFloat16Tensor"
    assert (torch.cuda.current_device, torch.cuda.Stream) == before
    assert not torch.distributed.is_initialized()
    assert torch.zeros(3).type() == "torch.FloatTensor"


@needs_megatron
def test_the_log_probability_is_pytorchs_and_so_is_its_gradient():
    from benchmarks.megatron_rank import LogProbability

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 11, generator=generator).requires_grad_()
    target = torch.randint(11, (7,), generator=generator)
    weights = torch.randn(7, generator=generator)
    expected = torch.log_softmax(logits, dim=-1).gather(1, target[:, None])[:, 0]
    (gradient,) = torch.autograd.grad((weights * expected).sum(), logits)
    found = LogProbability.apply(logits, target)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad((weights * found).sum(), logits)[0], gradient)


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_a_rank_alone_has_the_parameters_that_the_planner_gives_it_in_the_job(name):
    recipe = load_recipe(name)
    model, parallel = recipe.model.shape, recipe.parallel
    layout = Layout(recipe.cluster.train_gpus, parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.etp)
    held = training.shard(model, layout, layout.pp - 1).parameters
    # The rank's router knows all experts, this one its own; and of a pipeline the last stage has no embedding table.
    router = len(model.layers) // layout.pp * model.hidden * (model.experts - model.experts // layout.ep)
    tables = model.hidden * training.padded_vocab(model.vocab, layout.tp) // layout.tp * (layout.pp > 1)
    assert rank_model(recipe.model, parallel).shape.parameters == pytest.approx(held - router + tables, rel=1e-3)


def test_experts_see_as_many_rows_as_the_rank_gets():
    model = load_recipe("qwen3_coder_30b_a3b").model
    assert rank_model(model, Parallel(tp=4, ep=8)).config["num_experts_per_tok"] == 8 // 4
    assert rank_model(model, Parallel(tp=4, ep=8, etp=2)).config["num_experts_per_tok"] == 8 // 2


@pytest.mark.parametrize("tokens", (256, 1000, 32768))
def test_a_micro_batch_is_packed_full(tokens):
    lengths = sequence_lengths(tokens)
    assert sum(lengths) == tokens
    assert min(lengths) > 0
    assert len(set(lengths)) > 2


def test_the_planner_is_asked_about_one_gpu_and_nothing_but_the_model():
    recipe = load_recipe("qwen3_coder_30b_a3b")
    rank = rank_model(recipe.model, recipe.parallel)
    planned, shape = plan_memory(recipe, rank), rank.shape
    assert planned["weights"] == pytest.approx(2 * shape.parameters, rel=1e-3)
    assert planned["optimizer_states"] == pytest.approx(12 * shape.parameters, rel=1e-3)
    assert not {"CUDA_and_NCCL", "paused_server", "fragmentation"} & set(planned)
    assert sum(planned.values()) > GIB


@needs_megatron
@pytest.mark.extended(
    "tests/benchmarks/test_megatron_memory.py::test_a_rank_alone_has_the_parameters_that_the_planner_gives_it_in_the_job"
)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_what_the_planner_says_at_full_size():
    name = "qwen25_coder_1_5b"
    command = [sys.executable, "-m", "benchmarks.megatron_memory", "--recipes", name, "--recompute", "full", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = {key.removeprefix(f"{name}_"): value for key, value in json.loads(done.stdout).items()}
    parts = ("weights", "gradients", "optimizer_states")
    planned = {part: found[f"planned_{part}_gib"] for part in parts}
    for part in ("weights", "gradients"):
        assert found[f"{part}_gib"] == pytest.approx(planned[part], rel=0.01)
    assert found["lasting_gib"] == pytest.approx(sum(planned.values()), rel=0.01)
    assert found["off"] < 0.02
