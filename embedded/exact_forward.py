"""A Qwen2's forward pass in which every matrix product is exact, so that server and trainer get the same bits from it.

Float64 and without gradients. Everything but products is computed element by element or row by row. Letters: T rows,
H hidden, K key/value heads, G query heads per key/value head, D head dimension, L positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slime_swe.embedded.model import Layer, ModelConfig, Qwen2, interleaved, rope_tables

BITS = 26
# The attention weights of one query add up to 1, so they are rounded to multiples of 2**-BITS.
WEIGHT_GRID = 1.5 * 2 ** (52 - BITS)
PIECE = 64  # tokens: longer runs are cut, so that the scores of one stay in a core's cache


@dataclass(frozen=True)
class ExactLayer:
    """One layer's weights as they are multiplied, snapped: norms and score scale folded in, projections joined.

    `value_grid` [K, D] is what values are rounded with: they are added up over positions, which must share a grid.
    """

    qkv: Tensor
    qkv_bias: Tensor
    value_grid: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def build(cls, layer: Layer, config: ModelConfig) -> ExactLayer:
        attention, mlp, dim = layer.self_attn, layer.mlp, config.head_dim
        query, key, value = (
            (part.weight.double(), part.bias.double())
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = ((interleaved(weight, dim), interleaved(bias, dim)) for weight, bias in (query, key))
        scale = 1 / math.sqrt(dim)
        qkv = snap(torch.cat((query[0] * scale, key[0], value[0])) * layer.input_layernorm.weight)
        longest = math.sqrt(config.hidden_size) * torch.linalg.vector_norm(qkv[-len(value[0]) :], dim=-1)
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).double()
        return cls(
            qkv=qkv,
            qkv_bias=torch.cat((query[1] * scale, key[1], value[1])),
            value_grid=grid(longest + value[1].abs()).view(-1, dim),
            out=snap(attention.o_proj.weight.double()),
            gate_up=snap(gate_up * layer.post_attention_layernorm.weight),
            down=snap(mlp.down_proj.weight.double()),
        )


class ExactModel:
    """The weights of a Qwen2 as they were when it was made, and the arithmetic of its layers but for attention's."""

    @torch.no_grad()
    def __init__(self, model: Qwen2) -> None:
        self.config = model.config
        self.groups = self.config.num_attention_heads // self.config.num_key_value_heads
        self.embedding = model.model.embed_tokens.weight.double()
        # A normed vector is no longer than this, and all but as long.
        self.norm_grid = grid(self.embedding.new_full((1,), math.sqrt(self.config.hidden_size)))
        self.layers = [ExactLayer.build(cast(Layer, layer), self.config) for layer in model.model.layers]
        self.head = snap(model.head_weight.double() * model.model.norm.weight)

    def turns(self, positions: Tensor) -> Tensor:
        """Return rotary embeddings' complex numbers [T, 1, D / 2]."""
        return torch.complex(*rope_tables(positions, self.config, torch.float64))

    def project(self, layer: ExactLayer, x_TxH: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [T, K × G, D], keys and values [T, K, D]."""
        kv_heads, dim = self.config.num_key_value_heads, self.config.head_dim
        heads = self.config.num_attention_heads
        qkv = F.linear(self._norm(x_TxH), layer.qkv).add_(layer.qkv_bias).view(len(x_TxH), heads + 2 * kv_heads, dim)
        pairs = qkv[:, : heads + kv_heads].view(len(x_TxH), heads + kv_heads, dim // 2, 2)
        torch.view_as_complex(pairs).mul_(turns)
        turned, value = snap(qkv[:, : heads + kv_heads]), qkv[:, heads + kv_heads :]
        return turned[:, :heads], turned[:, heads:], snap_to(value, layer.value_grid)

    def finish(self, layer: ExactLayer, x_TxH: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output from its input and what attention gives, [T, K × G × D]."""
        x_TxH = x_TxH + F.linear(snap(attended), layer.out)
        gate, up = F.linear(self._norm(x_TxH), layer.gate_up).chunk(2, dim=-1)
        return x_TxH.add_(F.linear(snap(F.silu(gate).mul_(up)), layer.down))

    def logits(self, x_TxH: Tensor) -> Tensor:
        """Return the logits [T, V] from the last layer's output."""
        return F.linear(self._norm(x_TxH), self.head)

    def _norm(self, x_TxH: Tensor) -> Tensor:
        normed = F.rms_norm(x_TxH, (self.config.hidden_size,), None, self.config.rms_norm_eps)
        return snap_to(normed, self.norm_grid)


# Sums of products that come out the same in whatever order they are added, because no addition in them rounds.
#
# Float64 holds integers up to 2**53. `snap` puts a vector on a grid of 26 bits below its length: it becomes a vector of
# integers, of length at most 2**26, times a power of two. By Cauchy and Schwarz every partial sum of the products of
# two such vectors is then an integer of at most 2**52, and exact. So a matrix product gives a row the same bits
# whatever the other rows, the library, its kernels, their tiling, fused multiplication or the number of threads.
#
# The grid is as fine as float32's for the vector's largest elements. Adding anything else (a bias, a residual) is one
# rounded operation by itself, after the product.
EXPONENT = 0x7FF << 52  # of a float64


def snap(x: Tensor) -> Tensor:
    """Round each vector along the last dimension, float64, to multiples of 2**-BITS of its length."""
    return snap_to(x, grid(torch.linalg.vector_norm(x, dim=-1, keepdim=True)))


def grid(length: Tensor) -> Tensor:
    """Return what to add and take away again to round numbers to 2**-BITS of `length` (at most twice that).

    Float64 numbers of its size are that far apart.
    """
    power_of_two = (length.view(torch.int64) & EXPONENT).view(torch.float64)  # above half of the length
    return power_of_two * float(3 << (52 - BITS))


def snap_to(x: Tensor, grid: Tensor) -> Tensor:
    return (x + grid).sub_(grid)


def attention(
    query_TxQxD: Tensor, lengths: Sequence[int], contexts: Iterable[tuple[np.ndarray, np.ndarray]], groups: int
) -> Tensor:
    """Compute attention [T, K × G × D] of runs of tokens laid end to end, one run at a time.

    `lengths` are the runs' own, `contexts` their keys and values [K, L, D], which end with those of the run. A loop
    reads exactly the context that a run has; one product over all would read as many as the longest has. NumPy's
    products are as exact as PyTorch's.
    """
    (count, heads, dim), start = query_TxQxD.shape, 0
    query = query_TxQxD.view(count, heads // groups, groups, dim).transpose(0, 1).flatten(1, 2).numpy()
    out = np.empty_like(query)
    for length, (keys, values) in zip(lengths, contexts, strict=True):
        before = keys.shape[1] - length
        for place in range(0, length, PIECE):
            end = min(place + PIECE, length)
            rows, seen = slice((start + place) * groups, (start + end) * groups), slice(before + end)
            _attend(query[:, rows], keys[:, seen], values[:, seen], groups, out[:, rows])
        start += length
    return torch.from_numpy(out).view(len(out), count, -1).transpose(0, 1).flatten(1)


def _attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray, groups: int, out: np.ndarray) -> None:
    """Write into `out` the attention of the last T tokens of a context; `query` and `out` are [K, T × G, D]."""
    tokens = query.shape[1] // groups
    scores = np.matmul(query, keys.swapaxes(1, 2))
    if tokens > 1:
        scores[:, :, -tokens:] += _causal(tokens, groups)
    weights = torch.softmax(torch.from_numpy(scores), -1).numpy()
    weights += WEIGHT_GRID
    weights -= WEIGHT_GRID
    np.matmul(weights, values, out=out)


@lru_cache
def _causal(tokens: int, groups: int) -> np.ndarray:
    """Return the mask [T × G, T]: -inf for tokens after a query's own, else 0."""
    return np.triu(np.full((tokens, tokens), -np.inf), 1).repeat(groups, axis=0)


# The server's forward pass: one step over runs of new tokens of many sequences, with all before them cached.
#
# A step takes the next tokens of every running request (decode) and pieces of prompts (prefill) together. Whatever else
# is in the batch, and however much of a context was cached, a token's bits are the same (`exact_forward.py`).
@dataclass(frozen=True)
class Span:
    """A run of new tokens of one slot, at positions `start`, `start + 1`, …"""

    slot: int
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def tail(self, count: int) -> Span:
        """Return the span of its last `count` tokens."""
        return Span(self.slot, self.end - count, self.tokens[len(self.tokens) - count :])


class Decoder:
    """A Qwen2's weights over a KVCache."""

    def __init__(self, model: Qwen2, cache: KVCache) -> None:
        self.cache = cache
        self.load(model)
        self.turns = self.exact.turns(torch.arange(cache.max_length))

    def load(self, model: Qwen2) -> None:
        """Take over the weights of `model`, which must have the same architecture."""
        self.exact = ExactModel(model)

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        """Return the logits [sum(wanted), V] of the last `wanted` tokens of each span, laid end to end.

        Writes the tokens' keys and values into the cache; what stands before each span must be there.
        """
        exact = self.exact
        tokens, positions, slots = self._inputs(spans)
        turns, x = self.turns[torch.from_numpy(positions)], exact.embedding[torch.from_numpy(tokens)]
        for index, layer in enumerate(exact.layers):
            query, keys, values = exact.project(layer, x, turns)
            self.cache.write(index, slots, positions, keys.numpy(), values.numpy())
            if index == len(exact.layers) - 1:  # of other rows nothing but keys and values is of use
                chosen = self._rows(spans, wanted)
                x, query = x[chosen], query[chosen]
                spans = [span.tail(count) for span, count in zip(spans, wanted, strict=True) if count]
            if spans:
                x = exact.finish(layer, x, self._attend(index, spans, query))
        return exact.logits(x)

    def _attend(self, layer: int, spans: Sequence[Span], query: Tensor) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        contexts = ((keys[span.slot, :, : span.end], values[span.slot, :, : span.end]) for span in spans)
        return attention(query, [len(span.tokens) for span in spans], contexts, self.exact.groups)

    def _inputs(self, spans: Sequence[Span]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the token, position and slot of each row."""
        tokens = np.concatenate([span.tokens for span in spans])
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        slots = np.repeat([span.slot for span in spans], [len(span.tokens) for span in spans])
        return tokens, positions, slots

    def _rows(self, spans: Sequence[Span], wanted: Sequence[int]) -> Tensor:
        ends = np.cumsum([len(span.tokens) for span in spans])
        rows = [row for end, count in zip(ends.tolist(), wanted, strict=True) for row in range(end - count, end)]
        return torch.tensor(rows, dtype=torch.int64)


# The key/value cache: a fixed number of slots, each one session's whole context, reused by longest common prefix.
class CacheError(ValueError):
    """There is no memory for the cache; the message says how much was asked for."""


class KVCache:
    """The keys, the values and, per slot, the tokens they belong to. Not thread-safe: one engine thread owns it.

    `keys` and `values` are [layer, slot, head, position, dimension], float64.
    """

    def __init__(self, config: ModelConfig, slots: int, max_length: int) -> None:
        self.slots, self.max_length = slots, max_length
        layers, heads, dim = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.keys, self.values = (_zeros((layers, slots, heads, max_length, dim)) for _ in range(2))
        self.tokens = np.zeros((slots, max_length), dtype=np.int32)
        self.lengths = np.zeros(slots, dtype=np.int64)
        self.spoiled = False  # whether some of what it holds may be infinite or not a number

    def record(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Note that the slot holds, or is about to hold, these tokens from position `start` on, and none after."""
        end = start + len(tokens)
        self.tokens[slot, start:end] = tokens
        self.lengths[slot] = end

    def write(self, layer: int, slots: np.ndarray, positions: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """Keep the keys and values [tokens, heads, dimension] of some tokens."""
        self.keys[layer][slots, :, positions] = keys
        self.values[layer][slots, :, positions] = values

    def prefixes(self, tokens: np.ndarray) -> np.ndarray:
        """Return for every slot how long a prefix of `tokens` it holds."""
        length = min(len(tokens), self.max_length)
        if length == 0:
            return np.zeros(self.slots, dtype=np.int64)
        unequal = self.tokens[:, :length] != tokens[:length].astype(np.int32)
        matches = np.where(unequal.any(axis=1), unequal.argmax(axis=1), length)
        return np.minimum(matches, self.lengths)

    def copy(self, source: int, target: int, common: int, length: int) -> None:
        """Make the first `length` positions of `target` those of `source`, `common` of which it has already."""
        for kept in (self.keys, self.values):
            kept[:, target, :, common:length] = kept[:, source, :, common:length]
        self.tokens[target, common:length] = self.tokens[source, common:length]
        self.lengths[target] = length

    def flush(self) -> None:
        """Forget what every slot holds.

        What stands after a run's own tokens is read too, at weight zero, and zero times NaN is NaN: a spoiled cache is
        zeroed. Others are not, which would touch memory that no request may ever need.
        """
        self.lengths[:] = 0
        if self.spoiled:
            self.keys.fill(0)
            self.values.fill(0)
            self.spoiled = False


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Make zeros, in huge pages where the system has them: they read a tenth faster (fewer TLB misses)."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape)
    count = math.prod(shape)
    try:
        memory = mmap.mmap(-1, count * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise CacheError(
            f"no memory for half a key/value cache of {count >> 17} MiB ({error.strerror}): "
            "lower the number of slots or the context length"
        ) from error
    with contextlib.suppress(OSError):  # a kernel built without transparent huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.float64, count=count).reshape(shape)


# An alarm: does this machine compute what this module promises? Single operations, checked when the server starts.
#
# No BLAS or CPU is known on which it does not. Where it fails, the server still works; two runs with one seed may then
# differ.
ROWS = (1, 2, 3, 5, 8, 16, 33, 100)  # of a product; kernels differ by it


def is_batch_invariant(config: ModelConfig) -> bool:
    """Say whether a row's bits depend neither on the number of rows nor on the order of sums, for the model's sizes."""
    return all(holds for _, holds in check_operations(config))


def check_operations(config: ModelConfig) -> Iterator[tuple[str, bool]]:
    """Yield each operation's name and whether it passes."""
    generator = torch.Generator().manual_seed(0)
    hidden, wide = config.hidden_size, config.num_attention_heads * config.head_dim
    sums = {hidden, wide, config.intermediate_size, config.head_dim}
    for size in sorted(sums):
        left, right = (torch.randn(max(ROWS), size, generator=generator, dtype=torch.float64) for _ in range(2))
        yield f"product over {size}", _exact_product(snap(left), snap(right))
    x = torch.randn(max(ROWS), 2 * config.intermediate_size, generator=generator, dtype=torch.float64)
    for name, function in (
        ("rms_norm", lambda rows: F.rms_norm(rows[:, :hidden].contiguous(), (hidden,))),
        ("length", lambda rows: torch.linalg.vector_norm(rows, dim=-1)),
        ("silu", lambda rows: F.silu(rows.chunk(2, dim=-1)[0])),
        ("softmax", lambda rows: torch.softmax(rows, -1)),
    ):
        whole = function(x)
        yield name, all(torch.equal(whole[:rows], function(x[:rows])) for rows in ROWS)


def _exact_product(left: Tensor, right: Tensor) -> bool:
    """Say whether fewer rows, other columns and another order of summation give the same bits."""
    whole = left @ right.T
    order = torch.arange(left.shape[1] - 1, -1, -1)
    equal = torch.equal(whole, left[:, order] @ right[:, order].T)
    return equal and all(
        torch.equal(whole[-rows:, :columns], left[-rows:] @ right[:columns].T) for rows in ROWS for columns in ROWS
    )
