"""The optimizer: AdamW, or Muon for the hidden matrices with AdamW for the rest; and its learning-rate schedule."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import nn

from slime_swe.errors import UserError

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("constant", "linear")


class OptimizerError(UserError):
    """The optimizer can't be configured as asked; the message says what is allowed."""


class PolicyOptimizer:
    """All parameters' optimizers behind one `step`; the learning rate is a function of the step count."""

    def __init__(self, model: nn.Module, args: Namespace) -> None:
        self.base_lr: float = args.lr
        self.schedule: str = getattr(args, "lr_decay_style", "constant")
        self.warmup: int = getattr(args, "lr_warmup_iters", 0) or 0
        self.total_steps: int = args.num_rollout * args.num_steps_per_rollout
        self.steps = 0
        kind = getattr(args, "optimizer", "adamw")
        kind = "adamw" if kind == "adam" else kind
        _require("optimizer", kind, OPTIMIZERS)
        _require("lr_decay_style", self.schedule, SCHEDULES)
        self._optimizers = _build(model, args, kind)

    def learning_rate(self) -> float:
        """The rate of the next step: linear warm-up, then constant or linear decay to zero at the last step."""
        warm = min(1.0, (self.steps + 1) / self.warmup) if self.warmup else 1.0
        left = max(0.0, 1 - self.steps / self.total_steps) if self.schedule == "linear" else 1.0
        return self.base_lr * min(warm, left)

    def step(self) -> None:
        rate = self.learning_rate()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizers": [optimizer.state_dict() for optimizer in self._optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def _build(model: nn.Module, args: Namespace, kind: str) -> list[torch.optim.Optimizer]:
    named = list(model.named_parameters())
    hidden = {name for name, p in named if p.ndim == 2 and "embed" not in name and "lm_head" not in name}
    muon = [p for name, p in named if kind == "muon" and name in hidden]
    rest = [(name, p) for name, p in named if kind == "adamw" or name not in hidden]
    groups = [  # biases and norm scales are not decayed, as in Megatron
        {"params": [p for _, p in rest if p.ndim >= 2], "weight_decay": args.weight_decay},
        {"params": [p for _, p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=args.lr,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_eps,
            fused=True,
        )
    ]
    if (
        muon
    ):  # updates scaled to AdamW's size (Liu et al. 2025, arXiv:2502.16982), so that one learning rate serves both
        optimizers.append(
            torch.optim.Muon(muon, lr=args.lr, weight_decay=args.weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    return optimizers


def _require(name: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise OptimizerError(f"{name} is {given!r}; allowed: {', '.join(allowed)}")
