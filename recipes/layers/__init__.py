"""What a model's layers are made of. A `Part` knows everything that the planner and the rules ask of it.

A kind of part is a frozen dataclass in one file, here or beside the family that has it. Nothing else names a kind: the
planner sums over parts, and the rules compare their `Cut`s with a recipe's sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from slime_swe.recipes.layout import ONE_GPU, Cut, Layout, SglangEngine, Shard

WEIGHT_BYTES = 2  # bf16, of activations too


@dataclass(frozen=True)
class Linear:
    """A linear layer by Megatron's name. fused: projections of the same input that it is made of. experts: how many
    routed experts have one each; 0 if it is no expert's."""

    name: str
    inputs: int
    outputs: int
    fused: int = 1
    experts: int = 0

    def adapter(self, rank: int) -> int:
        """Parameters of an adapter beside one: a matrix rank x inputs, and one outputs x rank."""
        return rank * (self.inputs + self.outputs)


@dataclass(frozen=True)
class Part:
    """Attention, or a feed-forward layer, with the norm before it. Pure arithmetic.

    context_parallel_init: dotted path of a function that SLiME's trainer calls under context parallelism, before it
        builds the model (`--custom-megatron-init-path`); empty for none.
    hidden: size of its input and its output.

    Bytes "a token" are for each token of a micro-batch on one GPU (`parallel.max_tokens_per_gpu`), of which there are
    1/cp of an episode's. A part that is not shared out over tensor or context parallel ranks says so by not dividing.
    """

    context_parallel_init: ClassVar[str] = ""
    hidden: int

    # In the trainer

    def shard(self, layout: Layout) -> Shard:
        """Parameters that one GPU holds."""
        raise NotImplementedError

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Bytes a token that the forward pass keeps for the backward pass.

        selective: the core of attention is computed again.
        skew: tokens that the busiest expert-parallel rank gets, over the mean.
        """
        raise NotImplementedError

    def workspace(self, layout: Layout, *, skew: float) -> float:
        """Bytes a token that its backward pass takes for a moment."""
        raise NotImplementedError

    def copies(self, layout: Layout) -> int:
        """GPUs that all compute the same."""
        return 1

    def trainer_cuts(self) -> tuple[Cut, ...]:
        return ()

    def linears(self) -> tuple[Linear, ...]:
        """Those that may have an adapter."""
        return ()

    def adapters(self, layout: Layout, rank: int, targets: tuple[str, ...]) -> Shard:
        """Parameters of adapters of this rank that one GPU holds, of the linear layers with these names."""
        chosen = [linear for linear in self.linears() if linear.name in targets]
        dense = sum(linear.adapter(rank) for linear in chosen if not linear.experts)
        expert = sum(linear.adapter(rank) * linear.experts for linear in chosen)
        return Shard(dense=dense / layout.tp, expert=expert / (layout.ep * layout.etp))

    # In an engine

    def served(self, engine: SglangEngine) -> float:
        """Parameters on one GPU."""
        return self.parameters / engine.gpus

    def read(self, batch: float) -> float:
        """Parameters that one decoding step of `batch` requests reads, on all GPUs of the engine."""
        return self.parameters

    def cache(self, engine: SglangEngine) -> float:
        """Bytes that a token of context takes, on a GPU that holds part of it."""
        return 0.0

    def state(self, engine: SglangEngine) -> float:
        """Bytes that a request takes whatever its length, on a GPU that holds part of it."""
        return 0.0

    def prefill(self, engine: SglangEngine) -> float:
        """Bytes a token of a prefill chunk for the widest activations, on one GPU."""
        return 0.0

    def engine_cuts(self) -> tuple[Cut, ...]:
        return ()

    # Everywhere

    @cached_property
    def parameters(self) -> int:
        return round(self.shard(ONE_GPU).parameters)

    @property
    def active(self) -> int:
        """Parameters that one token is multiplied with."""
        return self.parameters

    def flops(self, length: float) -> float:
        """Of one token's forward pass in a sequence of `length` tokens, on average."""
        return 2 * self.active

    @property
    def norm_bytes(self) -> int:
        """The norm's input and output, of one token. Transformer Engine keeps a projection's input before gathering."""
        return 2 * WEIGHT_BYTES * self.hidden

    @property
    def gathered_bytes(self) -> int:
        """A projection's input, which is not shared out by tp, and the gradient of it."""
        return 2 * WEIGHT_BYTES * self.hidden


@dataclass(frozen=True)
class Layer:
    attention: Part
    feed_forward: Part

    @property
    def parts(self) -> tuple[Part, Part]:
        return self.attention, self.feed_forward

    def saved(self, layout: Layout, *, recompute: str, skew: float) -> float:
        """Bytes a token: under full recomputation the layer's input alone."""
        if recompute == "full":
            return WEIGHT_BYTES * self.attention.hidden / layout.tp
        return sum(part.saved(layout, selective=recompute == "selective", skew=skew) for part in self.parts)

    def workspace(self, layout: Layout, *, recompute: str, skew: float) -> float:
        """Bytes a token that its backward pass takes for a moment: under full recomputation all that it saves again."""
        widest = max(part.workspace(layout, skew=skew) for part in self.parts)
        if recompute != "full":
            return widest
        again = self.saved(layout, recompute="none", skew=skew)
        return widest + again - self.saved(layout, recompute="full", skew=skew)
