from __future__ import annotations

import math
import re
import resource
import subprocess
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

import orjson
import pytest

from slime_swe.errors import UserError
from slime_swe.files import FileError
from slime_swe.rollout import slime_plugin
from slime_swe.rollout.journals import append_records, read_records, read_summaries
from slime_swe.rollout.metrics import episode_metrics
from slime_swe.rollout.records import Failure, Record, Score, version_spans_of
from slime_swe.sample import Sample
from tests.rollout.support import FIX, PARAMS, SUBMIT, VIEW, make_sample


async def test_logging_writes_whole_trajectories_and_adds_metrics(run_with):
    async with run_with(VIEW, FIX, SUBMIT) as (args, _):
        samples = [await slime_plugin.generate(args, make_sample(i), PARAMS) for i in range(3)]
    for sample, solved in zip(samples, [True, False, False], strict=True):
        sample.reward = float(solved)
        sample.metadata["score"] = {"value": float(solved), "solved": solved, "components": {}, "evidence": {"t": 1}}
    broken = make_sample(3)
    broken.status, broken.reward, broken.remove_sample = Sample.Status.ABORTED, 0.0, True
    metrics: dict = {"other": 1}
    assert slime_plugin.log_rollout(4, args, [samples, [broken]], metrics, 1.0) is False
    assert metrics["other"] == 1
    assert metrics["swe/episodes"] == 4 and metrics["swe/infrastructure_failures"] == 1
    assert metrics["swe/solve_rate"] == metrics["swe/reward"] == pytest.approx(1 / 3)
    assert metrics["swe/stop/submitted"] == 1.0 and metrics["swe/stop/max_turns"] == 0.0
    assert metrics["swe/turns"] == 3 and metrics["swe/edits"] == 1
    lines = (Path(args.swe_run_dir) / "episodes.jsonl").read_bytes().splitlines()
    records = [orjson.loads(line) for line in lines]
    assert [record["index"] for record in records] == [0, 1, 2, 3]
    first = records[0]
    assert (first["rollout_id"], first["task"], first["tokens"]) == (4, "calc-1", samples[0].tokens)
    assert first["loss_mask"] == samples[0].loss_mask and first["log_probs"] == samples[0].rollout_log_probs
    assert {version for version, _ in first["version_spans"]} == {"3", None}
    assert sum(count for _, count in first["version_spans"]) == first["response_length"]
    assert first["score"]["evidence"] == {"t": 1} and first["episode"]["stop_reason"] == "submitted"
    slime_plugin.log_rollout(5, args, samples, None, 1.0)
    assert len((Path(args.swe_run_dir) / "episodes.jsonl").read_bytes().splitlines()) == 7
    read = [*read_records(Path(args.swe_run_dir) / "episodes.jsonl")]
    assert [read[0].version_spans, read[3].version_spans] == [version_spans_of(samples[0]), None]
    assert {record["attempt"] for record in records} == {None}, "not said where the engine gives none"
    args.swe_attempt = 3
    slime_plugin.log_rollout(6, args, samples, None, 1.0)
    assert [record.attempt for record in read_records(Path(args.swe_run_dir) / "episodes.jsonl")][7:] == [3, 3, 3]


def test_rollouts_that_slime_reads_from_a_dump_are_logged_without_a_router(tmp_path):
    sample = make_sample()
    sample.status, sample.reward, sample.tokens = Sample.Status.ABORTED, 0.0, [1, 2]
    slime_plugin.log_rollout(0, Namespace(swe_run_dir=str(tmp_path)), [sample], {}, 1.0)
    assert [record.index for record in read_records(tmp_path / "episodes.jsonl")] == [sample.index]


async def test_evaluations_are_logged_apart(run_with):
    async with run_with(FIX, SUBMIT) as (args, _):
        sample = await slime_plugin.generate(args, make_sample(), PARAMS, evaluation=True)
    sample.reward = 1.0
    metrics: dict = {}
    slime_plugin.log_evaluation(2, args, {"heldout": {"rewards": [1.0], "samples": [sample]}}, metrics)
    assert metrics["eval/heldout/swe/reward"] == 1.0
    (line,) = (Path(args.swe_run_dir) / "evaluations.jsonl").read_bytes().splitlines()
    assert orjson.loads(line)["dataset"] == "heldout"
    assert sample.metadata["episode"]["evaluation"]


def test_evaluations_before_and_after_the_first_rollout(tmp_path):
    """SLiME's `train.py` gives both as 0, its `train_async.py` has the second alone."""
    args, sample = Namespace(swe_run_dir=str(tmp_path)), make_sample()
    evaluate = partial(slime_plugin.log_evaluation, 0, args, {"heldout": {"samples": [sample]}})
    evaluate()
    slime_plugin.log_rollout(0, args, [sample], {}, 1.0)
    evaluate()
    assert [record.rollout_id for record in read_records(tmp_path / "evaluations.jsonl")] == [-1, 0]


@pytest.mark.parametrize("line", [b"garbage", b'{"a": 1}', b"[]", b"\xff"])
def test_a_line_that_is_no_record_is_named(line, tmp_path):
    (tmp_path / "episodes.jsonl").write_bytes(line + b"\n")
    with pytest.raises(UserError, match=r"episodes.jsonl, line 1 is no "):
        list(read_records(tmp_path / "episodes.jsonl"))


def test_a_run_directory_that_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"can't write .*/file/episodes.jsonl: .*choose another folder"):
        append_records(tmp_path / "file" / "episodes.jsonl", [Sample()])


def test_a_file_s_name_that_is_no_text_is_written_escaped(tmp_path):
    sample = Sample(
        index=0, metadata={"score": {"solved": True, "evidence": {"ignored_paths": ["tests/\udcff.py"], "log": "é"}}}
    )
    append_records(tmp_path / "episodes.jsonl", [sample, Sample(index=1)])
    first, second = map(orjson.loads, (tmp_path / "episodes.jsonl").read_bytes().splitlines())
    assert first["score"]["evidence"] == {"ignored_paths": ["tests/\\udcff.py"], "log": "é"}
    assert second["index"] == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"metadata": {"score": {"solved": True, "components": {"coverage": math.nan}}}}, "score.components[...]"),
        ({"metadata": {"score": {"solved": True, "value": math.inf}}}, "score.value"),
        ({"tokens": [1, 2], "response_length": 1, "rollout_log_probs": [-math.inf]}, "log_probs[0]"),
    ],
)
def test_a_record_that_could_not_be_read_is_refused_and_the_journal_stays_as_it_was(changes, field, tmp_path):
    path = tmp_path / "episodes.jsonl"
    append_records(path, [Sample(index=0)])
    before = path.read_bytes()
    with pytest.raises(UserError, match=rf"sample 7.*{re.escape(field)}.*NaN"):
        append_records(path, [Sample(index=1), Sample(index=7, **changes)])
    assert path.read_bytes() == before
    append_records(path, [Sample(index=2)])
    assert [record.index for record in read_records(path)] == [0, 2]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("turns", 5),
        ("turns", [5]),
        ("turns", [{"role": "user", "text": ["a", "b"], "start": 0, "end": 0}]),
        ("turns", [{"role": "user", "text": [1, 2, 3], "start": 0, "end": 0}]),
        ("response", 5),
    ],
)
def test_damaged_turns_are_named(name, found, tmp_path):
    path = tmp_path / "episodes.jsonl"
    turns = [{"role": "user", "text": [0, 1], "start": 0, "end": 0}]
    append_records(path, [Sample(index=0)])
    values = orjson.loads(path.read_bytes()) | {"response": "x", "turns": turns} | {name: found}
    path.write_bytes(orjson.dumps(values) + b"\n")
    with pytest.raises(UserError, match=rf"line 1.* is no Record: Expected .* at `\$.{name}"):
        list(read_records(path))


FULL = """
import resource, sys
from pathlib import Path
from slime_swe.sample import Sample
from slime_swe.files import FileError
from slime_swe.rollout.journals import append_records, read_records
path = Path(sys.argv[1])
append_records(path, [Sample(index=0)])
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
try:
    append_records(path, [Sample(index=i) for i in range(50)])
except FileError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs RLIMIT_FSIZE to stand in for a full disk")
def test_a_full_disk_is_said_and_leaves_no_half_line(tmp_path):
    path = tmp_path / "episodes.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert f"can't write {path}: File too large" in done.stdout
    (line,) = path.read_bytes().splitlines()
    assert orjson.loads(line)["index"] == 0


def test_a_line_that_is_still_being_written_is_left_out(tmp_path):
    path = tmp_path / "episodes.jsonl"
    assert list(read_records(path)) == []
    append_records(path, [Sample(index=4, metadata={"task": {"id": "t"}})], rollout_id=2)
    with path.open("ab") as file:
        file.write(b'{"index":')
    (record,) = read_records(path)
    assert (record.rollout_id, record.index, record.task, record.broken) == (2, 4, "t", False)


def test_samples_of_another_rollout_function_are_counted_too():
    sample = Sample(index=0, reward=1.0, tokens=[1, 2], loss_mask=[1], response_length=1)
    metrics = episode_metrics([sample])
    assert metrics["reward"] == 1.0 and metrics["sampled_tokens"] == 1 and "turns" not in metrics


def test_without_a_loss_mask_all_of_the_response_was_sampled(tmp_path):
    path = tmp_path / "episodes.jsonl"
    sample = Sample(index=0, reward=1.0, tokens=[1, 2, 3], response_length=2)
    append_records(path, [sample])
    assert orjson.loads(path.read_bytes())["loss_mask"] == [1, 1]
    path.write_bytes(path.read_bytes().replace(b'"loss_mask":[1,1]', b'"loss_mask":null'))  # of earlier versions
    (path.with_suffix(".index")).unlink()
    (record,), ((_, summary),) = read_records(path), read_summaries(path)
    assert record.loss_mask == [1, 1] and summary.sampled == 2
    assert episode_metrics([sample])["sampled_tokens"] == sample.effective_response_length == 2


@pytest.mark.parametrize(
    ("tokens", "length", "mask", "why"),
    [
        ([1, 2, 3], 2, [1, 1, 1], "loss_mask has 3 values, and the response 2 tokens"),
        ([1], 2, [1, 1], "the response has 2 tokens, and the sample 1"),
        ([1], -1, None, "the response has -1 tokens, and the sample 1"),
    ],
)
def test_lengths_that_do_not_fit_are_named(tokens, length, mask, why, tmp_path):
    sample = Sample(index=7, tokens=tokens, response_length=length, loss_mask=mask)
    with pytest.raises(UserError, match=f"sample 7: {why}"):
        episode_metrics([sample])
    with pytest.raises(UserError, match=f"sample 7.*{why}"):
        append_records(tmp_path / "episodes.jsonl", [sample])


@pytest.mark.parametrize(
    ("changes", "solved"),
    [
        ({"reward": 1.0}, True),
        ({"reward": 0.0}, False),
        ({"reward": None}, False),
        ({"reward": -1.0, "score": Score(solved=True)}, True),
        ({"reward": 1.0, "score": Score(solved=False)}, False),
        ({"reward": 1.0, "score": Score(solved=True), "status": "aborted"}, False),
        ({"reward": 1.0, "score": Score(solved=True), "infrastructure": Failure("grader_error")}, False),
    ],
)
def test_what_counts_as_solved(changes, solved):
    """The score, else a positive reward; never what infrastructure broke."""
    empty = {"index": 0, "group_index": 0, "trajectory": 0, "task": None, "status": "completed"}
    assert Record(**{**empty, **changes}).solved is solved
