from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from slime_swe.embedded.sampling import RequestError, SamplingParams, log_probs_of, sample, uniforms

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.5, -30.0, 0.5, 1.0]])


def frequencies(params: SamplingParams, draws: int = 20_000, logits: torch.Tensor = LOGITS) -> np.ndarray:
    rows = uniforms(range(draws), [7] * draws)
    tokens, _ = sample(logits.expand(draws, -1), [params] * draws, rows)
    return np.bincount(tokens, minlength=logits.shape[1])


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    kept = expected > 0
    assert counts[~kept].sum() == 0
    return float((((counts - expected) ** 2)[kept] / expected[kept]).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature):
    probs = torch.softmax(LOGITS.double() / temperature, -1)[0].numpy()
    likely = probs > 1e-6
    counts = frequencies(SamplingParams(temperature=temperature))
    assert counts[~likely].sum() == 0
    assert chi_square(counts[likely], probs[likely] / probs[likely].sum()) < 24.3  # 99.9 % of chi² with 7 degrees


def test_frequencies_over_positions_of_one_seed_are_those_of_the_softmax():
    draws = uniforms([123] * 20_000, range(20_000))
    tokens, _ = sample(LOGITS.expand(20_000, -1), [SamplingParams()] * 20_000, draws)
    probs = torch.softmax(LOGITS.double(), -1)[0].numpy()
    counts = np.bincount(tokens, minlength=8)
    assert chi_square(np.delete(counts, 5), np.delete(probs, 5)) < 24.3


def test_uniforms_are_uniform_and_depend_on_both_seed_and_position():
    draws = uniforms([3] * 50_000, range(50_000))
    assert draws.min() >= 0 and draws.max() < 1
    assert chi_square(np.histogram(draws, 20, (0, 1))[0], np.full(20, 0.05)) < 43.8
    assert abs(np.corrcoef(draws, uniforms([4] * 50_000, range(50_000)))[0, 1]) < 0.02
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.02
    assert uniforms([2**64 - 1], [0]) == uniforms([-1], [0])
    # SplitMix64 twice, by hand in Python's integers
    assert uniforms([42], [9])[0] == _reference(42, 9)


def _reference(seed: int, position: int) -> float:
    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    return (mix((mix(seed) + position) % 2**64) >> 11) / 2**53


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(top_k=1), {0}),
        (SamplingParams(temperature=0.0), {0}),
        (SamplingParams(top_k=3), {0, 4, 1}),  # tokens 1 and 7 tie: the lower id wins
        (SamplingParams(top_p=0.5), {0, 4}),
        (SamplingParams(min_p=0.5), {0, 4}),
        (SamplingParams(top_k=2, min_p=0.99), {0}),
    ],
)
def test_truncation_keeps_these_tokens_in_their_proportions(params, allowed):
    counts = frequencies(params)
    assert set(np.flatnonzero(counts)) == allowed
    probs = torch.softmax(LOGITS.double(), -1)[0].numpy()
    kept = np.array([p if token in allowed else 0.0 for token, p in enumerate(probs)])
    assert chi_square(counts, kept / kept.sum()) < 24.3


def test_log_probabilities_are_of_the_whole_softmax_at_the_sampling_temperature():
    params = [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=0.7, top_k=2),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.3, top_p=0.3),
    ]
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    tokens, log_probs = sample(logits, params, uniforms([1, 2, 3, 4], [0, 0, 0, 0]))
    for row, (token, temperature) in enumerate(zip(tokens, [0.7, 0.7, 1.0, 1.3], strict=True)):
        expected = torch.log_softmax(logits[row].double() / temperature, -1)[token].item()
        assert log_probs[row] == pytest.approx(expected, abs=1e-6)


def test_a_token_too_unlikely_for_its_probability_has_a_log_probability():
    """As one of older weights has, at a low temperature."""
    logits = LOGITS.double() / 0.01
    (found,) = log_probs_of(logits, logits.softmax(-1), torch.tensor([5]))
    assert found == pytest.approx(-3200, abs=1e-9)


def test_rows_do_not_depend_on_each_other():
    logits = torch.randn(100, 301, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature=0.1 + i / 50, top_k=i if i % 3 == 1 else -1, top_p=0.8) for i in range(100)]
    draws = uniforms(range(100), range(100))
    together = sample(logits, params, draws)
    for row in (0, 1, 50, 99):
        alone = sample(logits[row : row + 1], params[row : row + 1], draws[row : row + 1])
        assert (together[0][row], together[1][row]) == (alone[0][0], alone[1][0])


def test_a_draw_just_below_one_takes_the_last_possible_token_and_nan_gives_nan():
    logits = torch.tensor([[0.0, 0.0, -math.inf, -math.inf], [math.nan, 0.0, 0.0, 0.0]])
    tokens, log_probs = sample(logits, [SamplingParams()] * 2, np.array([1 - 2**-53, 0.5]))
    assert tokens[0] == 1
    assert math.isnan(log_probs[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1}, "temperature must be float of at least 0.* got -1"),
        ({"temperature": float("nan")}, "temperature must be .* got nan"),
        ({"temperature": "hot"}, "temperature must be float, got 'hot'"),
        ({"top_p": 0}, "top_p must be float above 0.* got 0"),
        ({"top_k": 0}, "top_k must be at least 1, or -1"),
        ({"top_k": True}, "top_k must be int, got True"),
        ({"max_new_tokens": -1}, "max_new_tokens must be int of at least 0, got -1"),
        ({"max_new_tokens": 1.5}, r"max_new_tokens must be int, got 1\.5"),
        ({"stop": [""]}, r"stop\[0\] must be str of length of at least 1"),
        ({"stop": ["x"] * 100}, "stop must be array of length <= 64"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids.* must be int"),
        ({"ignore_eos": 1}, "ignore_eos must be bool, got 1"),
        ({"sampling_seed": 2**64}, "sampling_seed must be an integer of 64 bits"),
        ({"topp": 0.5, "top_p": 2}, "topp is not a field: did you mean 'top_p'.*; top_p must be float <= 1"),
        ({"regex": "a+"}, r"regex='a\+' is not supported"),
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2 is not supported"),
    ],
)
def test_bad_parameters_are_refused_by_name(given, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams.parse(given)


def test_slimes_own_parameters_are_accepted():
    params = SamplingParams.parse(
        {
            "temperature": 1.0,
            "top_p": 1,
            "top_k": -1,
            "max_new_tokens": 64,
            "stop": "```",
            "stop_token_ids": [2],
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
            "repetition_penalty": 1.0,
            "sampling_seed": 7,
        }
    )
    assert params == SamplingParams(
        max_new_tokens=64,
        stop=("```",),
        stop_token_ids=frozenset({2}),
        skip_special_tokens=False,
        no_stop_trim=True,
        sampling_seed=7,
    )
