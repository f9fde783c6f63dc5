"""The GRPO policy loss over the sampled tokens of a batch.

A batch is flat: N sampled tokens, whatever samples they came from. `weight_N[i]` is 1 / (trained tokens of token i's
rollout x rollouts in the global batch), so that a plain weighted sum is the mean over *rollouts* of each rollout's mean
over its trained tokens, and partial sums over micro-batches add up to it.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

import torch
from torch import Tensor

from slime_swe.errors import UserError

KL_TYPES = ("k1", "k2", "k3", "low_var_kl")


class LossError(UserError):
    """The loss can't be configured as asked; the message says what is allowed."""


@dataclass(frozen=True)
class LossConfig:
    """What the loss is made of. `kl_coef` 0 leaves the reference policy out; `tis_clip` None leaves out importance
    sampling between server and trainer."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    kl_type: str = "low_var_kl"
    entropy_coef: float = 0.0
    tis_clip: float | None = None
    tis_clip_low: float = 0.0

    def __post_init__(self) -> None:
        if self.kl_type not in KL_TYPES:
            raise LossError(f"kl_loss_type is {self.kl_type!r}; allowed: {', '.join(KL_TYPES)}")
        if not 0 <= self.clip_low < 1 or self.clip_high < 0:
            raise LossError(
                f"eps_clip is {self.clip_low} and eps_clip_high {self.clip_high}; the ratio is clipped to "
                "[1 - eps_clip, 1 + eps_clip_high], so give 0 <= eps_clip < 1 and eps_clip_high >= 0"
            )

    @classmethod
    def from_args(cls, args: Namespace) -> LossConfig:
        """Read SLiME's own argument names."""
        return cls(
            clip_low=args.eps_clip,
            clip_high=args.eps_clip if args.eps_clip_high is None else args.eps_clip_high,
            kl_coef=args.kl_loss_coef if args.use_kl_loss else 0.0,
            kl_type=args.kl_loss_type,
            entropy_coef=args.entropy_coef,
            tis_clip=args.tis_clip if args.use_tis else None,
            tis_clip_low=getattr(args, "tis_clip_low", 0.0),  # SLiME's default, which recipes leave as it is
        )

    @property
    def is_pure_policy_gradient(self) -> bool:
        """Whether a token of zero advantage adds nothing to the gradient."""
        return self.kl_coef == 0 and self.entropy_coef == 0


@dataclass(frozen=True)
class Actions:
    """What is known of N sampled tokens before the forward pass; every tensor is [N], float but for `on_policy`, and
    carries no gradient.

    `old` is the policy that the ratio is taken against (the server's log-probabilities, or the trainer's at the start
    of the step); `rollout` is what the server reported; `reference` is the KL's frozen policy. `on_policy` is
    true where the policy is still the old one: the exact values of `old` then replace the forward pass's, not its
    gradients.
    """

    old: Tensor
    rollout: Tensor
    advantage: Tensor
    weight: Tensor
    reference: Tensor | None = None
    on_policy: Tensor | None = None


def policy_loss(
    log_probs_N: Tensor, entropy_N: Tensor, actions: Actions, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The scalar loss and its parts, detached, each reduced by `actions.weight`.

    PPO's clipped surrogate (Schulman et al. 2017, eq. 7) with separate lower and upper clips (DAPO, Yu et al. 2025,
    eq. 10) and group-relative advantages (GRPO, Shao et al. 2024); truncated importance sampling multiplies it by
    clamp(pi_old / pi_rollout) (Yao et al. 2025).
    """
    if actions.on_policy is not None:
        correction_N = torch.where(actions.on_policy, actions.old - log_probs_N, 0.0)
        log_probs_N = log_probs_N + correction_N.detach()
    log_ratio = log_probs_N - actions.old
    ratio = log_ratio.exp()
    surrogate = -ratio * actions.advantage
    clipped = -ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * actions.advantage
    token_loss = torch.maximum(surrogate, clipped)
    if config.tis_clip is not None:
        mismatch = (actions.old - actions.rollout).exp()
        token_loss = token_loss * mismatch.clamp(config.tis_clip_low, config.tis_clip)
    parts = {
        "pg_loss": _reduce(token_loss, actions),
        "entropy": _reduce(entropy_N, actions),
        "clip_fraction": _reduce((clipped > surrogate).to(ratio.dtype), actions),
        "ratio": _reduce(ratio, actions),
        "kl_to_old": _reduce(-log_ratio, actions),
    }
    loss = parts["pg_loss"]
    if config.entropy_coef:
        loss = loss - config.entropy_coef * parts["entropy"]
    if config.kl_coef:
        parts["kl_loss"] = _reduce(kl_estimate(log_probs_N, actions.reference, config.kl_type), actions)
        loss = loss + config.kl_coef * parts["kl_loss"]
    return loss, {"loss": loss.detach()} | {name: value.detach() for name, value in parts.items()}


def kl_estimate(log_probs_N: Tensor, reference_N: Tensor | None, kind: str) -> Tensor:
    """Per-token estimate of KL(policy || reference) by samples of the policy: http://joschu.net/blog/kl-approx.html."""
    if reference_N is None:
        raise LossError("a KL penalty needs the reference policy's log-probabilities, and none were given")
    log_ratio = log_probs_N - reference_N
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    k3 = torch.expm1(-log_ratio) + log_ratio
    return k3.clamp(-10, 10) if kind == "low_var_kl" else k3


def _reduce(values_N: Tensor, actions: Actions) -> Tensor:
    return (values_N * actions.weight).sum()
