"""Layers of the stand-in for Transformer Engine on two ranks of gloo, beside one.

    PYTHONPATH=launch/slime_cpu/packages:src python tests/launch/slime_cpu/two_ranks.py FOLDER

Prints a line of JSON: what was dealt to two ranks -> how far its outputs and gradients are from those of one.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformer_engine.pytorch import DotProductAttention, LayerNormLinear, Linear, RMSNorm

from slime_swe.launch.slime.linear_attention import summed_backward

sys.path.insert(0, str(Path(__file__).parent))
from forked import run

HIDDEN, HEADS, KEY_HEADS, SIZE, WIDTH = 16, 4, 2, 8, 24
BOUNDS = torch.tensor([0, 8, 32])  # of two packed sequences, which two context-parallel ranks halve twice
Step = dict[str, Tensor]  # name -> output, or gradient of what has that name


class Block(torch.nn.Module):
    """One layer of a decoder as Megatron builds it."""

    def __init__(self, *, tensor: Any = None, context: Any = None, sequence_parallel: bool = False) -> None:
        super().__init__()
        shared = {"tp_group": tensor, "sequence_parallel": sequence_parallel, "bias": True}
        column: dict[str, Any] = {**shared, "parallel_mode": "column", "normalization": "RMSNorm"}
        row: dict[str, Any] = {**shared, "parallel_mode": "row"}
        self.queries = LayerNormLinear(HIDDEN, HEADS * SIZE, **column)
        self.keys = LayerNormLinear(HIDDEN, 2 * KEY_HEADS * SIZE, **column)
        self.attention = DotProductAttention(HEADS, SIZE, KEY_HEADS, qkv_format="thd", cp_group=context)
        self.output = Linear(HEADS * SIZE, HIDDEN, **row)
        self.up = LayerNormLinear(HIDDEN, WIDTH, **column)
        self.down = Linear(WIDTH, HIDDEN, **row)
        self.norm = RMSNorm(HIDDEN, sequence_parallel=sequence_parallel)

    def forward(self, tokens: Tensor) -> Tensor:
        query = self.queries(tokens).unflatten(-1, (-1, SIZE))
        key, value = self.keys(tokens).unflatten(-1, (-1, 2 * SIZE)).chunk(2, -1)
        attended = self.attention(query, key, value, cu_seqlens_q=BOUNDS, attn_mask_type="padding_causal")
        tokens = tokens + self.output(attended)
        return self.norm(tokens + self.down(torch.nn.functional.silu(self.up(tokens))))


def fill(block: Block, rank: int = 0, ranks: int = 1) -> None:
    """The same weights whatever the ranks are: each takes its rows or columns."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            layer = getattr(block, name.split(".")[0])
            axis = _axis(name, layer)
            whole = list(parameter.shape)
            if axis is not None:
                whole[axis] *= ranks
            value = torch.randn(whole, generator=draw)
            parameter.copy_(value if axis is None else value.chunk(ranks, axis)[rank])


def _axis(name: str, layer: Any) -> int | None:
    mode, kind = getattr(layer, "parallel_mode", None), name.split(".")[1]
    if mode is None or kind.startswith("layer_norm"):
        return None
    return 0 if mode == "column" else 1 if kind == "weight" else None


def step(block: Block, tokens: Tensor, weights: Tensor) -> Step:
    tokens = tokens.clone().requires_grad_()
    output = block(tokens)
    (output * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in block.named_parameters()}
    return {"output": output.detach(), "tokens": tokens.grad, **gradients}  # type: ignore[dict-item]


def tensor_parallel(rank: int, tokens: Tensor, weights: Tensor, sequence_parallel: bool) -> Step:
    block = Block(tensor=dist.group.WORLD, sequence_parallel=sequence_parallel)
    fill(block, rank, 2)
    if not sequence_parallel:
        return step(block, tokens, weights)
    found = step(block, tokens.chunk(2)[rank], weights.chunk(2)[rank])
    for name, parameter in block.named_parameters():
        if getattr(parameter, "sequence_parallel", False):  # what Megatron sums at the end of a step
            dist.all_reduce(found[name])
    return found


def context_parallel(rank: int, tokens: Tensor, weights: Tensor) -> Step:
    block = Block(context=dist.group.WORLD)
    fill(block)
    found = step(block, *(zigzag(part, rank) for part in (tokens, weights)))
    for name, _ in block.named_parameters():
        dist.all_reduce(found[name])
    return found


def zigzag(tokens: Tensor, rank: int) -> Tensor:
    parts = [tokens[start:end].chunk(4) for start, end in pairwise(BOUNDS.tolist())]
    return torch.cat([torch.cat([part[rank], part[3 - rank]]) for part in parts])


def together(shares: list[Step], name: str) -> Tensor:
    """Of the two ranks' parts of a parameter."""
    layer, _, kind = name.partition(".")
    columns = layer in ("queries", "keys", "up") and not kind.startswith("layer_norm")
    rows = layer in ("output", "down") and kind == "weight"
    return torch.cat([share[name] for share in shares], 0 if columns else 1) if columns or rows else shares[0][name]


class Gathered(torch.autograd.Function):
    """SLiME's gathering of tokens, with our backward pass in place of its own."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.rank = dist.group.WORLD, dist.get_rank()
        shares = [torch.empty_like(tokens) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, tokens.contiguous())
        return tuple(shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return summed_backward(ctx, *gradients)[0]


def mix(tokens: Tensor, weight: Tensor) -> Tensor:
    """Each token depends on all before it."""
    return torch.tanh(tokens.cumsum(0) @ weight)


def linear_attention(rank: int, tokens: Tensor, weights: Tensor) -> Step:
    weight = torch.eye(HIDDEN).mul(0.1).requires_grad_()
    own = tokens.chunk(2)[rank].clone().requires_grad_()
    output = mix(torch.cat(Gathered.apply(own)), weight).chunk(2)[rank]
    (output * weights.chunk(2)[rank]).sum().backward()
    dist.all_reduce(weight.grad)
    return {"output": output.detach(), "tokens": own.grad, "weight": weight.grad}


def main(folder: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    tokens, weights = torch.randn(2, int(BOUNDS[-1]), HIDDEN, generator=draw)
    block = Block()
    fill(block)
    found: dict[str, float] = {}
    whole = step(block, tokens, weights)
    for name, split in (("tensor parallel", False), ("sequence parallel", True)):
        shares = run(tensor_parallel, 2, folder / name, tokens, weights, split)
        tokenwise = {key: torch.cat([share[key] for share in shares]) if split else shares[0][key] for key in OUTER}
        inner = {key: together(shares, key) for key in whole if key not in OUTER}
        found[name] = gap(whole, tokenwise | inner)
    shares = run(context_parallel, 2, folder / "context", tokens, weights)
    ordered = {key: [zigzag(whole[key], rank) for rank in range(2)] for key in OUTER}
    found["context parallel"] = max(
        gap({key: ordered[key][rank] for key in OUTER} | inner_of(whole), share) for rank, share in enumerate(shares)
    )
    weight = torch.eye(HIDDEN).mul(0.1).requires_grad_()
    leaf = tokens.clone().requires_grad_()
    (mix(leaf, weight) * weights).sum().backward()
    shares = run(linear_attention, 2, folder / "linear", tokens, weights)
    expected = {"output": mix(tokens, weight).detach(), "tokens": leaf.grad}
    halves = {key: torch.cat([share[key] for share in shares]) for key in OUTER}
    found["linear attention"] = gap(
        {**expected, "weight": weight.grad},
        {**halves, "weight": shares[0]["weight"]},  # type: ignore[dict-item]
    )
    print(json.dumps(found))


OUTER = ("output", "tokens")


def inner_of(whole: Step) -> Step:
    return {key: value for key, value in whole.items() if key not in OUTER}


def gap(expected: Step, found: Step) -> float:
    """The largest difference, by the largest value of that tensor."""
    assert expected.keys() == found.keys()
    return max(
        ((found[name] - value).abs().max() / value.abs().max().clamp(min=1e-6)).item()
        for name, value in expected.items()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
