"""A row's bits depend on nothing but the row: not on the batch, the piece, the drafts, or the machine's kernels."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from slime_swe.embedded.exact_forward import Decoder, KVCache, Span, attention, check_operations, grid, snap, snap_to
from slime_swe.embedded.model import ModelConfig, Qwen2

SETTINGS = [
    {},
    {"MKL_CBWR": "COMPATIBLE"},
    {"ATEN_CPU_CAPABILITY": "default"},
]
MORE_SETTINGS = [{"MKL_CBWR": "AVX2"}, {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, {"ATEN_CPU_CAPABILITY": "avx2"}]


def random_model(rng: random.Random) -> Qwen2:
    """Of sizes that fill no vector register, too."""
    kv_heads, groups, dim = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), rng.choice([8, 16, 32])
    config = ModelConfig(
        vocab_size=rng.randint(40, 90),
        hidden_size=rng.choice([24, 64, 100, 128]),
        intermediate_size=rng.choice([37, 96, 260, 384]),
        num_hidden_layers=2,
        num_attention_heads=kv_heads * groups,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        tie_word_embeddings=rng.random() < 0.5,
    )
    model = Qwen2(config)
    generator = torch.Generator().manual_seed(rng.randrange(2**30))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, rng.choice([0.05, 0.3]), generator=generator)
    return model


def difference(rng: random.Random) -> str:
    """Where a sequence computed alone in one piece differs from one in random pieces among others; "" if nowhere."""
    model = random_model(rng)
    cache = KVCache(model.config, 12, 330)
    decoder = Decoder(model, cache)
    slots = rng.sample(range(12), rng.randint(2, 9))
    texts = {slot: [rng.randrange(40) for _ in range(rng.choice([3, 30, 160, 320]))] for slot in slots}
    alone = {slot: decoder.forward([Span(0, 0, text)], [len(text)]) for slot, text in texts.items()}
    done = dict.fromkeys(slots, 0)
    while any(done[slot] < len(text) for slot, text in texts.items()):
        busy = [slot for slot, text in texts.items() if done[slot] < len(text)]
        spans = []
        for slot in rng.sample(busy, rng.randint(1, len(busy))):
            size = rng.choice([1, 1, 2, 3, 6, 40, 200])
            spans.append(Span(slot, done[slot], texts[slot][done[slot] : done[slot] + size]))
        wanted = [rng.randint(0, len(span.tokens)) for span in spans]
        logits = decoder.forward(spans, wanted).split(wanted)
        for span, count, rows in zip(spans, wanted, logits, strict=True):
            if not torch.equal(rows, alone[span.slot][span.end - count : span.end]):
                return f"{model.config}, slot {span.slot}, {count} rows before {span.end}, among {len(spans)}"
            done[span.slot] = span.end
    return ""


def check_all(seeds: range) -> list[str]:
    """What fails on this machine, by single operations and by whole models."""
    config = ModelConfig.from_dict(random_model(random.Random(0)).config.__dict__ | {"model_type": "qwen2"})
    failed = [name for name, holds in check_operations(config) if not holds]
    return failed + [found for seed in seeds if (found := difference(random.Random(seed)))]


@pytest.mark.parametrize(
    "setting",
    [*SETTINGS, *(pytest.param(setting, marks=pytest.mark.extended("kernels")) for setting in MORE_SETTINGS)],
    ids=lambda setting: "-".join(setting.values()) or "default",
)
def test_bits_depend_on_nothing_but_the_row_whatever_kernels_are_used(setting):
    code = (
        "from tests.embedded.test_invariance import check_all; failed = check_all(range(12)); assert not failed, failed"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | setting, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_products_of_snapped_vectors_are_the_exact_sums():
    generator = torch.Generator().manual_seed(0)
    for size in (1, 7, 128, 900):
        scale = 10.0 ** torch.randint(-6, 6, (size,), generator=generator)
        left, right = (
            snap(torch.randn(3, size, generator=generator, dtype=torch.float64) * s) for s in (scale, 1 / scale)
        )
        exact = [
            [sum(Fraction(a) * Fraction(b) for a, b in zip(row, other, strict=True)) for other in right.tolist()]
            for row in left.tolist()
        ]
        assert [[Fraction(x) for x in row] for row in (left @ right.T).tolist()] == exact


def test_snapping_is_as_fine_as_float32_for_the_largest_elements():
    x = torch.randn(50, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e3
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    assert ((snap(x) - x).abs() / length).max() <= 2**-26
    assert not snap(torch.zeros(2, 5, dtype=torch.float64)).any()


def test_the_alarm_names_the_operation_whose_bits_depend_on_the_rows(tiny_checkpoint, monkeypatch):
    config = ModelConfig.load(tiny_checkpoint)
    assert all(holds for _, holds in check_operations(config))
    monkeypatch.setattr("slime_swe.embedded.exact_forward.snap", lambda x: x)  # products of plain numbers round
    failed = [name for name, holds in check_operations(config) if not holds]
    assert failed == ["product over 16", "product over 64", "product over 96"]


def test_attention_gives_a_query_the_same_bits_whatever_run_it_is_in():
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 390, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    keys, values = snap(keys), snap_to(values, grid(torch.full((1,), 8.0).double()))
    query = snap(torch.randn(390, 2 * 2, 16, generator=generator, dtype=torch.float64))
    whole = attention(query, [390], [(keys.numpy(), values.numpy())], groups=2)
    ends = (97, 260, 390)
    contexts = [(keys[:, :end].numpy(), values[:, :end].numpy()) for end in ends]
    for size in (1, 2, 3, 6, 50):
        rows = torch.cat([torch.arange(end - size, end) for end in ends])
        assert torch.equal(attention(query[rows], [size] * 3, contexts, groups=2), whole[rows])


def test_attention_is_causal_softmax_attention():
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 130, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    query = torch.randn(100, 2 * 3, 16, generator=generator, dtype=torch.float64)
    out = attention(query, [100], [(keys.numpy(), values.numpy())], groups=3).view(100, 2, 3, 16)
    for token in range(100):
        seen = slice(31 + token)
        expected = torch.softmax(query[token].view(2, 3, 16) @ keys[:, seen].transpose(1, 2), -1) @ values[:, seen]
        torch.testing.assert_close(out[token], expected, atol=1e-6, rtol=0)
