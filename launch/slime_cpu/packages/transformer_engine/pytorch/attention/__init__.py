"""Causal attention, each sequence on its own.

Under context parallelism a sequence is cut into 2 cp parts, of which rank r has the r-th and the r-th from the end: so
each rank has as much to do. Keys and values of all ranks are gathered; their gradients are summed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..collectives import Group, gathered, size_of
from ..layers import Layer, refuse

CAUSAL = ("causal", "padding_causal")
UNBOUNDED = (None, (-1, -1), (-1, 0))  # windows that leave nothing out


class DotProductAttention(Layer):
    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: Group = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Group = None,
        cp_global_ranks: list[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        **options: object,
    ) -> None:
        super().__init__(tp_group, tp_size)
        window = None if tuple(window_size or (-1, -1)) in UNBOUNDED else window_size
        other = None if softmax_type == "vanilla" else softmax_type
        refuse({"attention_dropout": attention_dropout, "window_size": window, **options}, "DotProductAttention")
        refuse({"softmax_type": other, "cross attention": attention_type != "self"}, "DotProductAttention")
        self.qkv_format, self.attn_mask_type, self.softmax_scale = qkv_format, attn_mask_type, softmax_scale
        self.cp_comm_type = cp_comm_type
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(self, cp_group: Group, ranks: Any, stream: Any, comm_type: str = "p2p") -> None:
        self.cp_group = cp_group

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        attn_mask_type: str | None = None,
        core_attention_bias_type: str = "no_bias",
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        **options: object,
    ) -> Tensor:
        """Map queries T x Q x D, keys T x K x D, values T x K x V (`thd`) -> T x (Q V); `sbhd` has S x B in place of T.

        T, S: this process's tokens. `cu_seqlens_q` has the bounds of whole sequences, those of all ranks.
        """
        mask = attn_mask_type or self.attn_mask_type
        bias = None if core_attention_bias_type == "no_bias" else core_attention_bias_type
        other = None if mask in CAUSAL else mask
        refuse({"mask": other, "core_attention_bias": bias, **options}, "DotProductAttention")
        if (qkv_format or self.qkv_format) == "thd":
            bounds = cu_seqlens_q if cu_seqlens_q_padded is None else cu_seqlens_q_padded
            assert bounds is not None
            return self._packed(query, key, value, (bounds // size_of(self.cp_group)).tolist())
        rows = [
            self._packed(query[:, row], key[:, row], value[:, row], [0, query.size(0)]) for row in range(query.size(1))
        ]
        return torch.stack(rows, 1)

    def _packed(self, query: Tensor, key: Tensor, value: Tensor, bounds: list[int]) -> Tensor:
        if bounds[-1] != query.size(0):
            raise ValueError(f"sequences of {bounds[-1]} tokens, and {query.size(0)} queries")
        ranks = size_of(self.cp_group)
        if ranks == 1:
            parts = [self._attend(query[a:b], key[a:b], value[a:b]) for a, b in pairwise(bounds)]
            return torch.cat(parts)
        keys, values = (gathered(part, self.cp_group).chunk(ranks) for part in (key, value))
        rank, parts = torch.distributed.get_rank(self.cp_group), []
        for start, end in pairwise(bounds):
            middle = (start + end) // 2
            all_keys, all_values = (_in_order(shares, start, middle, end) for shares in (keys, values))
            for part, place in ((query[start:middle], rank), (query[middle:end], 2 * ranks - 1 - rank)):
                seen = (place + 1) * (middle - start)
                parts.append(self._attend(part, all_keys[:seen], all_values[:seen]))
        return torch.cat(parts)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend within one sequence, of whose last tokens the queries are."""
        own, seen = query.size(0), key.size(0)
        mask = torch.ones(own, seen, dtype=torch.bool).tril(seen - own) if own < seen else None
        grouped = query.size(1) != key.size(1)
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
        output = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=self.softmax_scale, enable_gqa=grouped
        )
        return output.squeeze(0).transpose(0, 1).flatten(1)


def _in_order(shares: tuple[Tensor, ...], start: int, middle: int, end: int) -> Tensor:
    """Join one sequence, of which each rank has its first part before its second."""
    return torch.cat([share[start:middle] for share in shares] + [share[middle:end] for share in reversed(shares)])
