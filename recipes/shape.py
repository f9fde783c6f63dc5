"""`Shape`: what a `config.json` says of a model, as its family reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slime_swe.recipes.layers import Layer, Part
from slime_swe.recipes.layout import Cut, SglangEngine


@dataclass(frozen=True)
class Shape:
    """A decoder: an embedding table, layers, a last norm, and an output projection.

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
        """Parameters of the embedding table."""
        return self.vocab * self.hidden

    @property
    def tables(self) -> int:
        """How many such tables the model has."""
        return 1 if self.tied else 2

    @cached_property
    def kinds(self) -> Counter[Layer]:
        """Each different layer, and how many of it there are."""
        return Counter(self.layers)

    def stage(self, stage: int, pp: int) -> Counter[Layer]:
        """The layers of one of `pp` equal pipeline stages."""
        count = len(self.layers) // pp
        return self.kinds if pp == 1 else Counter(self.layers[stage * count : (stage + 1) * count])

    def total(self, amount: Callable[[Part], float]) -> float:
        """The sum over all parts of all layers."""
        return summed(self.kinds, amount)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Each different part once."""
        return tuple(dict.fromkeys(part for layer in self.kinds for part in layer.parts))

    @cached_property
    def parameters(self) -> int:
        """All weights of the model."""
        return int(self.total(lambda part: part.parameters)) + self.tables * self.table + self.hidden

    @cached_property
    def active_parameters(self) -> int:
        """Weights that one token meets."""
        return int(self.total(lambda part: part.active)) + self.tables * self.table + self.hidden

    @cached_property
    def experts(self) -> int:
        """Routed experts of a layer; 0 is a dense model."""
        return max((cut.whole for cut in self.trainer_cuts("ep")), default=0)

    def cache(self, engine: SglangEngine) -> float:
        """Bytes that a token of context takes, on a GPU of the engine that holds part of it."""
        return self.total(lambda part: part.cache(engine))

    def state(self, engine: SglangEngine) -> float:
        """Bytes that a request takes there whatever its length."""
        return self.total(lambda part: part.state(engine))

    def trainer_cuts(self, way: str) -> tuple[Cut, ...]:
        """What GPUs of the trainer share out by `way`: `tp`, `ep` or `etp`."""
        return _cuts(way, (cut for part in self.parts for cut in part.trainer_cuts()))

    def engine_cuts(self, way: str) -> tuple[Cut, ...]:
        """What GPUs of an engine share out by `way`: `attention`, `gpus` or `expert`."""
        return _cuts(way, (cut for part in self.parts for cut in part.engine_cuts()))


def summed(layers: Mapping[Layer, int], amount: Callable[[Part], float]) -> float:
    """The sum over the parts of some layers, each as often as it is there."""
    return sum(count * amount(part) for layer, count in layers.items() for part in layer.parts)


def _cuts(way: str, cuts: Iterable[Cut]) -> tuple[Cut, ...]:
    return tuple(dict.fromkeys(cut for cut in cuts if cut.way == way))
