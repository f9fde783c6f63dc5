"""Attention over the cache: what is computed for runs of different lengths, and what is kept."""

from __future__ import annotations

import torch

from embedded import attention
from embedded.attention import Attention, Span
from embedded.kv_cache import KVCache
from embedded.model import ModelConfig


def make_cache(tiny_checkpoint) -> KVCache:
    return KVCache(ModelConfig.load(tiny_checkpoint), 3, 128, torch.device("cpu"))


def test_only_runs_with_too_few_queries_are_computed_several_times(tiny_checkpoint):
    spans = [Span(0, 4, [1]), Span(1, 0, [1] * 100), Span(2, 30, [1, 2, 3])]
    step = Attention(make_cache(tiny_checkpoint), spans, groups=1, least=2)
    assert [run.queries.stop - run.queries.start for run in step.runs] == [2, 100, 3]


def test_copies_change_no_result(tiny_checkpoint):
    cache = make_cache(tiny_checkpoint)
    cache.keys.normal_(generator=torch.Generator().manual_seed(0))
    cache.values.normal_(generator=torch.Generator().manual_seed(1))
    spans = [Span(0, 4, [1]), Span(1, 0, [1] * 100), Span(2, 30, [1, 2, 3])]
    query = torch.randn(104, 2, 1, 16, generator=torch.Generator().manual_seed(2))
    once, copied = (Attention(cache, spans, groups=1, least=least)(1, query) for least in (1, 16))
    torch.testing.assert_close(once, copied, atol=1e-6, rtol=1e-5)


def test_masks_of_long_runs_are_not_kept():
    before = attention._short_mask.cache_info().currsize
    for tokens in range(200, 300):
        attention._mask(3, tokens, 320, 1)
    assert attention._short_mask.cache_info().currsize == before
    assert attention._short_mask.cache_info().maxsize is not None


def test_a_token_sees_what_stands_before_it_and_itself():
    mask = attention._mask(1, 2, 4, 2)
    assert (mask == 0).tolist() == [[True, True, False, False]] * 2 + [[True, True, True, False]] * 2
    assert mask[~(mask == 0)].eq(-torch.inf).all()
