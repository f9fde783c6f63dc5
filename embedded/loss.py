"""The policy-gradient loss over the sampled tokens of a batch: GRPO's, GSPO's and CISPO's.

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
from slime_swe.rollout.hooks import is_supervised

KL_TYPES = ("k1", "k2", "k3", "low_var_kl")
ESTIMATORS = ("grpo", "gspo", "cispo")
MISMATCH = {  # --custom-tis-function-path -> how the token's weight is bounded; without one SLiME truncates
    None: "truncate",
    "slime.backends.megatron_utils.loss.icepop_function": "icepop",
}


class LossError(UserError):
    """The loss can't be configured as asked; the message says what is allowed."""


@dataclass(frozen=True)
class LossConfig:
    """The parts of the loss, by the names of a recipe's `algorithm`. `kl_coef` 0 leaves the reference policy out,
    `dual_clip` 0 the third bound, `mismatch` "none" importance sampling between server and trainer. `supervised` is
    SLiME's `sft_loss`, of which the others are no part."""

    estimator: str = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    kl_coef: float = 0.0
    kl_type: str = "low_var_kl"
    entropy_coef: float = 0.0
    mismatch: str = "none"
    mismatch_low: float = 0.0
    mismatch_high: float = 2.0
    supervised: bool = False

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise LossError(f"advantage_estimator is {self.estimator!r}; allowed: {', '.join(ESTIMATORS)}")
        if self.kl_type not in KL_TYPES:
            raise LossError(f"kl_loss_type is {self.kl_type!r}; allowed: {', '.join(KL_TYPES)}")
        if not 0 <= self.clip_low <= 1 or self.clip_high < 0:
            raise LossError(
                f"eps_clip is {self.clip_low} and eps_clip_high {self.clip_high}; the ratio is clipped to "
                "[1 - eps_clip, 1 + eps_clip_high], so give 0 <= eps_clip <= 1 and eps_clip_high >= 0"
            )

    @classmethod
    def from_args(cls, args: Namespace) -> LossConfig:
        """Read SLiME's own argument names."""
        function = getattr(args, "custom_tis_function_path", None)
        if args.use_tis and function not in MISMATCH:
            raise LossError(f"custom_tis_function_path is {function!r}; allowed: {', '.join(filter(None, MISMATCH))}")
        return cls(
            estimator=args.advantage_estimator,
            clip_low=args.eps_clip,
            clip_high=args.eps_clip if args.eps_clip_high is None else args.eps_clip_high,
            dual_clip=args.eps_clip_c or 0.0,
            kl_coef=args.kl_loss_coef if args.use_kl_loss else 0.0,
            kl_type=args.kl_loss_type,
            entropy_coef=args.entropy_coef,
            mismatch=MISMATCH[function] if args.use_tis else "none",
            mismatch_low=args.tis_clip_low,
            mismatch_high=args.tis_clip,
            supervised=is_supervised(args),
        )

    @property
    def is_pure_policy_gradient(self) -> bool:
        """True where a token of zero advantage adds nothing to the gradient."""
        return self.kl_coef == 0 and self.entropy_coef == 0 and not self.supervised


@dataclass(frozen=True)
class Actions:
    """N sampled tokens as they are known before the forward pass; every tensor is [N], float but for `on_policy`, and
    carries no gradient.

    `old` is the policy that the ratio is taken against (the server's log-probabilities, or the trainer's at the start
    of the step); `rollout` is what the server reported; `reference` is the KL's frozen policy. `on_policy` is
    true where the policy is still the old one: the exact values of `old` then replace the forward pass's, not its
    gradients. `sequence` numbers the training sequence of each token, whose ratio is GSPO's.
    """

    old: Tensor
    rollout: Tensor
    advantage: Tensor
    weight: Tensor
    reference: Tensor | None = None
    on_policy: Tensor | None = None
    sequence: Tensor | None = None


def policy_loss(
    log_probs_N: Tensor, entropy_N: Tensor, actions: Actions, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the scalar loss and its parts, detached, each reduced by `actions.weight`.

    It is the clipped surrogate of group-relative advantages (GRPO, arXiv:2402.03300, eq. 3), times the weight that
    corrects for a server whose probabilities are not the trainer's.
    """
    if actions.on_policy is not None:
        correction_N = torch.where(actions.on_policy, actions.old - log_probs_N, 0.0)
        log_probs_N = log_probs_N + correction_N.detach()
    log_ratio = log_probs_N - actions.old
    if config.estimator == "gspo":
        log_ratio = _sequence_mean(log_ratio, actions.sequence)
    ratio = log_ratio.exp()
    token_loss, clipped = _surrogate(ratio, log_probs_N, actions.advantage, config)
    if config.mismatch != "none":
        token_loss = token_loss * _mismatch_weight(actions, config)
    parts = {
        "pg_loss": _reduce(token_loss, actions),
        "entropy": _reduce(entropy_N, actions),
        "clip_fraction": _reduce(clipped.to(ratio.dtype), actions),
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


def supervised_loss(log_probs_N: Tensor, entropy_N: Tensor, weight_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the cross entropy of recorded tokens, and its parts, detached: with 1 / N as weight their mean."""
    loss = -(log_probs_N * weight_N).sum()
    return loss, {"loss": loss.detach(), "entropy": (entropy_N * weight_N).sum().detach()}


def _surrogate(ratio_N: Tensor, log_probs_N: Tensor, advantage_N: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Return each token's loss, and whether its ratio was clipped.

    The loss is PPO's (arXiv:1707.06347, eq. 7) with bounds of their own on each side (DAPO, arXiv:2503.14476, eq. 10),
    and a third one where the advantage is negative (dual clip, arXiv:1912.09729). CISPO's (arXiv:2506.13585, eq. 4 and
    5) takes the clipped ratio as a weight without a gradient.
    """
    within = ratio_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    if config.estimator == "cispo":
        return -within.detach() * advantage_N * log_probs_N, within != ratio_N
    surrogate, clipped = -ratio_N * advantage_N, -within * advantage_N
    loss = torch.maximum(surrogate, clipped)
    if config.dual_clip:
        loss = torch.where(advantage_N < 0, torch.minimum(loss, -config.dual_clip * advantage_N), loss)
    return loss, clipped > surrogate


def _sequence_mean(values_N: Tensor, sequence_N: Tensor | None) -> Tensor:
    """Replace each value by its sequence's mean; of log ratios that is the log of GSPO's (arXiv:2507.18071, eq. 7)."""
    if sequence_N is None:
        raise LossError("gspo takes the ratio of a sequence, and no numbers of sequences were given")
    _, place_N = torch.unique(sequence_N, return_inverse=True)
    tokens = torch.bincount(place_N)
    sums = values_N.new_zeros(len(tokens)).index_add(0, place_N, values_N)
    return (sums / tokens)[place_N]


def _mismatch_weight(actions: Actions, config: LossConfig) -> Tensor:
    """Return pi_old / pi_rollout, held within the bounds (truncated importance sampling,
    fengyao.notion.site/off-policy-rl) or 0 out of them (IcePop, ringtech.notion.site/icepop)."""
    ratio = (actions.old - actions.rollout).exp()
    if config.mismatch == "truncate":
        return ratio.clamp(config.mismatch_low, config.mismatch_high)
    return torch.where((ratio >= config.mismatch_low) & (ratio <= config.mismatch_high), ratio, 0.0)


def kl_estimate(log_probs_N: Tensor, reference_N: Tensor | None, kind: str) -> Tensor:
    """Estimate KL(policy || reference) per token by samples of the policy: http://joschu.net/blog/kl-approx.html."""
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
