"""Whole runs of `engine=slime_cpu`: SLiME's own `train.py` and `train_async.py`, Megatron, our rollout function.

Episodes go on over weight updates. What is said between SLiME, the episodes and the server is listened to, and what
was trained is computed anew from the weights that SLiME wrote.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean

import orjson
import pytest
import torch

from slime_swe.embedded.forward import recompute_log_probs
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.train_data import TrainData
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.launch.slime.paths import WEIGHTS
from slime_swe.launch.slime_cpu import run
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import Record
from tests.contract.wire import Wire, WiredServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROLLOUTS, GROUPS, EPISODES = 8, 4, 4
SMALL = ["engine=slime_cpu", "data.eval={}", "algorithm.steps_per_rollout=1", "rollout.time_budget=600"]
SIZE = [f"rollout.batch_size={GROUPS}", f"rollout.samples_per_task={EPISODES}", f"run.num_rollouts={ROLLOUTS}"]
STALENESS = 2
CHECKED = 8  # episodes of a version whose log-probabilities are computed anew


@dataclass
class Run:
    folder: Path
    wire: Wire

    @property
    def records(self) -> list[Record]:
        return list(read_records(self.folder / "episodes.jsonl"))

    @property
    def metrics(self):
        lines = (self.folder / "metrics.jsonl").read_bytes().splitlines()
        return [{key: value for key, value in orjson.loads(line).items() if key != "seconds"} for line in lines]


def train(directory: Path, *words: str, wire: Wire | None = None) -> Run:
    """A run that keeps the weights of every version."""
    recipe = resolve("tiny_cpu", [*SMALL, *words, f"run.dir={directory}", "run.name=a"])
    folder, wire, render = create_run(recipe), wire or Wire(), run.render

    def keeping(*args, **options):
        job = render(*args, **options)
        return replace(job, flags={**job.flags, "test": ("--update-weight-disk-keep-files",)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # of another Ray, which is not this run's
        patch.setattr(run, "render", keeping)
        patch.setattr(run, "ServerProcess", WiredServer.over(wire))
        run.train(recipe, folder, resume=False)
    return Run(folder, wire)


@pytest.fixture(scope="module", params=["continuous", "carry"])
def trained(slime_home, request, tmp_path_factory):
    words = [*SIZE, f"rollout.schedule={request.param}", f"rollout.max_staleness={STALENESS}"]
    return train(tmp_path_factory.mktemp(request.param), *words)


def spans_of(record: Record):
    """`(version, first token, last token + 1)` of what was sampled: places in `tokens`."""
    at = len(record.tokens) - record.response_length
    for version, count in record.version_spans:
        if version is not None:
            yield int(version), at, at + count
        at += count
    assert at == len(record.tokens)


def test_no_episode_is_killed_and_each_is_trained_once(trained):
    assert [record["rollout_id"] for record in trained.metrics] == list(range(ROLLOUTS))
    assert Counter(record.rollout_id for record in trained.records) == dict.fromkeys(range(ROLLOUTS), GROUPS * EPISODES)
    assert max(Counter(record.index for record in trained.records).values()) == 1
    assert not any(record.broken for record in trained.records)


def test_episodes_go_on_over_weight_updates(trained):
    """SLiME's first update, before anything is sampled, is the one that calls its weights 1."""
    assert trained.wire.calls.count("/update_weights_from_disk") == ROLLOUTS + 1
    crossed = {new for record in trained.records for (old, *_), (new, *_) in pairwise(spans_of(record)) if new > old}
    assert len(crossed) >= 4, "weight updates in the midst of an episode"


def test_what_was_said_of_an_aborted_turn_is_kept(trained):
    """The next request goes on behind it. With the last abort the run ends, and what is still played with it."""
    wire = trained.wire
    last = max(one.updates for one in wire.aborted)
    aborted = [one for one in wire.aborted if one.updates < last]
    assert len(aborted) >= 4
    assert not wire.left(aborted)


def test_nothing_is_too_old(trained):
    """Counted by the server's versions: SLiME calls the weights that have seen n steps n + 1."""
    oldest = Counter()
    for record in trained.records:
        for version, *_ in spans_of(record):
            oldest[record.rollout_id] = max(oldest[record.rollout_id], record.rollout_id - (version - 1))
    assert max(oldest.values()) <= STALENESS
    counted = [record["rollout/staleness_max"] for record in trained.metrics]
    assert all(oldest[number] <= counted[number] <= STALENESS for number in range(ROLLOUTS))


def test_log_probabilities_are_those_of_the_weights_that_sampled(slime_home, trained):
    """Computed anew from what SLiME wrote for each version: as the server computes, and by Transformers in float64, of
    which the server's arithmetic differs most where a token is unlikely.
    """
    check_log_probabilities(trained.folder)


def check_log_probabilities(folder: Path) -> None:
    records = list(read_records(folder / "episodes.jsonl"))
    versions = sorted({version for record in records for version, *_ in spans_of(record)})
    own, of_others, by_transformers = [], [], []
    for number in versions:
        weights = folder / WEIGHTS / f"weight_v{number:06d}"
        sampled = [record for record in records if number in {version for version, *_ in spans_of(record)}]
        sampled = sampled[-CHECKED:]
        model = transformers_model(weights)
        for record, log_probs in zip(sampled, as_the_server(weights, sampled), strict=True):
            gaps = gaps_by_version(record, log_probs)
            own += gaps.pop(number)
            of_others += chain.from_iterable(gaps.values())
            by_transformers += gaps_by_version(record, transformers_log_probs(model, record))[number]
    assert len(versions) >= 4
    assert max(own) < 1e-12
    assert max(of_others) > 1e-3, "the comparison tells versions apart"
    assert fmean(by_transformers) < 1e-6
    assert max(by_transformers) < 1e-4


def gaps_by_version(record: Record, log_probs: list[float]) -> dict[int, list[float]]:
    """Version -> how far these log-probabilities of a response are from the server's, for each token that it gave."""
    start, gaps = len(record.tokens) - record.response_length, {}
    differences = [abs(one - other) for one, other in zip(record.log_probs, log_probs, strict=True)]
    for version, first, end in spans_of(record):
        gaps.setdefault(version, []).extend(differences[first - start : end - start])
    return gaps


def as_the_server(weights: Path, records: list[Record]) -> list[list[float]]:
    tokens, masks = ([getattr(record, name) for record in records] for name in ("tokens", "loss_mask"))
    data = TrainData(tokens, masks, [], [], [], [])
    return recompute_log_probs(Qwen2.load(weights), data, range(len(records)), 1.0, 8192)


def transformers_model(weights: Path):
    """Not by `from_pretrained`, whose tables of positions are not filled where the shims are in place."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(weights)).double().eval()
    (file,) = weights.glob("*.safetensors")
    assert model.load_state_dict(load_file(file), strict=False).missing_keys in ([], ["lm_head.weight"])  # it is tied
    return model


def transformers_log_probs(model, record: Record) -> list[float]:
    tokens, start = torch.tensor(record.tokens), len(record.tokens) - record.response_length
    with torch.no_grad():
        log_probs = model(tokens[None]).logits[0, start - 1 : -1].log_softmax(-1)
    return log_probs.gather(1, tokens[start:, None])[:, 0].tolist()


def test_without_staleness_the_metrics_are_the_synchronous_runs(slime_home, tmp_path):
    words = ["run.num_rollouts=2", "rollout.batch_size=2", "rollout.samples_per_task=4", "rollout.max_staleness=0"]
    runs = {name: train(tmp_path / name, *words, f"rollout.schedule={name}") for name in ("sync", "continuous")}
    assert runs["continuous"].metrics == runs["sync"].metrics
    kept = [[(record.index, record.tokens, record.log_probs) for record in run.records] for run in runs.values()]
    assert kept[0] == kept[1]


def test_two_ranks_train_what_one_does(slime_home, tmp_path):
    """The vocabulary of 1,217 is padded for two tensor-parallel ranks, and cut where weights are written."""
    from safetensors.torch import load_file

    words = ["run.num_rollouts=2", "rollout.batch_size=2", "rollout.samples_per_task=4", "optimizer.clip_grad=1000"]
    runs = {size: train(tmp_path / str(size), *words, f"parallel.tp={size}") for size in (1, 2)}
    first, second = runs[2].metrics
    assert max(first["logprob_diff_mean"], second["logprob_diff_mean"]) < 1e-5
    alone = runs[1].metrics[0]
    assert [record.tokens for record in runs[2].records if record.rollout_id == 0] == [
        record.tokens for record in runs[1].records if record.rollout_id == 0
    ]
    assert first["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)
    assert first["loss"] == pytest.approx(alone["loss"], abs=1e-5)
    weights = {size: load_file(written(run, 2)) for size, run in runs.items()}  # after one step
    assert weights[2]["model.embed_tokens.weight"].shape == (1217, 128)
    for name, weight in weights[1].items():  # of a gradient near zero, Adam's step may have either sign
        assert (weights[2][name] - weight).abs().mean() < 1e-5, name


def written(run: Run, version: int) -> Path:
    (file,) = (run.folder / WEIGHTS / f"weight_v{version:06d}").glob("*.safetensors")
    return file
