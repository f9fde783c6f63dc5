"""`Trainer`: gradients from training data, one process, on a CPU."""

from __future__ import annotations

import io
import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from slime_swe.embedded.forward import MicroBatch, forward, micro_batches, recompute_log_probs
from slime_swe.embedded.loss import Actions, LossConfig, LossError, policy_loss, supervised_loss
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.train_data import PackingError, TrainData, split_steps, token_weights
from slime_swe.embedded.workers import ordered_map, worker_count
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.rollout.journals import TrainedSample

T = TypeVar("T")
CHECKED = 8  # one in so many samples is computed again; all would take nearly as long as the steps


class TrainingError(InfrastructureError):
    """Training diverged: the loss or a gradient is not a number."""


@dataclass(frozen=True)
class Steps:
    """`Steps` holds what a rollout's optimizer steps gave.

    metrics: each the mean over the steps that had tokens to train. step_of: sample -> its step, from 0. log_probs:
    sample -> the trainer's before the first step, laid out as `TrainData.rollout_log_probs`, where it computed them.
    """

    metrics: dict[str, float]
    step_of: dict[int, int]
    log_probs: dict[int, list[float]]


class Trainer:
    """Holds the policy and its optimizer; `train` makes the optimizer steps of one rollout.

    A run is a function of its data and arguments: sequences are packed in a fixed order, nothing is sampled, and
    gradients are added in the order of the micro-batches, however many are worked on at once.
    """

    def __init__(self, args: Namespace, model_dir: str | Path | None = None) -> None:
        if args.max_tokens_per_gpu < args.rollout_max_context_len:
            raise PackingError(
                f"max_tokens_per_gpu={args.max_tokens_per_gpu} can't hold one episode of "
                f"rollout_max_context_len={args.rollout_max_context_len} tokens: raise it"
            )
        self.config = LossConfig.from_args(args)
        self.use_rollout_log_probs: bool = args.use_rollout_logprobs
        if self.use_rollout_log_probs and args.use_tis:
            raise LossError("use_rollout_logprobs and use_tis exclude each other: with the server's log-probabilities "
                            "as the old policy there is no mismatch left to correct")  # fmt: skip
        self.temperature: float = args.rollout_temperature
        self.max_tokens: int = args.max_tokens_per_gpu
        self.steps: int = args.num_steps_per_rollout
        self.clip_grad: float = args.clip_grad
        self.workers = worker_count()
        self.model = Qwen2.load(model_dir or args.hf_checkpoint)
        self.reference: Qwen2 | None = None
        if self.config.kl_coef:
            self.reference = Qwen2.load(args.hf_checkpoint).requires_grad_(False)
        self.optimizer = PolicyOptimizer(self.model, args)

    def train(self, data: TrainData) -> Steps:
        """Take the rollout's optimizer steps.

        The first step has the weights that sampled, but for stale samples. That the server's log-probabilities are the
        trainer's own is checked on one in CHECKED of its other samples, which gives `logprob_diff_max`, `_mean` and
        `_k3` (absent without trained tokens); where the old policy is the trainer's, on all of them. Raises
        `TrainingError` where a gradient is not finite; that step is then not taken, and those before it stand.
        Supervised steps need no old policy, and nothing is computed for one.
        """
        everything, batches = range(len(data)), split_steps(data.rollout_ids, self.steps)
        checked = [sample for sample in batches[0] if self._contributes(data, sample) and sample not in data.stale]
        if self.config.supervised:  # of tokens that another policy sampled
            computed, checked = [], []
            own = old = data.rollout_log_probs
        elif self.use_rollout_log_probs:
            computed = checked = checked[::CHECKED]
            own, old = self.recompute(data, self.model, checked), data.rollout_log_probs
        else:
            computed = [*everything]
            own = old = self.recompute(data, self.model, everything)
        reference = self.recompute(data, self.reference, everything) if self.reference is not None else None
        gaps = _gaps(data, checked, own)
        steps = [self._step(data, samples, old, reference, first=step == 0) for step, samples in enumerate(batches)]
        trained = [step for step in steps if step["trained_tokens"]] or steps[:1]
        means = {name: sum(step[name] for step in trained) / len(trained) for name in trained[0]}
        totals = {name: sum(step[name] for step in steps) for name in ("trained_tokens", "input_tokens")}
        return Steps(
            metrics=means | gaps | totals | {"lr": self.optimizer.learning_rate()},
            step_of={sample: step for step, samples in enumerate(batches) for sample in samples},
            log_probs={sample: own[sample] for sample in computed},
        )

    def recompute(self, data: TrainData, model: Qwen2, samples: Sequence[int]) -> list[list[float]]:
        """Return the log-probabilities of the samples' trained tokens under `model`, in the layout of the server's."""
        return recompute_log_probs(model, data, samples, self.temperature, self.max_tokens, self.workers)

    def save_state(self) -> bytes:
        """Return, as bytes, everything but the weights that the next step depends on."""
        buffer = io.BytesIO()
        torch.save(self.optimizer.state_dict(), buffer)
        return buffer.getvalue()

    def load_state(self, state: bytes) -> None:
        self.optimizer.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))

    def _step(
        self,
        data: TrainData,
        samples: Sequence[int],
        old: list[list[float]],
        reference: list[list[float]] | None,
        *,
        first: bool,
    ) -> dict[str, float]:
        weights = token_weights(data, samples, "token" if self.config.supervised else "trajectory")
        contributing = [sample for sample in samples if self._contributes(data, sample)]
        parameters = list(self.model.parameters())

        def work(batch: MicroBatch) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
            parts, loss = self._loss(batch, self._actions(data, batch, weights, old, reference, first))
            return parts, torch.autograd.grad(loss, parameters)

        batches = micro_batches(data, contributing, self.max_tokens)
        sums = sum_gradients(parameters, work, batches, self.workers)
        norm = self._clip_gradients()
        self.optimizer.step()
        return _step_metrics(sums) | {"grad_norm": norm}

    def _contributes(self, data: TrainData, sample: int) -> bool:
        """Say whether a sample has a gradient; one without is left out of the forward pass, not of the denominators."""
        return bool(data.advantages[sample]) or not self.config.is_pure_policy_gradient

    def _is_own(self, data: TrainData, sample: int) -> bool:
        """Say whether the old policy is, in the first step, the one that is trained."""
        return not self.use_rollout_log_probs or sample not in data.stale

    def _loss(self, batch: MicroBatch, actions: Actions) -> tuple[dict[str, Tensor], Tensor]:
        log_probs_N, entropy_N = forward(self.model, batch, self.temperature)
        if self.config.supervised:
            loss, parts = supervised_loss(log_probs_N, entropy_N, actions.weight)
        else:
            loss, parts = policy_loss(log_probs_N, entropy_N, actions, self.config)
        counts = {
            "weight": actions.weight.sum(),
            "trained_tokens": torch.tensor(len(log_probs_N)),
            "input_tokens": torch.tensor(len(batch.tokens_T)),
        }
        return parts | counts, loss

    def _actions(
        self,
        data: TrainData,
        batch: MicroBatch,
        weights: Mapping[int, float],
        old: list[list[float]],
        reference: list[list[float]] | None,
        first: bool,
    ) -> Actions:
        def gather(values: list[list[float]]) -> Tensor:
            return torch.tensor([values[s][place] for s, place in batch.source_N])

        advantage = [data.advantages[sample] for sample, _ in batch.source_N]
        weight = [weights[sample] for sample, _ in batch.source_N]
        return Actions(
            old=gather(old),
            rollout=gather(data.rollout_log_probs),
            advantage=torch.tensor(advantage),
            weight=torch.tensor(weight),
            reference=gather(reference) if reference is not None else None,
            on_policy=torch.tensor([first and self._is_own(data, sample) for sample, _ in batch.source_N]),
            sequence=torch.tensor([sample for sample, _ in batch.source_N]),
        )

    def _clip_gradients(self) -> float:
        limit = self.clip_grad if self.clip_grad > 0 else math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradient norm is {norm} at optimizer step {self.optimizer.steps}: lower optimizer.lr, and resume "
                "from the last checkpoint"
            )
        return norm


# The optimizer, AdamW, and its learning-rate schedule.
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
        """Return the rate of the next step: linear warm-up, then constant or linear decay to zero at the last step."""
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


def trained_samples(rollout_id: int, attempt: int, data: TrainData, steps: Steps) -> Iterator[TrainedSample]:
    """Yield the lines of `trained.jsonl`: what the steps made of each sample that has tokens to train."""
    for sample, mask in enumerate(data.loss_masks):
        if not any(mask):
            continue
        log_probs = steps.log_probs.get(sample)
        yield TrainedSample(
            rollout_id=rollout_id,
            index=data.indices[sample],
            advantage=data.advantages[sample],
            log_probs=None if log_probs is None else [*compress(log_probs, mask)],
            step=steps.step_of[sample],
            attempt=attempt,
        )


def sum_gradients(
    parameters: Sequence[Tensor],
    work: Callable[[MicroBatch], tuple[T, tuple[Tensor, ...]]],
    batches: Sequence[MicroBatch],
    workers: int,
) -> list[T]:
    """Make the parameters' gradients the sum of what `work` gives for each micro-batch, and return the rest it gives.

    Without any they are zeros, not None: an optimizer leaves a parameter without a gradient alone, and one with
    momentum moves on.
    """
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    rest: list[T] = []
    for part, grads in ordered_map(work, batches, workers):
        rest.append(part)
        for parameter, grad in zip(parameters, grads, strict=True):
            assert parameter.grad is not None
            parameter.grad += grad
    return rest


def _step_metrics(sums: list[dict[str, Tensor]]) -> dict[str, float]:
    """Return losses as they are, and means over tokens by the weight of the tokens; none of these without tokens."""
    if not sums:
        return {"loss": 0.0, "pg_loss": 0.0, "trained_tokens": 0, "input_tokens": 0}
    losses = [name for name in ("loss", "pg_loss", "kl_loss") if name in sums[0]]
    totals = {name: _total(sums, name) for name in losses}
    weight, tokens = _total(sums, "weight"), int(_total(sums, "trained_tokens"))
    of_tokens = [name for name in ("entropy", "clip_fraction", "ratio", "kl_to_old") if name in sums[0]]
    means = {name: _total(sums, name) / weight for name in of_tokens}
    counts = {"trained_tokens": tokens, "input_tokens": int(_total(sums, "input_tokens"))}
    return totals | means | counts


def _gaps(data: TrainData, samples: Sequence[int], own: list[list[float]]) -> dict[str, float]:
    """Compare the trainer's log-probabilities with the server's. k3 estimates KL(server || trainer) by the tokens that
    the server sampled (http://joschu.net/blog/kl-approx.html)."""
    gaps = [
        ours - theirs
        for sample in samples
        for ours, theirs, trained in zip(
            own[sample], data.rollout_log_probs[sample], data.loss_masks[sample], strict=True
        )
        if trained
    ]
    if not gaps:
        return {}
    return {
        "logprob_diff_max": max(map(abs, gaps)),
        "logprob_diff_mean": sum(map(abs, gaps)) / len(gaps),
        "logprob_diff_k3": sum(math.expm1(gap) - gap for gap in gaps) / len(gaps),
    }


def _total(sums: list[dict[str, Tensor]], name: str) -> float:
    return sum(float(part[name]) for part in sums)
