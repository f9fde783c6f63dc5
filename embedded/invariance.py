"""An alarm: does this machine compute what `exact.py` promises? Single operations, checked when the server starts.

No BLAS or CPU is known on which it does not. Where it fails, the server still works; two runs with one seed may then
differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from slime_swe.embedded.exact import snap
from slime_swe.embedded.model import ModelConfig

ROWS = (1, 2, 3, 5, 8, 16, 33, 100)  # of a product; kernels differ by it


def is_batch_invariant(config: ModelConfig) -> bool:
    """Whether, for the model's sizes, a row's bits depend neither on the number of rows nor on the order of sums."""
    return all(holds for _, holds in check_operations(config))


def check_operations(config: ModelConfig) -> Iterator[tuple[str, bool]]:
    """Each operation's name and whether it passes."""
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
    """Whether fewer rows, other columns and another order of summation give the same bits."""
    whole = left @ right.T
    order = torch.arange(left.shape[1] - 1, -1, -1)
    equal = torch.equal(whole, left[:, order] @ right[:, order].T)
    return equal and all(
        torch.equal(whole[-rows:, :columns], left[-rows:] @ right[:columns].T) for rows in ROWS for columns in ROWS
    )
