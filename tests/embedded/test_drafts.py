"""Guessed tokens: right ones save steps, and neither right nor wrong ones change a result."""

from __future__ import annotations

import pytest

from slime_swe.embedded.exact_forward import Decoder, KVCache
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.sampling import SamplingParams
from slime_swe.embedded.scheduler import Completion, Drafter, OwnPlaces, Request, Scheduler


def run(checkpoint, draft_tokens: int, params: SamplingParams, siblings: int) -> tuple[list[Completion], int]:
    """Completions of some requests with one prompt and one seed, one after the other, and the steps they took."""
    model = Qwen2.load(checkpoint)
    cache = KVCache(model.config, 4, 400)
    scheduler = Scheduler(Decoder(model, cache), str, draft_tokens)
    done: list[Completion] = []
    steps = 0
    for index in range(siblings):
        scheduler.add(Request(str(index), [5, 6, 7, 8] * 5, params, 7, frozenset(), done.append))
        while scheduler.busy:
            scheduler.step()
            steps += 1
    return done, steps


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guesses_save_steps_and_change_nothing(tiny_checkpoint, temperature):
    params = SamplingParams(max_new_tokens=40, temperature=temperature, ignore_eos=True)
    guessed, few = run(tiny_checkpoint, 5, params, siblings=2)
    plain, many = run(tiny_checkpoint, 0, params, siblings=2)
    for a, b in zip(guessed, plain, strict=True):
        assert (a.output_ids, a.log_probs, a.finish_reason) == (b.output_ids, b.log_probs, b.finish_reason)
    assert many == 80
    assert few < 60  # what the first one wrote is what the second one is guessed to write


def test_what_any_request_wrote_is_guessed_again_after_the_same_eight_tokens():
    drafter = Drafter(5)
    written = list(range(100, 120))
    drafter.learn(written, start=0)
    assert drafter.guess([1, 2, *range(104, 112)], OwnPlaces(), most=9) == [112, 113, 114, 115, 116]
    assert drafter.guess([1, 2, *range(104, 112)], OwnPlaces(), most=2) == [112, 113]
    assert drafter.guess([1, 2, *range(104, 112)], OwnPlaces(), most=0) == []


def test_else_the_context_is_guessed_to_go_on_as_after_the_same_two_tokens():
    places = OwnPlaces()
    assert Drafter(3).guess([4, 5, 6, 7, 8, 9, 5, 6], places, most=9) == [7, 8, 9]
    assert Drafter(3).guess([4, 5, 6, 7, 8, 9, 5, 6, 1], places, most=9) == []
    assert Drafter(3).guess([4], OwnPlaces(), most=9) == []
