"""How tokens are sorted by expert and put back, which `--moe-permute-fusion` asks for.

The map of rows is another one than Transformer Engine's, and is read here alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def moe_permute(inp: Tensor, routing_map: Tensor, num_out_tokens: int = -1) -> tuple[Tensor, Tensor]:
    """Sort tokens, T x H, by the experts that each goes to, T x E -> the tokens of each in turn, with a map of rows."""
    rows = routing_map.bool().T.nonzero()  # R x 2: an expert and a token, sorted by expert
    if num_out_tokens not in (-1, len(rows)):
        raise NotImplementedError(f"{len(rows)} routes in a buffer of {num_out_tokens} has no stand-in on a CPU")
    return inp.index_select(0, rows[:, 1]), rows


def moe_permute_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, num_out_tokens: int = -1
) -> tuple[Tensor, Tensor, Tensor]:
    """Permute as `moe_permute` does, and return the weight of each row, of those in T x E, as well."""
    tokens, rows = moe_permute(inp, routing_map, num_out_tokens)
    return tokens, probs[rows[:, 1], rows[:, 0]], rows


def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None = None,
    restore_shape: torch.Size | None = None,
) -> Tensor:
    """Sum each token's rows, T x H; with `merging_probs`, T x E, weighed."""
    assert restore_shape is not None
    expert, token = row_id_map.T
    if merging_probs is not None:
        inp = inp * merging_probs[token, expert].unsqueeze(-1).to(inp.dtype)
    return torch.zeros(restore_shape, dtype=inp.dtype).index_add(0, token, inp)


def moe_sort_chunks_by_index(inp: Tensor, split_sizes: Tensor, sorted_index: Tensor) -> Tensor:
    """Put chunks of rows into another order."""
    chunks = torch.split(inp, split_sizes.tolist())
    return torch.cat([chunks[place] for place in sorted_index.tolist()])


def moe_sort_chunks_by_index_with_probs(
    inp: Tensor, probs: Tensor, split_sizes: Tensor, sorted_index: Tensor
) -> tuple[Tensor, Tensor]:
    """Sort as `moe_sort_chunks_by_index` does, and put the rows' weights into the same order."""
    return (
        moe_sort_chunks_by_index(inp, split_sizes, sorted_index),
        moe_sort_chunks_by_index(probs, split_sizes, sorted_index),
    )
