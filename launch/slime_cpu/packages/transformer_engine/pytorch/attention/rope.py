"""Rotary position embedding, which `--apply-rope-fusion` asks for."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def apply_rotary_pos_emb(
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    *,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """Turn each head of `t`, T x H x D (`thd`) or S x B x H x D (`sbhd`), by its token's place.

    freqs: angles of the places, P x 1 x 1 x R, where R is D or less; what is beyond R stays.
    cu_seqlens: for `thd`, bounds of whole sequences, of which this rank of `cp_size` has two parts each.
    """
    if tensor_format == "sbhd":
        return _turn(t, freqs[: t.size(0)], interleaved)
    if tensor_format != "thd" or cu_seqlens is None:
        raise NotImplementedError(f"tensor_format={tensor_format!r} has no stand-in on a CPU")
    parts = []
    for start, end in pairwise((cu_seqlens // cp_size).tolist()):
        parts.append(_turn(t[start:end], _places(freqs, end - start, cp_size, cp_rank)[:, 0], interleaved))
    return torch.cat(parts)


def _places(freqs: Tensor, tokens: int, cp_size: int, cp_rank: int) -> Tensor:
    if cp_size == 1:
        return freqs[:tokens]
    half = tokens // 2
    first, second = cp_rank * half, (2 * cp_size - 1 - cp_rank) * half
    return torch.cat([freqs[first : first + half], freqs[second : second + half]])


def _turn(heads: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    turned, kept = heads[..., : angles.size(-1)], heads[..., angles.size(-1) :]
    if interleaved:
        crossed = torch.stack([-turned[..., 1::2], turned[..., ::2]], -1).flatten(-2)
    else:
        first, second = turned.chunk(2, -1)
        crossed = torch.cat([-second, first], -1)
    output = turned * angles.cos() + crossed * angles.sin()
    return torch.cat([output.to(heads.dtype), kept], -1)
