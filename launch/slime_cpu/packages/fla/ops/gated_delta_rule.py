"""The gated delta rule (Gated DeltaNet, arXiv:2412.06464), some tokens at once.

A head's state S, K x V, is a memory of values by keys. Each token lets it decay by exp(g), reads what it holds for the
key, writes the difference to the token's value, weighed by beta, and is answered by what it holds for the query:

    S <- exp(g) S;    d = beta (v - k S);    S <- S + k d;    o = scale q S

Tokens of one chunk depend on each other by what they write, d, which is the solution of a triangular system.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

CHUNK = 64  # tokens


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Apply the rule: q and k, B x T x H x K, v, B x T x H x V, g and beta, B x T x H -> B x T x H x V, computed in
    float32 at least.

    cu_seqlens: bounds of the sequences in one row; without it each row is one.
    """
    if initial_state is not None or output_final_state:
        raise NotImplementedError("states of the gated delta rule have no stand-in on a CPU")
    kind = torch.promote_types(q.dtype, torch.float32)
    q_, k_, v_, g_, beta_ = (part.to(kind).transpose(1, 2) for part in (q, k, v, g, beta))  # B x H x T ...
    if use_qk_l2norm_in_kernel:
        q_, k_ = _unit(q_), _unit(k_)
    q_ = q_ * (q.size(-1) ** -0.5 if scale is None else scale)
    bounds = [0, q.size(1)] if cu_seqlens is None else cu_seqlens.tolist()
    outputs = []
    for start, end in pairwise(bounds):
        state = q_.new_zeros(*q_.shape[:2], k.size(-1), v.size(-1))
        for first in range(start, end, CHUNK):
            here = slice(first, min(first + CHUNK, end))
            output, state = _chunk(
                q_[:, :, here], k_[:, :, here], v_[:, :, here], g_[:, :, here], beta_[:, :, here], state
            )
            outputs.append(output)
    return torch.cat(outputs, 2).transpose(1, 2).to(v.dtype), None


def _unit(vectors: Tensor) -> Tensor:
    return vectors * (vectors.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def _chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the chunk's outputs, ... x C x V, and the state after it."""
    passed = g.cumsum(-1)  # ... x C: the logarithm of what is left of the state before the chunk
    later = torch.ones(g.size(-1), g.size(-1), dtype=torch.bool).triu(1)
    left = (passed.unsqueeze(-1) - passed.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()  # of row's, at column
    remains = passed.exp().unsqueeze(-1)
    weight = beta.unsqueeze(-1)
    others = weight * left * (k @ k.mT)
    written = torch.linalg.solve_triangular(
        others.tril(-1), weight * (v - remains * (k @ state)), upper=False, unitriangular=True
    )
    output = remains * (q @ state) + (left * (q @ k.mT)) @ written
    to_end = (passed[..., -1:] - passed).exp().unsqueeze(-1)
    return output, remains[..., -1:, :] * state + (to_end * k).mT @ written
