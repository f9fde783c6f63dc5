"""Feed-forward layers with a gate, and mixtures of them."""

from __future__ import annotations

from dataclasses import dataclass

from slime_swe.recipes.layers import Cut, Layout, Linear, Part, SglangEngine, Shard


def feed_forward(hidden: int, width: int, experts: int = 0) -> tuple[Linear, Linear]:
    """Return the gate and up projection, which are one layer, and the one down."""
    up = Linear("linear_fc1", hidden, 2 * width, fused=2, experts=experts)
    return up, Linear("linear_fc2", width, hidden, experts=experts)


@dataclass(frozen=True)
class GatedFeedForward(Part):
    """A feed-forward network, down(act(gate(x)) * up(x)). width: of the gate."""

    width: int

    def shard(self, layout: Layout) -> Shard:
        return Shard(dense=3 * self.hidden * self.width / layout.tp + self.hidden)

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Add up, beside the norm, gate and up projections (4f), and their product (2f)."""
        return (self.norm_bytes + 6 * self.width) / layout.tp

    def workspace(self, layout: Layout, *, skew: float) -> float:
        return self.gathered_bytes + 6 * self.width / layout.tp

    def trainer_cuts(self) -> tuple[Cut, ...]:
        return (self._width("tp"),)

    def linears(self) -> tuple[Linear, ...]:
        return feed_forward(self.hidden, self.width)

    def served(self, engine: SglangEngine) -> float:
        return self.parameters / engine.dense_gpus

    def prefill(self, engine: SglangEngine) -> float:
        return 6 * self.width / engine.dense_gpus

    def engine_cuts(self) -> tuple[Cut, ...]:
        return (self._width("gpus"),)

    def _width(self, way: str) -> Cut:
        return Cut(way, f"a feed-forward width of {self.width}", self.width)


@dataclass(frozen=True)
class Experts(Part):
    """A router, and experts like `GatedFeedForward` to some of which it sends each token.

    experts, chosen: experts of the layer, and to how many of them one token goes.
    width: of one expert.
    shared_width: of the expert that every token goes to; 0 is none.
    shared_gate: that expert's output is multiplied with a sigmoid of the token.
    """

    experts: int
    chosen: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False

    @property
    def routed(self) -> int:
        """The number of parameters of all routed experts."""
        return 3 * self.hidden * self.width * self.experts

    def shard(self, layout: Layout) -> Shard:
        """Norm, router and gate are on every GPU; the shared expert is cut as other layers are, by tp."""
        replicated = self.hidden * (1 + self.experts + self.shared_gate)
        shared = 3 * self.hidden * self.shared_width / layout.tp
        return Shard(dense=replicated + shared, expert=self.routed / (layout.ep * layout.etp))

    def saved(self, layout: Layout, *, selective: bool, skew: float) -> float:
        """Add up the sorted inputs (2h), gate and up projections (4f) and their product (2f) of each token's top k, the
        router's logits, scores and mask (10 bytes an expert), and the shared expert's 6f and output.

        A rank sends its tokens / tp, k times each, and gets as many back; with etp > 1 it gets those of etp ranks and a
        1/etp of each expert's width. Source: Megatron-LM `core/transformer/moe/token_dispatcher.py` (all-to-all).
        """
        sent = skew * self.chosen * (2 * self.hidden * layout.etp + 6 * self.width)
        shared = 6 * self.shared_width + 2 * self.hidden * self.shared_gate
        return (self.norm_bytes + sent + 10 * self.experts + shared) / layout.tp

    def workspace(self, layout: Layout, *, skew: float) -> float:
        sent = skew * self.chosen * (4 * self.hidden * layout.etp + 6 * self.width)
        return self.gathered_bytes + max(sent, 6 * self.shared_width) / layout.tp

    def trainer_cuts(self) -> tuple[Cut, ...]:
        return Cut("ep", f"{self.experts} experts", self.experts), self._width("etp"), *self._shared("tp")

    def linears(self) -> tuple[Linear, ...]:
        shared = feed_forward(self.hidden, self.shared_width) if self.shared_width else ()
        return *feed_forward(self.hidden, self.width, self.experts), *shared

    def read(self, batch: float) -> float:
        """Count all but the experts that no token of the batch chose: with even routing a share (1 - k/E)^batch of
        them."""
        return self.parameters - float((1 - self.chosen / self.experts) ** batch) * self.routed

    def prefill(self, engine: SglangEngine) -> float:
        return self.chosen * (4 * self.hidden + 6 * self.width / engine.gpus)

    def engine_cuts(self) -> tuple[Cut, ...]:
        return self._width("expert"), *self._shared("gpus")

    @property
    def active(self) -> int:
        return self.parameters - self.routed * (self.experts - self.chosen) // self.experts

    def _width(self, way: str) -> Cut:
        return Cut(way, f"an expert's width of {self.width}", self.width)

    def _shared(self, way: str) -> tuple[Cut, ...]:
        what = f"a shared expert's width of {self.shared_width}"
        return (Cut(way, what, self.shared_width),) if self.shared_width else ()
