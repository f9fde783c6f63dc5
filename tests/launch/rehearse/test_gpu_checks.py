"""The limits of `on=gpu` lie between rounding and faults: its toy samples and learns in bfloat16, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slime_swe.launch.rehearse.checks import CHECKS, run_check, run_checks
from slime_swe.launch.rehearse.evidence import Evidence, Reference
from slime_swe.launch.rehearse.platforms import BFLOAT16, FLOAT32
from tests.launch.rehearse.gpus import node
from tests.launch.rehearse.small import play
from tests.launch.rehearse.test_checks import FAULTS, with_figures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
in_bfloat16 = pytest.mark.extended("tests/launch/rehearse/test_gpu_checks.py::test_each_limit_is_looser_than_float32_s")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return play(tmp_path_factory.mktemp("rehearsal"), node(8), torch.bfloat16)


@in_bfloat16
def test_rounding_passes_every_check(sound):
    found = {check.name: check for check in run_checks(sound)}
    assert found.keys() == CHECKS.keys()
    assert {name: check.value for name, check in found.items() if check.ok is not True} == {}


@in_bfloat16
def test_rounding_is_no_more_than_half_of_a_limit(sound):
    """And some: the control is not of float32."""
    for name in ("log_probabilities", "served_weights", "layout_log_probabilities", "layout_weights"):
        found = run_check(name, sound)
        assert 1e-4 < found.value < found.limit / 2, found


@in_bfloat16
def test_the_limits_of_float32_would_not_do(sound):
    failed = {check.name for check in run_checks(replace(sound, limits=FLOAT32)) if not check.ok}
    assert {"log_probabilities", "served_weights", "layout_weights", "resume_weights", "experts"} <= failed


def a_rank_s_loss_is_counted_twice(evidence: Evidence, folder: Path) -> Evidence:
    return with_figures(evidence, "train/loss", 0, 2.0)


def a_resumed_run_has_the_first_weights(evidence: Evidence, folder: Path) -> Evidence:
    """A shift of 1e-3, as in float32, is less than rounding."""
    model = Reference(evidence.config, evidence.toy)
    first = evidence.layout.steps[2].samples
    others = [replace(one, log_probs_R=model.forward(one.tokens).log_probs_T[-len(one.mask_R) :]) for one in first]
    step = replace(evidence.resumed.steps[2], samples=others)
    return replace(evidence, resumed=replace(evidence.resumed, steps={2: step}))


OWN: dict[str, Callable[[Evidence, Path], Evidence]] = {
    plant.__name__: plant for plant in (a_rank_s_loss_is_counted_twice, a_resumed_run_has_the_first_weights)
}


@pytest.mark.extended("tests/launch/rehearse/test_checks.py::test_a_fault_is_found")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_above_rounding(sound, tmp_path, name):
    plant, check = FAULTS[name]
    found = run_check(check, OWN.get(name, plant)(sound, tmp_path))
    assert found.ok is False, found


def test_each_limit_is_looser_than_float32_s():
    for name in ("log_probability", "updated", "loss", "norm", "weight", "repeated", "repeated_weight"):
        assert getattr(BFLOAT16, name) > getattr(FLOAT32, name)
    assert BFLOAT16.experts < FLOAT32.experts
