"""Linear attention: a state of fixed size stands for all earlier tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from slime_swe.recipes.layers import WEIGHT_BYTES, Part
from slime_swe.recipes.layout import Cut, Layout, SglangEngine, Shard

CHUNK = 64  # tokens that flash-linear-attention's kernels take at once
STATE_BYTES = 4  # fp32, SGLang's default of --mamba-ssm-dtype


@dataclass(frozen=True)
class GatedDeltaNet(Part):
    """A gated delta rule behind a short convolution (Yang et al. 2024, arXiv:2412.06464).

    key_heads, key_dim: heads of queries and of keys, and the size of one.
    value_heads, value_dim: heads of values, a multiple of `key_heads`, and the size of one.
    kernel: tokens that the convolution takes.

    SLiME computes it in the Hugging Face layout, whole and for whole sequences, on every GPU of a tensor and context
    parallel group (`slime_plugins/models/hf_attention.py`), so that nothing of it is divided by tp, and a GPU has
    cp tokens of it for each of its own. SGLang divides its heads. Its gradients under context parallelism are wrong
    without `context_parallel_init`.
    """

    context_parallel_init: ClassVar[str] = "slime_swe.launch.slime.linear_attention.sum_gradients"
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        """Width of the queries, and of the keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of the values, of the gate and of the output."""
        return self.value_heads * self.value_dim

    @property
    def convolved(self) -> int:
        return 2 * self.keys + self.values

    def shard(self, layout: Layout) -> Shard:
        """Projections of queries, keys, values, gate, two numbers a head; convolution; two biases a head; norms."""
        projections = self.hidden * (self.convolved + 2 * self.values + 2 * self.value_heads)
        small = self.convolved * self.kernel + 2 * self.value_heads + self.value_dim + self.hidden
        return Shard(dense=projections + small)

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Read from the code, not measured: the norm's input and output in fp32, and that in bf16 (10h); the
        convolution's input; values and gate; normed queries and keys, repeated to as many heads as the values have; the
        decays, their products in each chunk, and others of a head; the output before and after its norm.

        Source: SLiME `slime_plugins/models/qwen3_next.py`; flash-linear-attention `ops/gated_delta_rule/chunk.py`,
        `ChunkGatedDeltaRuleFunction`.
        """
        repeated = 2 * WEIGHT_BYTES * self.value_heads * self.key_dim
        of_heads = (2 * CHUNK + 24) * self.value_heads
        wide = self.convolved + 4 * self.values
        return layout.cp * (10 * self.hidden + WEIGHT_BYTES * wide + repeated + of_heads)

    def workspace(self, layout: Layout, *, skew: float) -> float:
        """The states at the ends of the chunks and their gradients, and gradients of queries, keys and values with the
        kernels' own copies of these."""
        states = 2 * WEIGHT_BYTES * self.value_heads * self.key_dim * self.value_dim / CHUNK
        wide = 3 * self.value_heads * self.key_dim + 5 * self.values
        return layout.cp * (self.gathered_bytes + states + WEIGHT_BYTES * wide)

    def copies(self, layout: Layout) -> int:
        return layout.tp * layout.cp

    def served(self, engine: SglangEngine) -> float:
        return (self.parameters - self.hidden) / engine.attention_gpus + self.hidden / engine.gpus

    def state(self, engine: SglangEngine) -> float:
        """The last inputs of the convolution, and each head's matrix. Source: SGLang `srt/configs/mamba_utils.py`."""
        inputs = WEIGHT_BYTES * self.convolved * (self.kernel - 1)
        return (inputs + STATE_BYTES * self.values * self.key_dim) / engine.attention_gpus

    def engine_cuts(self) -> tuple[Cut, ...]:
        what = f"{self.key_heads} key heads and {self.value_heads} value heads of linear attention"
        return (Cut("attention", what, gcd(self.key_heads, self.value_heads)),)

    def flops(self, length: float) -> float:
        """Two a weight; of each head, its state read twice and written once, and what a chunk's tokens do to each
        other: both as the chunks are multiplied."""
        states = 6 * self.key_dim * self.value_dim
        chunk = 4 * CHUNK * (self.key_dim + self.value_dim)
        return 2 * self.active + self.value_heads * (states + chunk)
