"""The embedded server beside real SGLang: the same requests to both, over every endpoint that the embedded one has.

What differs has a test that shows the difference, and a line in `docs/embedded_server.md`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.error import URLError

import pytest

from tests import real_sglang
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.extended("tests/embedded/test_server.py::test_an_answer_has_sglangs_fields"),
    *(pytest.mark.slow, pytest.mark.timeout(1200), real_sglang.needed),
]

CLOSE = 1e-5  # between log-probabilities in float32
LONG = 450  # tokens, of a context of 512
PROMPT = [5, 6, 7]
FREE = [75, 77, 77, 77, 0, 0]  # what both say to it


@contextmanager
def embedded(checkpoint):
    command = [sys.executable, "-m", "slime_swe.embedded.server", "--model", str(checkpoint), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield real_sglang.Server(json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def pair(tiny_checkpoint, tmp_path_factory):
    """Real SGLang and the embedded server, of the same weights."""
    log = tmp_path_factory.mktemp("sglang") / "log"
    with embedded(tiny_checkpoint) as ours, real_sglang.serving(tiny_checkpoint, log) as real:
        yield real, ours


def until_idle(server):
    """What has been answered may still be in SGLang's scheduler."""
    wait_for(lambda: server.ask("/flush_cache")[0] == 200, "a server without requests")


@pytest.fixture
def both(pair, tiny_checkpoint):
    """The two, idle and with the weights that they began with."""
    for server in pair:
        server.ask("/continue_generation", {})
        server.ask("/abort_request", {"abort_all": True})
        until_idle(server)  # an update that finds a request in SGLang's scheduler ends SGLang
        body = {"model_path": str(tiny_checkpoint), "weight_version": "0"}
        assert server.ask("/update_weights_from_disk", body)[0] == 200
    return pair


def said(answer):
    """What is said, and how it ends."""
    status, body = answer
    assert status == 200, body
    meta = body["meta_info"]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == body["output_ids"]
    return body["output_ids"], body["text"], meta["finish_reason"], meta["prompt_tokens"], meta["weight_version"]


def log_probs(answer):
    return [value for value, *_ in answer[1]["meta_info"]["output_token_logprobs"]]


def same(both, *args, **sampling):
    """What both say to it, which is the same."""
    real, ours = (server.generate(*args, **sampling) for server in both)
    assert said(real) == said(ours)
    assert log_probs(ours) == pytest.approx(log_probs(real), abs=CLOSE)
    return said(real)


def statuses(both, path, body=None, method="POST"):
    return [server.ask(path, body, method)[0] for server in both]


def kind_of_end(answer):
    return said(answer)[2]["type"]


def begin(server, **sampling):
    """A long request that is being computed."""
    before = server.running
    future = server.start(PROMPT, **{"max_new_tokens": LONG, **sampling})
    while server.running <= before and not future.done():
        time.sleep(0.005)
    assert not future.done()
    return future


# --- generation -----------------------------------------------------------------------------------------------------


def test_greedy_tokens_and_their_log_probabilities(both):
    rng = random.Random(0)
    for length in (1, 2, 30, 200):
        same(both, [rng.randrange(3, 320) for _ in range(length)], max_new_tokens=20)


def test_many_at_once(both):
    prompts = [[3 + place, 40, 50 + place] for place in range(12)]
    real, ours = ([said(f.result()) for f in [server.start(p) for p in prompts]] for server in both)
    assert real == ours


def test_log_probabilities_are_those_of_the_scaled_distribution(both):
    """Of the first token's few likely values."""
    heat, seen = 0.05, []
    for server in both:
        answers = [server.generate(PROMPT, temperature=heat, max_new_tokens=1, sampling_seed=n) for n in range(20)]
        seen.append({said(answer)[0][0]: log_probs(answer)[0] for answer in answers})
    real, ours = seen
    common = real.keys() & ours.keys()
    assert FREE[0] in common
    assert [ours[token] for token in common] == pytest.approx([real[token] for token in common], abs=CLOSE / heat)


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 1},
        {"stop_token_ids": [77]},
        {"stop_token_ids": [77], "ignore_eos": False},
        {"stop_token_ids": [77], "ignore_eos": False, "no_stop_trim": True},
        {"stop_token_ids": [77, 75], "ignore_eos": False},
        {"stop_token_ids": [0], "ignore_eos": False, "max_new_tokens": 5},
        {"stop": "kk"},
        {"stop": ["none", "kk"]},
        {"stop": "kk", "no_stop_trim": True},
        {"stop": ["k"], "ignore_eos": False, "stop_token_ids": [77]},
        {"stop": "ik", "max_new_tokens": 2},
        {"skip_special_tokens": False},
    ],
    ids=str,
)
def test_how_an_answer_ends(both, sampling):
    same(both, PROMPT, **{"max_new_tokens": 9, **sampling})


def test_what_both_say_is_what_these_tests_rely_on(both):
    assert same(both, PROMPT, max_new_tokens=len(FREE))[0] == FREE


def test_the_context_s_end(both):
    for ids in ([1] * 512, [1] * 600):
        assert statuses(both, "/generate", {"input_ids": ids}) == [400, 400]
    for server in both:
        status, answer = server.generate([1] * 500, max_new_tokens=13)
        assert status == 400 and "513" in answer["error"]["message"] and "512" in answer["error"]["message"]


def test_a_cached_prefix_is_counted(both):
    prompt = [*range(20, 90)]
    for server in both:
        until_idle(server)
        counts = [server.generate(prompt, max_new_tokens=1)[1]["meta_info"]["cached_tokens"] for _ in range(2)]
        assert counts == [0, len(prompt) - 1]


def test_fields_of_an_answer(both):
    real, ours = (server.generate(PROMPT, rid="mine")[1] for server in both)
    assert real.keys() == ours.keys()
    assert ours["meta_info"].keys() < real["meta_info"].keys()
    assert real["meta_info"].keys() - ours["meta_info"].keys() == {
        *("num_retractions", "reasoning_tokens", "cached_tokens_details", "dp_rank", "response_sent_to_client_ts")
    }
    for name in ("id", "input_token_logprobs", "output_token_logprobs_length", "completion_tokens"):
        assert real["meta_info"][name] == ours["meta_info"][name]
    for server in both:
        _, answer = server.ask("/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 1}})
        assert "output_token_logprobs" not in answer["meta_info"]


def test_a_dense_model_has_no_routed_experts_to_give(both):
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}, "return_routed_experts": True}
    for server in both:
        status, answer = server.ask("/generate", body)
        assert status == 200 and "routed_experts" not in answer["meta_info"]


def test_unknown_fields_of_a_request_are_ignored(both):
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}, "unheard_of": 1}
    assert statuses(both, "/generate", body) == [200, 200]


BAD = [
    b'{"input_ids": [1',
    b"[1]",
    {},
    {"input_ids": []},
    {"input_ids": [1, "a"]},
    {"input_ids": [1], "rid": 5},
    *({"input_ids": [1], "sampling_params": given} for given in (
        {"top_p": 2}, {"top_p": 0}, {"min_p": 2}, {"temperature": -1}, {"max_new_tokens": -1},
        {"stop_token_ids": ["a"]}, {"regex": "a"},
    )),
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=str)
def test_what_is_refused(both, body):
    assert statuses(both, "/generate", body) == [400, 400]


def test_paths_and_methods_that_are_not_there(both):
    assert statuses(both, "/nowhere", {}) == [404, 404]
    assert statuses(both, "/generate", method="GET") == [405, 405]


# --- abort, pause, flush --------------------------------------------------------------------------------------------


def test_a_request_is_aborted_by_its_whole_rid_alone(both):
    for server in both:
        running = [begin(server, rid="mine-1"), begin(server, rid="mine-2")]
        for body in ({"rid": "mine"}, {}, {"rid": "nobody"}):
            assert server.ask("/abort_request", body) == (200, "")
        assert not any(one.done() for one in running)
        assert server.ask("/abort_request", {"rid": "mine-1"}) == (200, "")
        tokens, *_, reason, _, _ = said(running[0].result())
        assert reason == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        assert 0 < len(tokens) < LONG and not running[1].done()
        assert server.ask("/abort_request", {"abort_all": True}) == (200, "")
        assert kind_of_end(running[1].result()) == "abort"


def test_a_cache_in_use_is_not_flushed(both):
    for server in both:
        running = begin(server)
        assert server.ask("/flush_cache") == (400, "Flush cache failed.\n")
        server.ask("/abort_request", {"abort_all": True})
        running.result()
        until_idle(server)
        for method in ("POST", "GET"):
            status, text = server.ask("/flush_cache", method=method)
            assert status == 200 and text.splitlines()[0] == "Cache flushed."


def test_pausing_aborts_by_default_and_new_requests_wait(both):
    for server in both:
        running = begin(server)
        answer = {"message": "Generation paused successfully.", "status": "ok"}
        assert server.ask("/pause_generation", {}) == (200, answer)
        assert kind_of_end(running.result()) == "abort"
        waiting = server.start(PROMPT)
        server.ask("/abort_request", {"abort_all": True})  # it has not begun
        time.sleep(0.3)
        assert not waiting.done()
        answer = {"message": "Generation continued successfully.", "status": "ok"}
        assert server.ask("/continue_generation", {}) == (200, answer)
        assert kind_of_end(waiting.result()) == "length"


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_paused_request_goes_on_where_it_was(both, mode):
    whole = same(both, PROMPT, max_new_tokens=LONG)
    for server in both:
        running = begin(server)
        assert server.ask("/pause_generation", {"mode": mode})[0] == 200
        time.sleep(0.3)
        assert not running.done()
        assert server.ask("/continue_generation", {})[0] == 200
        assert said(running.result()) == whole


def test_a_retracted_request_can_be_aborted_while_paused(both):
    for server in both:
        running = begin(server)
        server.ask("/pause_generation", {"mode": "retract"})
        server.ask("/abort_request", {"abort_all": True})
        status, answer = running.result()
        assert status == 200 and answer["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_unknown_mode_of_pausing_is_refused(both):
    assert statuses(both, "/pause_generation", {"mode": "nap"}) == [400, 400]


# --- weights, memory, state -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_checkpoint(tiny_checkpoint, tmp_path_factory):
    import torch

    from slime_swe.embedded.model import Qwen2

    folder = tmp_path_factory.mktemp("other")
    model = Qwen2.load(tiny_checkpoint)
    with torch.no_grad():
        model.model.norm.weight.mul_(-1)
    model.save(folder)
    return folder


def update(server, folder, version=None, **more):
    body = {"model_path": str(folder), **({} if version is None else {"weight_version": version}), **more}
    return server.ask("/update_weights_from_disk", body)


def test_new_weights_are_used_and_named(both, other_checkpoint):
    before = same(both, PROMPT)
    for server in both:
        status, answer = update(server, other_checkpoint, "7")
        assert (status, answer["success"], answer["num_paused_requests"]) == (200, True, 0)
        assert server.get("/model_info")[1]["weight_version"] == "7"
    after = same(both, PROMPT)
    assert after[0] != before[0] and after[-1] == "7"
    for server in both:
        assert update(server, other_checkpoint)[0] == 200
    assert same(both, PROMPT)[-1] == "7", "a version stays until another is given"


def test_weights_that_are_not_there_are_refused_and_the_old_ones_stay(both, tmp_path):
    before = same(both, PROMPT)
    for server in both:
        status, answer = update(server, tmp_path / "nowhere", "8")
        assert (status, answer["success"], answer["num_paused_requests"]) == (400, False, 0)
        assert isinstance(answer["message"], str)
    assert statuses(both, "/update_weights_from_disk", {}) == [400, 400]
    assert same(both, PROMPT) == before


def ends_what_runs(server, folder):
    running = begin(server)
    assert update(server, folder, "9", abort_all_requests=True)[0] == 200
    assert kind_of_end(running.result()) == "abort"


def test_an_update_after_an_aborting_pause(both, other_checkpoint):
    """As SLiME makes it."""
    for server in both:
        running = begin(server)
        server.ask("/pause_generation", {})
        assert kind_of_end(running.result()) == "abort"
        waiting = server.start(PROMPT)
        until_idle(server)
        assert update(server, other_checkpoint, "3")[0] == 200
        server.ask("/continue_generation", {})
        assert said(waiting.result())[-1] == "3"


def test_memory_is_released_and_resumed_on_request(both):
    before = same(both, PROMPT)
    for path in ("/release_memory_occupation", "/resume_memory_occupation"):
        assert [server.ask(path, {}) for server in both] == [(200, None), (200, None)]
    assert same(both, PROMPT) == before


def test_health_and_what_runs(both):
    real, ours = both
    for path in ("/health", "/health_generate"):
        assert real.get(path) == ours.get(path) == (200, "")
    for path in ("/model_info", "/get_model_info"):
        assert real.get(path) == ours.get(path)
    read = ("tp_size", "pp_size", "ep_size", "dp_size", "enable_memory_saver", "disaggregation_mode", "model_path")
    for path in ("/server_info", "/get_server_info"):
        (_, of_real), (_, of_ours) = real.get(path), ours.get(path)
        assert {name: of_real[name] for name in read} == {name: of_ours[name] for name in read}
    (of_real,), (of_ours,) = (server.get("/v1/loads")[1]["loads"] for server in both)
    assert of_ours.keys() <= of_real.keys()
    assert of_real["num_running_reqs"] == of_ours["num_running_reqs"] == 0


# --- differences ----------------------------------------------------------------------------------------------------


def differ(both, path, body=None, method="POST"):
    real, ours = statuses(both, path, body, method)
    assert real != ours
    return real, ours


@pytest.mark.parametrize(
    ("body", "sampling"),
    [
        ({"input_ids": [PROMPT, [8, 9]]}, {}),
        ({"text": "def"}, {}),
        ({"input_ids": PROMPT, "stream": True}, {}),
        ({"input_ids": PROMPT, "logprob_start_len": 0}, {}),
        ({"input_ids": PROMPT, "top_logprobs_num": 2}, {}),
        ({"input_ids": PROMPT}, {"n": 2}),
        ({"input_ids": PROMPT}, {"min_new_tokens": 2}),
        ({"input_ids": PROMPT}, {"frequency_penalty": 1.0}),
        ({"input_ids": PROMPT}, {"repetition_penalty": 1.5}),
    ],
    ids=str,
)
def test_difference_what_the_embedded_server_does_not_compute_it_refuses(both, body, sampling):
    body = {**body, "sampling_params": {"max_new_tokens": 4, "temperature": 0.0, **sampling}}
    assert differ(both, "/generate", body) == (200, 400)
    (name,) = sampling or body.keys() - {"sampling_params", "input_ids"} or {"input_ids"}
    assert name in both[1].ask("/generate", body)[1]["error"]["message"]


@pytest.mark.parametrize(
    "sampling", [{"max_new_tokens": "a"}, {"unheard_of": 1}, {"stop": 5}, []], ids=["type", "name", "stop", "list"]
)
def test_difference_sampling_parameters_of_a_wrong_type_are_the_client_s_error(both, sampling):
    assert differ(both, "/generate", {"input_ids": [1], "sampling_params": sampling}) == (500, 400)


def test_difference_every_error_has_the_same_body(both):
    real, ours = both
    for body in BAD:
        assert set(ours.ask("/generate", body)[1]) == {"error"}
    assert set(real.ask("/generate", {})[1]) == {"error"}
    assert {"object", "message", "type", "code"} <= set(real.ask("/generate", b"[1]")[1])
    assert real.ask("/nowhere", {})[1] == {"detail": "Not Found"}


def test_difference_sglang_leaves_two_tokens_of_the_context_unused(both):
    lengths = [len(said(server.generate([1] * 500, max_new_tokens=12))[0]) for server in both]
    assert lengths == [10, 12]


def test_difference_top_k_of_1_is_greedy_for_sglang(both):
    """So that the temperature is left out of its log-probabilities."""
    real, ours = (server.generate(PROMPT, temperature=0.4, top_k=1) for server in both)
    assert said(real) == said(ours) == said(both[1].generate(PROMPT))
    assert log_probs(real) == pytest.approx(log_probs(both[0].generate(PROMPT)), abs=CLOSE)
    assert log_probs(ours) != pytest.approx(log_probs(real), abs=0.1)


def test_difference_seeded_samples(both):
    """SGLang draws by a request's seed in its deterministic mode alone, which CPUs have not."""
    real, ours = ([server.generate(PROMPT, temperature=1.0, sampling_seed=3, max_new_tokens=30) for _ in range(2)]
                  for server in both)  # fmt: skip
    assert said(ours[0]) == said(ours[1])
    assert said(real[0]) != said(real[1])


def test_difference_a_paused_embedded_server_is_healthy(both):
    for server in both:
        server.ask("/pause_generation", {})
    assert differ(both, "/health_generate", method="GET") == (503, 200)


def test_difference_the_embedded_server_still_answers_with_its_version(both):
    for path in ("/weight_version", "/get_weight_version"):
        assert differ(both, path, method="GET") == (404, 200)


def test_difference_weights_of_another_shape_are_refused(both, tiny_checkpoint, tmp_path):
    """SGLang loads the tensors whose names it knows."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(tiny_checkpoint / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if "layers.1" not in name}, tmp_path / "model.safetensors"
    )
    real, ours = (update(server, tmp_path, "part") for server in both)
    assert (real[0], real[1]["success"]) == (200, True)
    assert (ours[0], ours[1]["success"]) == (400, False)


def test_difference_an_update_that_aborts_requests_may_end_sglang(pair, tiny_checkpoint, other_checkpoint, tmp_path):
    """Where its scheduler has not let go of an aborted request yet when it empties the cache: on a busy machine in one
    update of three. Else both do the same.
    """
    _, ours = pair
    ends_what_runs(ours, other_checkpoint)
    with real_sglang.serving(tiny_checkpoint, tmp_path / "log") as real:
        try:
            ends_what_runs(real, other_checkpoint)
        except (ConnectionError, URLError):
            assert "Cache flush failed after updating weights" in (tmp_path / "log").read_text()


def test_difference_running_requests_go_on_under_new_weights(both, other_checkpoint):
    """SGLang lets them end first."""
    versions = []
    for server in both:
        running = begin(server)
        assert update(server, other_checkpoint, "5")[0] == 200
        versions.append(said(running.result())[-1])
    assert versions == ["0", "5"]


def test_difference_a_token_outside_the_vocabulary_ends_sglang(both):
    """Last, since it does."""
    real, ours = both
    assert ours.generate([1, 320])[0] == 400
    with pytest.raises(OSError):
        real.generate([1, 320])
    assert ours.get("/health_generate")[0] == 200
