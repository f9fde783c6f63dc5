"""The GPUs that the planner knows, and what docs/planner.md says of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from slime_swe.launch.config import assemble
from slime_swe.launch.plan import Plan
from slime_swe.launch.plan.plan import make_plan
from slime_swe.recipes.checks import allowed, field_types
from slime_swe.recipes.gpus import GPUS

PAGE = Path(__file__).parents[2] / "docs" / "planner.md"
SMALL = ["rollout.max_context=32768", "parallel.max_tokens_per_gpu=4096", "parallel.cp=8", "parallel.tp=1"]
SMALL += ["optimizer.cpu_offload=true"]


def test_the_page_has_each_gpu_with_its_numbers_and_a_source():
    rows = re.findall(r"^\| ([\w-]+GB) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {name: cells.split(" | ") for name, cells in rows}
    assert found.keys() == GPUS.keys()
    for name, gpu in GPUS.items():
        *numbers, source = found[name]
        assert [*map(float, numbers)] == [gpu.memory, gpu.bandwidth, gpu.flops, gpu.mfu, gpu.moe_mfu], name
        assert "https://" in source or source.startswith("the same")


@cache
def planned(name: str) -> Plan:
    return make_plan(assemble("qwen3_4b_instruct", [f"cluster.gpu={name}", *SMALL]))


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_has_no_more_memory_than_its_name_says_and_plausible_shares(name):
    gpu, nominal = GPUS[name], int(re.search(r"-(\d+)GB", name)[1])
    assert 0.85 * nominal < gpu.memory < 1.01 * nominal
    assert 0 < gpu.moe_mfu < gpu.mfu < 0.6


USUAL = ("H20-96GB", "H100-80GB", "B200-180GB")
OTHERS = [pytest.param(name, marks=pytest.mark.extended("GPUs")) for name in GPUS if name not in USUAL]


@pytest.mark.parametrize("name", [*USUAL, *OTHERS])
def test_a_small_model_is_planned_on_each(name):
    found = planned(name)
    assert found.timing is not None, found.problems
    assert name in found.hardware


def test_more_arithmetic_trains_faster_and_more_bandwidth_samples_no_slower():
    h20, h100, b200 = (planned(name).timing for name in USUAL)
    assert h20.train_rate < h100.train_rate < b200.train_rate
    assert h100.sample_rate <= b200.sample_rate


def test_the_field_lists_them_all():
    assert all(name in allowed(field_types()["cluster.gpu"]) for name in GPUS)
