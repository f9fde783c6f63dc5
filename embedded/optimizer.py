"""The optimizer, AdamW, and its learning-rate schedule."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

from slime_swe.errors import UserError

SCHEDULES = ("constant", "linear")


class OptimizerError(UserError):
    """The optimizer can't be configured as asked; the message says what is allowed."""


class PolicyOptimizer:
    """AdamW over all parameters; the learning rate is a function of the step count.

    It calls PyTorch's function and not its class, which imports the compiler (a second of every start).
    """

    def __init__(self, model: nn.Module, args: Namespace) -> None:
        self.base_lr: float = args.lr
        self.schedule: str = getattr(args, "lr_decay_style", "constant")
        self.warmup: int = getattr(args, "lr_warmup_iters", 0) or 0
        self.total_steps: int = args.num_rollout * args.num_steps_per_rollout
        self.steps = 0
        if self.schedule not in SCHEDULES:
            raise OptimizerError(f"lr_decay_style is {self.schedule!r}; allowed: {', '.join(SCHEDULES)}")
        self.betas: tuple[float, float] = (args.adam_beta1, args.adam_beta2)
        self.eps: float = args.adam_eps
        self.weight_decay: float = args.weight_decay
        self.parameters = list(model.parameters())
        self.means = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]  # of the gradients
        self.squares = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]  # their squares' means

    def learning_rate(self) -> float:
        """The rate of the next step: linear warm-up, then constant or linear decay to zero at the last step."""
        warm = min(1.0, (self.steps + 1) / self.warmup) if self.warmup else 1.0
        left = max(0.0, 1 - self.steps / self.total_steps) if self.schedule == "linear" else 1.0
        return self.base_lr * min(warm, left)

    def step(self) -> None:
        """Move each parameter along its gradient, which must be there."""
        state = list(zip(self.parameters, self.means, self.squares, strict=True))
        # Biases and norm scales are not decayed, as in Megatron.
        self._step([one for one in state if one[0].ndim >= 2], self.weight_decay)
        self._step([one for one in state if one[0].ndim < 2], 0.0)
        self.steps += 1

    @torch.no_grad()
    def _step(self, state: list[tuple[nn.Parameter, torch.Tensor, torch.Tensor]], weight_decay: float) -> None:
        adamw(
            [parameter for parameter, _, _ in state],
            [parameter.grad for parameter, _, _ in state if parameter.grad is not None],
            [mean for _, mean, _ in state],
            [square for _, _, square in state],
            [],
            [torch.tensor(float(self.steps)) for _ in state],
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=self.learning_rate(),
            weight_decay=weight_decay,
            eps=self.eps,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "means": self.means, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.keys() != self.state_dict().keys():
            raise OptimizerError(
                "the checkpoint was saved by another version of slime-swe: resume with that one, or begin anew"
            )
        self.steps, self.means, self.squares = state["steps"], state["means"], state["squares"]
