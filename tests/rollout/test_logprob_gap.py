"""The gap between the trainer's log-probabilities and the engines': what is compared, and when there is a warning."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web

from slime_swe.rollout.journals import TRAINED, TrainedSample, append_trained, read_appended
from slime_swe.rollout.logprob_gap import WINDOW, Gap, GapCheck, Window, weights_of
from slime_swe.rollout.records import write_version_spans
from slime_swe.rollout.scripted import serve
from slime_swe.sample import Sample
from tests.rollout.support import make_args

PROMPT, RESPONSE = [50, 51, 52], [10, 20, 30, 40, 10]
MASK = [0, 1, 1, 0, 1]
TRAINER = [-0.20, -0.30, -0.10]  # of the three trained tokens


def engine_says(token: int) -> float:
    return -token / 100


@asynccontextmanager
async def engine(version="2", status=200):
    """One that scores prompts, and keeps what it was asked."""
    asked = []

    async def handle(request: web.Request) -> web.Response:
        if request.path != "/generate":
            return web.Response(status=404)
        asked.append(body := orjson.loads(await request.read()))
        scored = body["input_ids"][body["logprob_start_len"] :]
        triples = [[None, scored[0], None], *([engine_says(token), token, None] for token in scored[1:])]
        meta = {"finish_reason": {"type": "length"}, "input_token_logprobs": triples, "weight_version": version}
        return web.json_response({"meta_info": meta}, status=status)

    async with serve(handle) as url:
        yield url, asked


def sample(index=0, spans=((None, 1), ("2", 4)), **changes) -> Sample:
    made = Sample(index=index, tokens=[*PROMPT, *RESPONSE], response_length=len(RESPONSE), loss_mask=MASK)
    made.rollout_log_probs = [0.0, -0.25, -0.5, 0.0, -0.1]
    write_version_spans(made, spans)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def check_of(tmp_path, url="http://127.0.0.1:1", lag=1, patience=30.0, **changes) -> GapCheck:
    settings = {"swe_run_dir": str(tmp_path), "swe_version_lag": lag, "swe_attempt": 1}
    settings |= {"rollout_data_postprocess_path": "slime_swe.launch.slime.slime_plugin.write_trained", **changes}
    return GapCheck(make_args("unused", url, tmp_path, **settings), patience)


def write(tmp_path, rollout_id, index=0, log_probs=tuple(TRAINER), attempt=1):
    known = None if log_probs is None else [*log_probs]
    append_trained(tmp_path / TRAINED, [TrainedSample(rollout_id, index, 1.0, known, 0, attempt)])


async def test_an_overlapping_run_asks_the_engine_for_what_it_gives_to_the_trained_tokens(tmp_path):
    async with engine() as (url, asked):
        check = check_of(tmp_path, url)
        write(tmp_path, 0)  # of an earlier rollout
        check.keep(0, [sample()])
        check.start()
        check.cancel()
        check.keep(1, [sample(), sample(1)])
        write(tmp_path, 1, log_probs=None)
        write(tmp_path, 1)
        check.start()
        gap = await check.finish()
    assert gap == Gap(1, pytest.approx((0.0 + 0.0 + 0.0) / 3, abs=1e-12), 3)
    (body,) = asked
    assert body["input_ids"] == [*PROMPT, *RESPONSE] and body["logprob_start_len"] == 3
    assert body["sampling_params"]["max_new_tokens"] == 0 and body["return_logprob"]


async def test_what_the_trainer_is_still_to_write_is_waited_for(tmp_path):
    async with engine(version="1") as (url, _):
        check = check_of(tmp_path, url)
        check.keep(0, [sample()])
        check.start()
        waiting = asyncio.create_task(check.finish())
        await asyncio.sleep(0)
        write(tmp_path, 0, log_probs=[-0.1, -0.1, -0.1], attempt=None)  # another attempt's
        write(tmp_path, 0, log_probs=[-0.1, -0.1, -0.1])
        assert (await waiting).mean == pytest.approx((0.1 + 0.2 + 0.0) / 3)


async def test_a_synchronous_run_compares_what_the_same_weights_sampled_and_asks_nothing(tmp_path):
    check = check_of(tmp_path, lag=0)
    check.keep(0, [sample()])
    check.keep(1, [sample(spans=[(None, 1), ("1", 1), ("2", 3)])])
    write(tmp_path, 1)
    check.start()
    assert await check.finish() == Gap(1, pytest.approx((0.2 + 0.0) / 2), 2), "the first token is of older weights"
    check.start()
    assert await check.finish() is None


@pytest.mark.parametrize(
    ("version", "status", "said"),
    [
        ("1", 200, "says that it has weights 1, and the trainer has sent it 2. See that new weights reach the engines"),
        ("2", 400, "replied HTTP 400"),
    ],
)
async def test_engines_with_other_weights_or_without_scores_are_named_once(tmp_path, caplog, version, status, said):
    async with engine(version, status) as (url, _):
        check = check_of(tmp_path, url)
        check.keep(0, [sample()])
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                check.keep(1, [sample()])
                write(tmp_path, 1)
                check.start()
                assert await check.finish() is None
    (record,) = caplog.records
    assert said in record.getMessage()


async def test_a_trainer_that_writes_nothing_is_waited_for_once(tmp_path, caplog):
    check = check_of(tmp_path, patience=0.01)
    for number in range(2):
        check.keep(number, [sample()])
        check.start()
        assert await check.finish() is None
    (record,) = caplog.records
    assert "has written no log-probabilities" in record.getMessage()


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout_data_postprocess_path": "mine.function"},
        {"keep_old_actor": True},
        {"rollout_temperature": 0.7},
    ],
    ids=str,
)
async def test_where_nothing_can_be_compared_nothing_is_waited_for(tmp_path, changes):
    check = check_of(tmp_path, **changes)
    check.keep(0, [sample()])
    check.start()
    assert await check.finish() is None


@pytest.mark.parametrize(
    "changes", [{"remove_sample": True}, {"loss_mask": [0] * 5}, {"rollout_log_probs": None}, {"metadata": {}}], ids=str
)
def test_a_sample_without_trained_tokens_has_no_window(changes):
    assert Window.of(sample(**changes)) is None


def test_a_window_begins_with_the_first_trained_token_and_is_short():
    length = 3 * WINDOW
    made = sample(
        tokens=[*PROMPT, *range(length)],
        response_length=length,
        loss_mask=[0, 0, *[1, 0] * (length // 2 - 1)],
        rollout_log_probs=[-float(at) for at in range(length)],
    )
    write_version_spans(made, [(None, 2), ("1", 5), ("2", length - 7)])
    window = Window.of(made)
    assert window.places == [*range(5, 5 + WINDOW, 2)] and len(window.tokens) == window.places[-1] + 1
    assert window.sampled[:4] == [(-2.0, "1"), (-4.0, "1"), (-6.0, "1"), (-8.0, "2")]


def test_weights_are_numbered_as_slime_does():
    assert [weights_of(number, 0, 1) for number in range(4)] == ["1", "2", "3", "4"]
    assert [weights_of(number, 5, 1) for number in (5, 6)] == ["1", "2"], "a resumed run counts anew"
    assert [weights_of(number, 0, 2) for number in range(5)] == ["1", None, "2", None, "3"]
    assert [weights_of(number, 3, 2) for number in range(3, 8)] == ["1", "2", None, "3", None]


def test_lines_are_read_from_where_the_last_ended(tmp_path):
    assert read_appended(tmp_path / TRAINED, 0) == ([], 0)
    write(tmp_path, 0)
    (first,), at = read_appended(tmp_path / TRAINED, 0)
    write(tmp_path, 1)
    with (tmp_path / TRAINED).open("ab") as file:
        file.write(b'{"half')
    (second,), end = read_appended(tmp_path / TRAINED, at)
    assert (first.rollout_id, second.rollout_id) == (0, 1) and end < (tmp_path / TRAINED).stat().st_size
