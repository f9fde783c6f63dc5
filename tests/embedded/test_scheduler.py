"""A request's result is a function of its own content: not of its batch mates, their timing, the cache or the slots."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from slime_swe.embedded.exact_forward import Decoder, KVCache
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.sampling import SamplingParams
from slime_swe.embedded.scheduler import Completion, Request, Scheduler

EOS = frozenset({2})


@dataclass(frozen=True)
class Job:
    tokens: tuple[int, ...]
    seed: int
    params: SamplingParams


def make(checkpoint, slots=8, max_length=400) -> Scheduler:
    model = Qwen2.load(checkpoint)
    return Scheduler(Decoder(model, KVCache(model.config, slots, max_length)), str)


def submit(scheduler: Scheduler, job: Job, results: dict, key) -> None:
    request = Request(
        rid=str(key),
        tokens=list(job.tokens),
        params=job.params,
        seed=job.seed,
        eos_ids=EOS,
        done=lambda completion: results.__setitem__(key, completion),
    )
    scheduler.add(request)


def drain(scheduler: Scheduler) -> None:
    while scheduler.busy:
        scheduler.step()


def alone(checkpoint, job: Job) -> Completion:
    scheduler = make(checkpoint)
    results: dict = {}
    submit(scheduler, job, results, 0)
    drain(scheduler)
    return results[0]


def jobs(count: int, seed: int, vocab: int = 300) -> list[Job]:
    """Prompts of 1 to 200 tokens, most of which begin alike; mixed parameters."""
    rng = random.Random(seed)
    system = [rng.randrange(3, vocab) for _ in range(139)] + [2]
    made = []
    for index in range(count):
        prefix = system[: rng.choice([0, 70, 140, 140, 140, 140])]
        tokens = prefix + [rng.randrange(3, vocab) for _ in range(rng.randint(1, 60))]
        params = SamplingParams(
            max_new_tokens=rng.randint(1, 24),
            temperature=rng.choice([0.0, 0.7, 1.0]),
            top_k=rng.choice([-1, -1, 5]),
            top_p=rng.choice([1.0, 1.0, 0.9]),
            sampling_seed=index,
        )
        made.append(Job(tuple(tokens), index, params))
    return made


def same(a: Completion, b: Completion) -> bool:
    return (a.output_ids, a.log_probs, a.finish_reason) == (b.output_ids, b.log_probs, b.finish_reason)


@pytest.mark.parametrize("order", range(3))
def test_random_interleavings_give_every_request_the_bits_it_gets_alone(tiny_checkpoint, order):
    todo = jobs(30, seed=5)
    expected = [alone(tiny_checkpoint, job) for job in todo]
    rng = random.Random(order)
    scheduler = make(tiny_checkpoint, slots=rng.choice([3, 8, 40]))
    results: dict = {}
    queue = list(enumerate(todo))
    rng.shuffle(queue)
    while queue or scheduler.busy:
        for _ in range(min(len(queue), rng.randint(0, 6))):
            key, job = queue.pop()
            submit(scheduler, job, results, key)
        for _ in range(rng.randint(1, 8)):
            if scheduler.busy:
                scheduler.step()
        if rng.random() < 0.1:
            scheduler.retract()
        if rng.random() < 0.1:
            scheduler.flush()
    assert len(results) == len(todo)
    for key, completion in enumerate(expected):
        assert same(results[key], completion), f"request {key} differs"


def test_a_conversation_reuses_its_context_and_gets_the_same_bits_as_without(tiny_checkpoint):
    rng = random.Random(0)
    scheduler = make(tiny_checkpoint)
    context, cached = [rng.randrange(3, 300) for _ in range(90)], 0
    for turn in range(5):
        job = Job(tuple(context), turn, SamplingParams(max_new_tokens=12))
        results: dict = {}
        submit(scheduler, job, results, 0)
        submit(scheduler, jobs(5, seed=turn)[4], results, 1)
        drain(scheduler)
        assert same(results[0], alone(tiny_checkpoint, job))
        assert results[0].cached_tokens == cached
        cached = len(context) + len(results[0].output_ids) - 1  # the last sampled token is never fed back
        context += results[0].output_ids + [rng.randrange(3, 300) for _ in range(15)]


def test_equal_prompts_are_computed_once(tiny_checkpoint):
    scheduler = make(tiny_checkpoint, slots=16)
    tokens = tuple(range(3, 203))
    results: dict = {}
    for key in range(8):
        submit(scheduler, Job(tokens, key, SamplingParams(max_new_tokens=3)), results, key)
    drain(scheduler)
    assert sorted(c.cached_tokens for c in results.values()) == [0] + [199] * 7


def played(scheduler: Scheduler, *prompts: list[int]) -> list[int]:
    """How many tokens of each prompt, one request after the other, were in the cache."""
    cached = []
    for tokens in prompts:
        results: dict = {}
        submit(scheduler, Job(tuple(tokens), 0, SamplingParams(max_new_tokens=1)), results, 0)
        drain(scheduler)
        cached.append(results[0].cached_tokens)
    return cached


def test_a_prefix_is_found_in_whichever_slot_holds_most_of_it(tiny_checkpoint):
    short, long = list(range(3, 43)), list(range(103, 203))
    prompts = [short, long, [*long[:60], 7, 8, 9], [*short[:20], 7, 8, 9]]
    assert played(make(tiny_checkpoint), *prompts) == [0, 0, 60, 20]


def test_the_slot_that_was_free_for_longest_is_taken_first(tiny_checkpoint):
    first, second, third = (list(range(start, start + 40)) for start in (3, 103, 203))
    again = [*first, 3], [*second, 3], [*third, 3]
    assert played(make(tiny_checkpoint, slots=2), first, second, third, again[2], again[1]) == [0, 0, 0, 40, 40]
    assert played(make(tiny_checkpoint, slots=2), first, second, third, again[0]) == [0, 0, 0, 0]


def test_retracted_requests_wait_in_order_of_arrival_before_those_that_came_later(tiny_checkpoint):
    scheduler, results = make(tiny_checkpoint, slots=3), {}
    params = SamplingParams(max_new_tokens=50, ignore_eos=True)
    for key in range(5):
        submit(scheduler, Job((3 + key, 4), 0, params), results, key)
    scheduler.step()
    assert len(scheduler.active) == 3
    scheduler.retract()
    assert [request.rid for request in scheduler.waiting] == ["0", "1", "2", "3", "4"]
    assert not scheduler.active


def test_more_requests_than_slots_all_finish(tiny_checkpoint):
    scheduler = make(tiny_checkpoint, slots=2)
    todo, results = jobs(12, seed=9), {}
    for key, job in enumerate(todo):
        submit(scheduler, job, results, key)
    drain(scheduler)
    assert len(results) == 12
    assert not scheduler.active


def test_log_probabilities_are_those_of_transformers(tiny_checkpoint):
    job = Job(tuple(range(3, 80)), 1, SamplingParams(max_new_tokens=20, temperature=0.8, ignore_eos=True))
    completion = alone(tiny_checkpoint, job)
    reference = Qwen2ForCausalLM.from_pretrained(tiny_checkpoint).eval()
    tokens = torch.tensor([*job.tokens, *completion.output_ids])
    with torch.no_grad():
        log_probs = torch.log_softmax(reference(tokens[None]).logits[0] / 0.8, -1)
    expected = log_probs[len(job.tokens) - 1 : -1].gather(1, tokens[len(job.tokens) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.log_probs), expected, atol=1e-5, rtol=0)


def test_greedy_output_is_that_of_transformers(tiny_checkpoint):
    reference = Qwen2ForCausalLM.from_pretrained(tiny_checkpoint).eval()
    for job in jobs(4, seed=3):
        params = SamplingParams(max_new_tokens=15, temperature=0.0, ignore_eos=True)
        ours = alone(tiny_checkpoint, Job(job.tokens, 0, params))
        given = torch.tensor([job.tokens])
        theirs = reference.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=15,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert ours.output_ids == theirs[0, len(job.tokens) :].tolist()


def test_a_model_with_as_many_key_heads_as_query_heads(tmp_path):
    config = Qwen2Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=100,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    todo, results = jobs(10, seed=2), {}
    scheduler = make(tmp_path)
    for key, job in enumerate(todo):
        submit(scheduler, job, results, key)
    drain(scheduler)
    assert all(same(results[key], alone(tmp_path, job)) for key, job in enumerate(todo))


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (SamplingParams(max_new_tokens=5, ignore_eos=True), {"type": "length", "length": 5}),
        (SamplingParams(max_new_tokens=0), {"type": "length", "length": 0}),
        (SamplingParams(max_new_tokens=200, stop_token_ids=frozenset(range(100))), "stop"),
    ],
)
def test_finish_reasons(tiny_checkpoint, params, reason):
    completion = alone(tiny_checkpoint, Job((9, 10, 11), 3, params))
    if reason == "stop":
        assert completion.finish_reason == {"type": "stop", "matched": completion.output_ids[-1]}
        assert completion.output_ids[-1] < 100 and all(t >= 100 for t in completion.output_ids[:-1])
    else:
        assert completion.finish_reason == reason
    assert len(completion.output_ids) == len(completion.log_probs)


def test_stop_strings_end_a_request_at_the_token_that_completes_them(tiny_checkpoint):
    scheduler = make(tiny_checkpoint)
    scheduler.decode = lambda ids: "".join(chr(token) for token in ids)
    free = alone(tiny_checkpoint, Job((9, 10), 1, SamplingParams(max_new_tokens=40, ignore_eos=True)))
    stop = "".join(chr(token) for token in free.output_ids[10:13])
    results: dict = {}
    params = SamplingParams(max_new_tokens=40, ignore_eos=True, stop=("never\0", stop))
    submit(scheduler, Job((9, 10), 1, params), results, 0)
    drain(scheduler)
    assert results[0].output_ids == free.output_ids[:13]
    assert results[0].finish_reason == {"type": "stop", "matched": stop}


def test_abort_returns_what_was_sampled_and_frees_the_slot(tiny_checkpoint):
    scheduler = make(tiny_checkpoint, slots=2)
    results: dict = {}
    for key in range(4):
        submit(scheduler, Job((7, 8, 9 + key), key, SamplingParams(max_new_tokens=100, ignore_eos=True)), results, key)
    for _ in range(5):
        scheduler.step()
    assert scheduler.abort(lambda r: r.rid in ("0", "3")) == 2
    assert results[0].finish_reason["type"] == results[3].finish_reason["type"] == "abort"
    assert len(results[0].output_ids) > 0 and results[3].output_ids == []
    assert not scheduler.flush()
    drain(scheduler)
    assert len(results) == 4 and scheduler.flush()


def test_a_request_aborted_and_sent_again_with_its_output_continues_as_if_nothing_had_happened(tiny_checkpoint):
    job = Job(tuple(range(3, 50)), 11, SamplingParams(max_new_tokens=20, ignore_eos=True))
    whole = alone(tiny_checkpoint, job)
    rest = alone(
        tiny_checkpoint,
        Job(job.tokens + tuple(whole.output_ids[:8]), 11, SamplingParams(max_new_tokens=12, ignore_eos=True)),
    )
    assert rest.output_ids == whole.output_ids[8:]
    assert rest.log_probs == whole.log_probs[8:]


def test_after_broken_weights_good_ones_give_every_request_its_bits(tiny_checkpoint):
    scheduler = make(tiny_checkpoint, slots=1)
    good, broken = Qwen2.load(tiny_checkpoint), Qwen2.load(tiny_checkpoint)
    with torch.no_grad():
        broken.model.embed_tokens.weight.fill_(float("nan"))
    scheduler.decoder.load(broken)
    results: dict = {}
    submit(scheduler, Job(tuple(range(3, 60)), 0, SamplingParams(max_new_tokens=2)), results, 0)
    drain(scheduler)
    assert results[0].finish_reason["status_code"] == 500
    assert scheduler.flush()
    scheduler.decoder.load(good)
    job = Job((5, 6, 7), 1, SamplingParams(max_new_tokens=4, ignore_eos=True))
    submit(scheduler, job, results, 1)
    drain(scheduler)
    assert same(results[1], alone(tiny_checkpoint, job))


def test_broken_weights_end_requests_with_an_error(tiny_checkpoint):
    scheduler = make(tiny_checkpoint)
    scheduler.decoder.exact.head.mul_(float("nan"))
    results: dict = {}
    submit(scheduler, Job((5, 6), 0, SamplingParams()), results, 0)
    drain(scheduler)
    assert results[0].finish_reason["status_code"] == 500
    assert "not finite" in results[0].finish_reason["message"]
