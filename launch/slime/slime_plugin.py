"""What SLiME's trainer takes as functions: three parts of the loss, which miles takes too but for the advantages, and a
record of what it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime_swe.rollout.trained import TRAINED, TrainedSample, append_trained
from slime_swe.train_loop import module_of

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO = 20.0  # the largest that is exponentiated, as in SLiME's example: 5e8 is out of every sensible bound


def constant_reduction(
    total_lengths: Sequence[int], response_lengths: Sequence[int], loss_masks: Sequence[Tensor], per_token: bool
) -> Callable[[Tensor], Tensor]:
    """Dr.GRPO's reduction (arXiv:2503.20783): token losses summed over one constant, `--rollout-max-context-len`.

    For `--custom-pg-loss-reducer-function-path`. SLiME divides by the episodes of a step afterwards, and reduces
    entropy and KL terms without this. Context parallelism is left to SLiME's own reducer, which is given the constant
    in place of each episode's number of tokens.
    """
    import torch
    from megatron.training.global_vars import get_args

    constant = torch.tensor(float(get_args().rollout_max_context_len), device=loss_masks[0].device)
    make = _context_parallel().get_sum_of_sample_mean
    denominators = "denominators" if "denominators" in signature(make).parameters else "sample_denoms"
    reducer: Callable[[Tensor], Tensor] = make(
        list(total_lengths), list(response_lengths), list(loss_masks), **{denominators: [constant] * len(loss_masks)}
    )
    return reducer


def _context_parallel() -> Any:
    """The train loop's module of what a context-parallel group does together."""
    return module_of("backends.megatron_utils.cp_utils", of_miles="backends.training_utils.cp_utils")


def advantages_less_kl(args: Any, rollout_data: dict[str, Any]) -> None:
    """GRPO's, GSPO's and CISPO's advantage of each token, less `--kl-coef` times its KL estimate.

    For `--custom-advantage-function-path`: SLiME has the estimates in `rollout_data["kl"]`, one tensor of R tokens for
    each sample, and leaves them out of these advantages. The penalty is that of REINFORCE++-baseline
    (arXiv:2501.03262): each token's own, not those that follow.
    """
    penalised = [
        reward - args.kl_coef * estimates_R
        for reward, estimates_R in zip(rollout_data["rewards"], rollout_data["kl"], strict=True)
    ]
    rollout_data["advantages"] = penalised
    rollout_data["returns"] = list(penalised)


def masked_importance_sampling(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    **_: Any,
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Each token's loss times its ratio, trainer's probability over server's, and the loss masks without the tokens
    whose ratio is out of [`--tis-clip-low`, `--tis-clip`] and the sequences with a trained one below
    `swe_mismatch_veto`. Denominators stay those of the tokens before.

    For `--custom-tis-function-path`. The token-level mask and the veto of SLiME's
    `examples/train_infer_mismatch_helper/mis.py`, which is not part of its package, without normalising weights over a
    micro-batch: that would make a token's weight depend on what it was packed with. Of a context-parallel group each
    process holds a part of the log-probabilities, and whole masks.
    """
    import torch

    gather = _context_parallel().all_gather_with_cp
    low, high, veto = args.tis_clip_low, args.tis_clip, args.swe_mismatch_veto
    parts = [
        (trained - sampled).clamp(max=LOG_RATIO).exp()
        for trained, sampled in zip(train_log_probs, rollout_log_probs, strict=True)
    ]
    masks, vetoed = [], []
    for part, mask_R, total, response in zip(parts, loss_masks, total_lengths, response_lengths, strict=True):
        ratio_R = gather(part, total, response)
        lost = ((ratio_R < veto) & (mask_R > 0)).any()
        masks.append(mask_R * ((ratio_R >= low) & (ratio_R <= high) & ~lost))
        vetoed.append(lost.float().expand_as(part))
    ratio = torch.cat(parts)
    metrics = {
        "tis": ratio,
        "tis_clipfrac": ((ratio < low) | (ratio > high)).float(),
        "tis_abs": (ratio - 1).abs(),
        "mis_vetoed": torch.cat(vetoed),
    }
    return pg_loss * ratio.clamp(max=high), masks, metrics


def write_trained(args: Any, rollout_id: int, rollout_data: dict[str, Any]) -> None:
    """Append what the trainer makes of this rollout's samples to `trained.jsonl` in `swe_run_dir`, before its steps.

    For `--rollout-data-postprocess-path`, which every process of the trainer calls. Advantages are known then; the
    trainer's log-probabilities only where it has computed them before the steps. Of the processes that hold one part of
    the data one each sends it to the first of them, which writes. Raises `FileError` where that can't be done.
    """
    import torch.distributed as dist
    from megatron.core import mpu

    last = mpu.is_pipeline_last_stage(ignore_virtual=True)  # the others know neither
    if not last or mpu.get_tensor_model_parallel_rank() != 0 or "advantages" not in rollout_data:
        return
    found = [*_trained_samples(args, rollout_id, rollout_data)]
    if mpu.get_context_parallel_rank() != 0:
        return
    first = mpu.get_data_parallel_src_rank(with_context_parallel=False)
    parts: list[Any] | None = None
    if dist.get_rank() == first:
        parts = [None] * mpu.get_data_parallel_world_size(with_context_parallel=False)
    dist.gather_object(found, parts, dst=first, group=mpu.get_data_parallel_group_gloo(with_context_parallel=False))
    if parts is not None:
        append_trained(Path(args.swe_run_dir) / TRAINED, [sample for part in parts for sample in part])


def _trained_samples(args: Any, rollout_id: int, data: dict[str, Any]) -> Iterator[TrainedSample]:
    """Of this process's samples those with tokens to train. Of a context-parallel group all must run through these:
    each holds a part of the values, and whole masks."""
    gather, steps = _context_parallel().all_gather_with_cp, _steps(data)
    for place, mask_R in enumerate(data["loss_masks"]):
        trained_R = mask_R.bool().cpu()
        if not trained_R.any():
            continue
        lengths = int(data["total_lengths"][place]), int(data["response_lengths"][place])
        advantages, *log_probs = (
            _digits(gather(data[name][place], *lengths).detach().cpu()[trained_R])
            for name in ("advantages", "log_probs")
            if name in data
        )
        yield TrainedSample(
            rollout_id=rollout_id,
            index=data["sample_indices"][place],
            advantage=advantages[0] if len({*advantages}) == 1 else advantages,
            log_probs=log_probs[0] if log_probs else None,
            step=steps.get(place),
            attempt=getattr(args, "swe_attempt", None),
        )


def _steps(data: dict[str, Any]) -> dict[int, int]:
    """Place of a sample among this process's -> its optimizer step."""
    batches = iter(data["micro_batch_indices"])
    return {
        place: step
        for step, count in enumerate(data["num_microbatches"])
        for batch in islice(batches, count)
        for place in batch
    }


def _digits(values: Tensor) -> list[float]:
    """With as many digits as tell float32's values apart."""
    return [float(f"{value:.9g}") for value in values.tolist()]
