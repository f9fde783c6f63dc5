"""What a model's layers are made of. A `Part` knows everything that the planner and the rules ask of it.

A kind of part is a frozen dataclass in one file, here or beside the family that has it. Nothing else names a kind: the
planner sums over parts, and the rules compare their `Cut`s with a recipe's sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

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
        """Count the parameters of an adapter beside the layer: a matrix rank x inputs, and one outputs x rank."""
        return rank * (self.inputs + self.outputs)


@dataclass(frozen=True)
class Part:
    """The attention or the feed-forward network of a layer, with the norm before it. Pure arithmetic.

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
        """Count the parameters that one GPU holds."""
        raise NotImplementedError

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Return the bytes per token that the forward pass keeps for the backward pass.

        selective: the core of attention is computed again.
        skew: tokens that the busiest expert-parallel rank gets, over the mean.
        """
        raise NotImplementedError

    def workspace(self, layout: Layout, *, skew: float) -> float:
        """Return the bytes per token that its backward pass takes for a moment."""
        raise NotImplementedError

    def copies(self, layout: Layout) -> int:
        """Count the GPUs that all compute the same."""
        return 1

    def trainer_cuts(self) -> tuple[Cut, ...]:
        return ()

    def linears(self) -> tuple[Linear, ...]:
        """Return the linear layers that may have an adapter."""
        return ()

    def adapters(self, layout: Layout, rank: int, targets: tuple[str, ...]) -> Shard:
        """Count the parameters of adapters of this rank that one GPU holds, of the linear layers with these names."""
        chosen = [linear for linear in self.linears() if linear.name in targets]
        dense = sum(linear.adapter(rank) for linear in chosen if not linear.experts)
        expert = sum(linear.adapter(rank) * linear.experts for linear in chosen)
        return Shard(dense=dense / layout.tp, expert=expert / (layout.ep * layout.etp))

    # In an engine

    def served(self, engine: SglangEngine) -> float:
        """Count the parameters on one GPU."""
        return self.parameters / engine.gpus

    def read(self, batch: float) -> float:
        """Count the parameters that one decoding step of `batch` requests reads, on all GPUs of the engine."""
        return self.parameters

    def cache(self, engine: SglangEngine) -> float:
        """Return the bytes that a token of context takes, on a GPU that holds part of it."""
        return 0.0

    def state(self, engine: SglangEngine) -> float:
        """Return the bytes that a request takes whatever its length, on a GPU that holds part of it."""
        return 0.0

    def prefill(self, engine: SglangEngine) -> float:
        """Return the bytes per token of a prefill chunk for the widest activations, on one GPU."""
        return 0.0

    def engine_cuts(self) -> tuple[Cut, ...]:
        return ()

    # Everywhere

    @cached_property
    def parameters(self) -> int:
        return round(self.shard(ONE_GPU).parameters)

    @property
    def active(self) -> int:
        """The number of parameters that one token is multiplied with."""
        return self.parameters

    def flops(self, length: float) -> float:
        """Count the operations of one token's forward pass in a sequence of `length` tokens, on average."""
        return 2 * self.active

    @property
    def norm_bytes(self) -> int:
        """The bytes of a norm's input and output, a token. Transformer Engine keeps a projection's input before
        gathering."""
        return 2 * WEIGHT_BYTES * self.hidden

    @property
    def gathered_bytes(self) -> int:
        """The bytes of a projection's input, which is not shared out by tp, and of the gradient of it, per token."""
        return 2 * WEIGHT_BYTES * self.hidden


@dataclass(frozen=True)
class Layer:
    attention: Part
    feed_forward: Part

    @property
    def parts(self) -> tuple[Part, Part]:
        return self.attention, self.feed_forward

    def saved(self, layout: Layout, *, recompute: str, skew: float) -> float:
        """Return the bytes per token that the layer keeps: under full recomputation its input alone."""
        if recompute == "full":
            return WEIGHT_BYTES * self.attention.hidden / layout.tp
        return sum(part.saved(layout, selective=recompute == "selective", skew=skew) for part in self.parts)

    def workspace(self, layout: Layout, *, recompute: str, skew: float) -> float:
        """Return the bytes per token that the backward pass takes for a moment: under full recomputation all that the
        layer saves again."""
        widest = max(part.workspace(layout, skew=skew) for part in self.parts)
        if recompute != "full":
            return widest
        again = self.saved(layout, recompute="none", skew=skew)
        return widest + again - self.saved(layout, recompute="full", skew=skew)


# How GPUs share out a model: `Layout` in the trainer, `SglangEngine` in one server, `Cut` what must come out even.
LISTED = 64  # GPUs that a message goes up to


@dataclass(frozen=True)
class Layout:
    """The groups of the trainer's GPUs: tp x pp x cp x dp of them for attention, etp x ep x pp x edp for experts."""

    gpus: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def dp(self) -> int:
        """The number of copies of the model that see different episodes."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def edp(self) -> int:
        """The number of copies of each expert."""
        return self.gpus // (self.etp * self.ep * self.pp)

    def is_whole(self, layers: int, *, experts: bool) -> bool:
        """Say whether the sizes divide what they must for the planner's numbers to mean something."""
        sizes = (self.gpus, self.tp, self.pp, self.cp, self.ep, self.etp)
        if min(sizes) < 1 or self.gpus % (self.tp * self.pp * self.cp) or layers % self.pp:
            return False
        return not experts or self.gpus % (self.etp * self.ep * self.pp) == 0


@dataclass(frozen=True)
class SglangEngine:
    """A copy of the model that samples.

    gpus: that it is spread over, by tensor parallelism.
    dp_attention: each GPU attends for its own requests, with whole attention weights and tables of the vocabulary.
    mixture: of experts; its feed-forward layers without any are whole too where attention is.
    """

    gpus: int = 1
    dp_attention: bool = False
    mixture: bool = False

    @property
    def attention_gpus(self) -> int:
        """The number of GPUs that attend to one request together."""
        return 1 if self.dp_attention else self.gpus

    @property
    def dense_gpus(self) -> int:
        """The number of GPUs that share a feed-forward layer without experts."""
        return self.attention_gpus if self.mixture else self.gpus


@dataclass(frozen=True)
class Shard:
    """The parameters that one GPU of the trainer holds, of routed experts and of all else."""

    dense: float = 0.0
    expert: float = 0.0

    @property
    def parameters(self) -> float:
        return self.dense + self.expert


ONE_GPU, ONE_SERVER = Layout(), SglangEngine()


@dataclass(frozen=True)
class Cut:
    """A dimension that GPUs share out evenly.

    way: who shares it. In the trainer `tp`, `ep` or `etp`; in an engine `attention` (its GPUs, or one of them with
        `dp_attention`), `gpus`, or `expert` (the GPUs that share one expert).
    what: in words, for a message.
    whole: the number that their number must divide.
    copied: a number that theirs must divide or be a multiple of: where there are more GPUs, they hold copies.
    """

    way: str
    what: str
    whole: int
    copied: int = 1

    def allows(self, gpus: int) -> bool:
        return self.whole % gpus == 0 and (self.copied % gpus == 0 or gpus % self.copied == 0)


def legal_sizes(cuts: tuple[Cut, ...]) -> list[int]:
    """List the numbers of GPUs that all of these cuts allow, up to `LISTED`."""
    return [gpus for gpus in range(1, LISTED + 1) if all(cut.allows(gpus) for cut in cuts)]


@dataclass(frozen=True)
class Shape:
    """A decoder, as its family reads it: an embedding table, layers, a last norm, and an output projection.

    hidden: hidden size.
    vocab: rows of the embedding table, its padding in the checkpoint included.
    tied: the output projection is the embedding table.
    max_context: tokens that the checkpoint was trained for.
    layers: in order.
    megatron: attribute of SLiME's and Megatron's `args` -> value, of all that the model is built from, its vocabulary's
        padding left out.
    """

    hidden: int
    vocab: int
    tied: bool
    max_context: int
    layers: tuple[Layer, ...]
    megatron: Mapping[str, Any]

    @property
    def table(self) -> int:
        """The number of parameters of the embedding table."""
        return self.vocab * self.hidden

    @property
    def tables(self) -> int:
        """The number of vocabulary tables: one where the output projection is the embedding table, else two."""
        return 1 if self.tied else 2

    @cached_property
    def kinds(self) -> Counter[Layer]:
        """The different layers, and how many of each there are."""
        return Counter(self.layers)

    def stage(self, stage: int, pp: int) -> Counter[Layer]:
        """Return the layers of one of `pp` equal pipeline stages."""
        count = len(self.layers) // pp
        return self.kinds if pp == 1 else Counter(self.layers[stage * count : (stage + 1) * count])

    def total(self, amount: Callable[[Part], float]) -> float:
        """Sum an amount over all parts of all layers."""
        return summed(self.kinds, amount)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The different parts, each once."""
        return tuple(dict.fromkeys(part for layer in self.kinds for part in layer.parts))

    @cached_property
    def parameters(self) -> int:
        """The number of all weights of the model."""
        return int(self.total(lambda part: part.parameters)) + self.tables * self.table + self.hidden

    @cached_property
    def active_parameters(self) -> int:
        """The number of weights that one token meets."""
        return int(self.total(lambda part: part.active)) + self.tables * self.table + self.hidden

    @cached_property
    def experts(self) -> int:
        """The number of routed experts of a layer; 0 is a dense model."""
        return max((cut.whole for cut in self.trainer_cuts("ep")), default=0)

    def cache(self, engine: SglangEngine) -> float:
        """Return the bytes that a token of context takes, on a GPU of the engine that holds part of it."""
        return self.total(lambda part: part.cache(engine))

    def state(self, engine: SglangEngine) -> float:
        """Return the bytes that a request takes, whatever its length, on a GPU of the engine that holds part of it."""
        return self.total(lambda part: part.state(engine))

    def trainer_cuts(self, way: str) -> tuple[Cut, ...]:
        """Return what GPUs of the trainer share out by `way`: `tp`, `ep` or `etp`."""
        return _cuts(way, (cut for part in self.parts for cut in part.trainer_cuts()))

    def engine_cuts(self, way: str) -> tuple[Cut, ...]:
        """Return what GPUs of an engine share out by `way`: `attention`, `gpus` or `expert`."""
        return _cuts(way, (cut for part in self.parts for cut in part.engine_cuts()))


def summed(layers: Mapping[Layer, int], amount: Callable[[Part], float]) -> float:
    """Sum an amount over the parts of some layers, each as often as it is there."""
    return sum(count * amount(part) for layer, count in layers.items() for part in layer.parts)


def _cuts(way: str, cuts: Iterable[Cut]) -> tuple[Cut, ...]:
    return tuple(dict.fromkeys(cut for cut in cuts if cut.way == way))
