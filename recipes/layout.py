"""How GPUs share out a model: `Layout` in the trainer, `SglangEngine` in one server, `Cut` what must come out even."""

from __future__ import annotations

from dataclasses import dataclass

LISTED = 64  # GPUs that a message goes up to


@dataclass(frozen=True)
class Layout:
    """How the trainer's GPUs are grouped: tp x pp x cp x dp of them for attention, etp x ep x pp x edp for experts."""

    gpus: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def dp(self) -> int:
        """Copies of the model that see different episodes."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def edp(self) -> int:
        """Copies of each expert."""
        return self.gpus // (self.etp * self.ep * self.pp)

    def is_whole(self, layers: int, *, experts: bool) -> bool:
        """Whether the sizes divide what they must for the planner's numbers to mean something."""
        sizes = (self.gpus, self.tp, self.pp, self.cp, self.ep, self.etp)
        if min(sizes) < 1 or self.gpus % (self.tp * self.pp * self.cp) or layers % self.pp:
            return False
        return not experts or self.gpus % (self.etp * self.ep * self.pp) == 0


@dataclass(frozen=True)
class SglangEngine:
    """One copy of the model that samples.

    gpus: that it is spread over, by tensor parallelism.
    dp_attention: each GPU attends for its own requests, with whole attention weights and tables of the vocabulary.
    mixture: of experts; its feed-forward layers without any are whole too where attention is.
    """

    gpus: int = 1
    dp_attention: bool = False
    mixture: bool = False

    @property
    def attention_gpus(self) -> int:
        """That attend to one request together."""
        return 1 if self.dp_attention else self.gpus

    @property
    def dense_gpus(self) -> int:
        """That share a feed-forward layer without experts."""
        return self.attention_gpus if self.mixture else self.gpus


@dataclass(frozen=True)
class Shard:
    """Parameters that one GPU of the trainer holds, of routed experts and of all else."""

    dense: float = 0.0
    expert: float = 0.0

    @property
    def parameters(self) -> float:
        return self.dense + self.expert


ONE_GPU, ONE_SERVER = Layout(), SglangEngine()


@dataclass(frozen=True)
class Cut:
    """What GPUs share out evenly.

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
    """The numbers of GPUs that all of these allow, up to `LISTED`."""
    return [gpus for gpus in range(1, LISTED + 1) if all(cut.allows(gpus) for cut in cuts)]
