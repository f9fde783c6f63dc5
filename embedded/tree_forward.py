"""The model's forward pass over a tree of shared prefixes: its own layers, with attention along the tree's paths.

Shapes: T rows of the layout, H hidden, Q query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from embedded.model import Attention, Layer, Qwen2, rope_tables, rotate
from embedded.prefix_tree import PrefixTree


def hidden_states(model: Qwen2, tree: PrefixTree, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
    """Hidden states [T, H] after the final norm: of each row what the model gives after the tokens of its path."""
    weight = model.head_weight
    rope = rope_tables(positions_T, model.config, weight.dtype)
    attention = TreeAttention(tree, weight)
    x_TxH: Tensor = model.model.embed_tokens(tokens_T)
    for layer in cast("list[Layer]", model.model.layers):
        x_TxH = x_TxH + attention(layer.self_attn, layer.input_layernorm(x_TxH), rope)
        x_TxH = x_TxH + layer.mlp(layer.post_attention_layernorm(x_TxH))
    return cast(Tensor, model.model.norm(x_TxH))


class TreeAttention:
    """Each span attends to its ancestors' rows in full, and to its own causally."""

    def __init__(self, tree: PrefixTree, like: Tensor) -> None:
        self.lengths = [span.length for span in tree.spans]
        self.paths = [[*tree.ancestors(index), index] for index in range(len(tree.spans))]
        self.starts = [span.position for span in tree.spans]
        longest = max(span.position + span.length for span in tree.spans)
        self.causal = torch.full((longest, longest), -torch.inf, device=like.device, dtype=like.dtype).triu(1)

    def __call__(self, own: Attention, x_TxH: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Self-attention's output [T, H], the output projection included."""
        queries = self._split(rotate(_heads(own, own.q_proj(x_TxH)), *rope))
        keys = self._split(rotate(_heads(own, own.k_proj(x_TxH)), *rope))
        values = self._split(_heads(own, own.v_proj(x_TxH)))
        outputs = [self._span(index, query, keys, values) for index, query in enumerate(queries)]
        return cast(Tensor, own.o_proj(torch.cat(outputs).flatten(-2)))

    def _split(self, x_TxQxD: Tensor) -> tuple[Tensor, ...]:
        return torch.split(x_TxQxD.transpose(0, 1), self.lengths, 1)

    def _span(self, index: int, query: Tensor, keys: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> Tensor:
        path, start = self.paths[index], self.starts[index]
        if len(path) == 1:
            k, v, mask = keys[index], values[index], None
        else:
            k, v = (torch.cat([part[i] for i in path], dim=1) for part in (keys, values))
            mask = self.causal[start : start + self.lengths[index], : start + self.lengths[index]]
        out = F.scaled_dot_product_attention(
            query[None], k[None], v[None], attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return out[0].transpose(0, 1)


def _heads(own: Attention, x_TxH: Tensor) -> Tensor:
    return x_TxH.view(len(x_TxH), -1, own.head_dim)
