"""The optimizer, AdamW, and its learning-rate schedule."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import nn

from slime_swe.errors import UserError

SCHEDULES = ("constant", "linear")


class OptimizerError(UserError):
    """The optimizer can't be configured as asked; the message says what is allowed."""


class PolicyOptimizer:
    """AdamW over all parameters; the learning rate is a function of the step count."""

    def __init__(self, model: nn.Module, args: Namespace) -> None:
        self.base_lr: float = args.lr
        self.schedule: str = getattr(args, "lr_decay_style", "constant")
        self.warmup: int = getattr(args, "lr_warmup_iters", 0) or 0
        self.total_steps: int = args.num_rollout * args.num_steps_per_rollout
        self.steps = 0
        if self.schedule not in SCHEDULES:
            raise OptimizerError(f"lr_decay_style is {self.schedule!r}; allowed: {', '.join(SCHEDULES)}")
        groups = [  # biases and norm scales are not decayed, as in Megatron
            {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": args.weight_decay},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        betas = (args.adam_beta1, args.adam_beta2)
        self._optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=betas, eps=args.adam_eps, fused=True)

    def learning_rate(self) -> float:
        """The rate of the next step: linear warm-up, then constant or linear decay to zero at the last step."""
        warm = min(1.0, (self.steps + 1) / self.warmup) if self.warmup else 1.0
        left = max(0.0, 1 - self.steps / self.total_steps) if self.schedule == "linear" else 1.0
        return self.base_lr * min(warm, left)

    def step(self) -> None:
        rate = self.learning_rate()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self._optimizer.load_state_dict(state["optimizer"])
