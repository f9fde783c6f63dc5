"""Sums of products that come out the same in whatever order they are added, because no addition in them rounds.

Float64 holds integers up to 2**53. `snap` puts a vector on a grid of 26 bits below its length: it becomes a vector of
integers, of length at most 2**26, times a power of two. By Cauchy and Schwarz every partial sum of the products of two
such vectors is then an integer of at most 2**52, and exact. So a matrix product gives a row the same bits whatever the
other rows, the library, its kernels, their tiling, fused multiplication or the number of threads.

The grid is as fine as float32's for the vector's largest elements. Adding anything else (a bias, a residual) is one
rounded operation by itself, after the product.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 26
EXPONENT = 0x7FF << 52  # of a float64


def snap(x: Tensor) -> Tensor:
    """Vectors along the last dimension, float64, each rounded to multiples of 2**-BITS of its length."""
    return snap_to(x, grid(torch.linalg.vector_norm(x, dim=-1, keepdim=True)))


def grid(length: Tensor) -> Tensor:
    """The number to add and take away again, so that numbers are rounded to 2**-BITS of `length` (at most twice that).

    Float64 numbers of its size are that far apart.
    """
    power_of_two = (length.view(torch.int64) & EXPONENT).view(torch.float64)  # above half of the length
    return power_of_two * float(3 << (52 - BITS))


def snap_to(x: Tensor, grid: Tensor) -> Tensor:
    return (x + grid).sub_(grid)
