"""`trained.jsonl` has what SLiME's own dump of the step has, whichever processes hold the parts of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slime_swe.recipes.base import Parallel
from slime_swe.rollout.journals import TRAINED, TrainedSamples, append_records, read_records
from slime_swe.sample import Sample
from tests.contract.layouts import DUMP, toy_recipe, train, write_batch, write_toy
from tests.recipes.changes import changed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAME, KIND = "qwen25_coder_7b", "qwen2"
LAYOUTS = {"one rank": ({}, 1), "TP2": ({"tp": 2}, 1), "PP2": ({"pp": 2}, 1), "CP2 DP2": ({"cp": 2}, 2)}


@pytest.fixture(scope="module")
def toy(slime_home, tmp_path_factory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"), KIND)


def records_of(batch: Path, path: Path) -> list:
    """As the logging hook has written them before the step."""
    samples = [Sample.from_dict(sample) for sample in torch.load(batch, weights_only=False)["samples"]]
    append_records(path, samples, rollout_id=0, attempt=1)
    return list(read_records(path))


@pytest.mark.parametrize("row", LAYOUTS)
def test_each_layout_records_what_slime_s_own_dump_has(toy, tmp_path, row):
    layout, copies = LAYOUTS[row]
    recipe = toy_recipe(NAME, KIND, toy, Parallel(**{"max_tokens_per_gpu": 4096, **layout}))
    recipe = changed(recipe, "algorithm.steps_per_rollout", 2)
    batch = write_batch(tmp_path / "batch.pt", recipe.model.shape.vocab)
    train(recipe, tmp_path / "run", batch, copies=copies)
    dumped = {one["sample_index"]: one for one in torch.load(tmp_path / "run" / DUMP, weights_only=False)["samples"]}
    samples = TrainedSamples(tmp_path / "run" / TRAINED)
    found = [samples.of(record) for record in records_of(batch, tmp_path / "episodes.jsonl")]
    assert [one.index for one in found] == sorted(dumped) == [0, 1, 2, 3]
    for one in found:
        mask = dumped[one.index]["loss_masks"].bool()
        assert one.log_probs == pytest.approx(dumped[one.index]["log_probs"][mask].tolist(), rel=1e-8)
        assert {one.advantage} == {round(value, 8) for value in dumped[one.index]["advantages"].tolist()} != {0.0}
    assert [one.step for one in found] == [0, 0, 1, 1]


@pytest.mark.parametrize("estimator", ["grpo", "gspo"])
def test_one_step_has_log_probabilities_wherever_slime_computes_them(toy, tmp_path, estimator):
    """GSPO's before the step, GRPO's in the training pass, where a second line follows of one micro-batch."""
    recipe = toy_recipe(NAME, KIND, toy, Parallel(max_tokens_per_gpu=128))
    recipe = changed(recipe, "algorithm.estimator", estimator)
    batch = write_batch(tmp_path / "batch.pt", recipe.model.shape.vocab)
    train(recipe, tmp_path / "run", batch)
    dumped = {one["sample_index"]: one for one in torch.load(tmp_path / "run" / DUMP, weights_only=False)["samples"]}
    samples = TrainedSamples(tmp_path / "run" / TRAINED)
    found = [samples.of(record) for record in records_of(batch, tmp_path / "episodes.jsonl")]
    known = [one for one in found if one.log_probs is not None]
    assert len(known) == len(found) if estimator == "gspo" else 0 < len(known) < len(found)
    for one in known:
        mask = dumped[one.index]["loss_masks"].bool()
        assert one.log_probs == pytest.approx(dumped[one.index]["log_probs"][mask].tolist(), rel=1e-8)
    assert all(isinstance(one.advantage, float) and one.advantage and one.step == 0 for one in found)


@pytest.mark.parametrize("row", LAYOUTS)
def test_the_training_pass_gives_a_micro_batch_s_log_probabilities_in_each_layout(toy, tmp_path, row):
    layout, copies = LAYOUTS[row]
    recipe = toy_recipe(NAME, KIND, toy, Parallel(**{"max_tokens_per_gpu": 64, **layout}))
    batch = write_batch(tmp_path / "batch.pt", recipe.model.shape.vocab)
    train(recipe, tmp_path / "run", batch, copies=copies)
    dumped = {one["sample_index"]: one for one in torch.load(tmp_path / "run" / DUMP, weights_only=False)["samples"]}
    samples = TrainedSamples(tmp_path / "run" / TRAINED)
    found = [samples.of(record) for record in records_of(batch, tmp_path / "episodes.jsonl")]
    known = [one for one in found if one.log_probs is not None]
    assert 0 < len(known) < len(found)
    for one in known:
        mask = dumped[one.index]["loss_masks"].bool()
        assert one.log_probs == pytest.approx(dumped[one.index]["log_probs"][mask].tolist(), rel=1e-6)
