"""Adam as Transformer Engine has it: one step number for a group of parameters, moments in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class FusedAdam(Optimizer):
    """Adam whose weight decay is decoupled (`adam_w_mode`) or added to the gradient."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
    ) -> None:
        if {exp_avg_dtype, exp_avg_sq_dtype, master_weight_dtype} != {torch.float32} or capturable:
            raise NotImplementedError("moments and main weights other than float32 have no stand-in on a CPU")
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})
        self.adam_w_mode, self.master_weights, self.use_decoupled_grad = adam_w_mode, master_weights, use_decoupled_grad

    def initialize_state(self, param: Tensor, store_param_remainders: bool = False) -> None:
        for name in ("exp_avg", "exp_avg_sq"):
            self.state[param][name] = torch.zeros_like(param, dtype=torch.float32)
        if self.master_weights:
            self.state[param]["master_param"] = param.detach().float().clone()

    def get_unscaled_state(self, param: Tensor, state_name: str) -> Tensor:
        found: Tensor = self.state[param][state_name]
        return found

    def set_scaled_state(self, param: Tensor, state_name: str, unscaled_state: Tensor) -> None:
        self.state[param][state_name] = unscaled_state.detach().float().clone()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            if not group["params"]:
                continue  # as in Transformer Engine, such a group counts no steps
            group["step"] = group.get("step", 0) + 1
            for param in group["params"]:
                gradient = param.decoupled_grad if self.use_decoupled_grad else param.grad
                if gradient is not None:
                    self._update(param, gradient.float(), group)

    def _update(self, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if not self.state[param]:
            self.initialize_state(param)
        state, (beta1, beta2), decay = self.state[param], group["betas"], group["weight_decay"]
        weight = state.get("master_param", param)
        if not self.adam_w_mode:
            gradient = gradient + decay * weight
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = group["bias_correction"]
        scale1, scale2 = ((1 - beta ** group["step"]) if corrected else 1.0 for beta in (beta1, beta2))
        update = (first / scale1) / ((second / scale2).sqrt() + group["eps"])
        if self.adam_w_mode:
            update = update + decay * weight
        weight.sub_(update, alpha=group["lr"])
        if weight is not param:
            param.copy_(weight)


class FusedSGD(Optimizer):
    def __init__(self, *_: object, **__: object) -> None:
        raise NotImplementedError("--optimizer sgd has no stand-in on a CPU")
