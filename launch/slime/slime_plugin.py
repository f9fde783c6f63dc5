"""What SLiME's trainer takes as functions: three parts of the loss, which miles takes too but for the advantages, and a
record of what it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from slime_swe.dotted import module_of
from slime_swe.rollout.journals import TRAINED, TrainedSample, append_trained

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO = 20.0  # the largest that is exponentiated, as in SLiME's example: 5e8 is out of every sensible bound


def constant_reduction(
    total_lengths: Sequence[int], response_lengths: Sequence[int], loss_masks: Sequence[Tensor], per_token: bool
) -> Callable[[Tensor], Tensor]:
    """Make Dr.GRPO's reduction (arXiv:2503.20783): token losses summed over one constant, `--rollout-max-context-len`.

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
    """Return the train loop's module of what a context-parallel group does together."""
    return module_of("backends.megatron_utils.cp_utils", of_miles="backends.training_utils.cp_utils")


def advantages_less_kl(args: Any, rollout_data: dict[str, Any]) -> None:
    """Set GRPO's, GSPO's and CISPO's advantage of each token, less `--kl-coef` times its KL estimate.

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
    """Return each token's loss times its ratio, trainer's probability over server's, and the loss masks without the
    tokens whose ratio is out of [`--tis-clip-low`, `--tis-clip`] and the sequences with a trained one below
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
    trainer's log-probabilities only where it has computed them before the steps. Where it takes them from the training
    pass, a second line follows of the samples of one micro-batch: see `_record_first_pass`. Of the processes that hold
    one part of the data one each sends it to the first of them, which writes. Raises `FileError` where that can't be
    done.
    """
    import torch.distributed as dist
    from megatron.core import mpu

    last = mpu.is_pipeline_last_stage(ignore_virtual=True)  # the others know neither
    if not last or mpu.get_tensor_model_parallel_rank() != 0 or "advantages" not in rollout_data:
        return
    found = [*_trained_samples(args, rollout_id, rollout_data)]
    if "log_probs" not in rollout_data and mpu.get_data_parallel_rank(with_context_parallel=False) == 0:
        _record_first_pass(args, rollout_data, found)
    if mpu.get_context_parallel_rank() != 0:
        return
    first = mpu.get_data_parallel_src_rank(with_context_parallel=False)
    parts: list[Any] | None = None
    if dist.get_rank() == first:
        parts = [None] * mpu.get_data_parallel_world_size(with_context_parallel=False)
    dist.gather_object(found, parts, dst=first, group=mpu.get_data_parallel_group_gloo(with_context_parallel=False))
    if parts is not None:
        append_trained(Path(args.swe_run_dir) / TRAINED, [sample for part in parts for sample in part])


def _record_first_pass(args: Any, data: dict[str, Any], found: Iterable[TrainedSample]) -> None:
    """Have the lines of a micro-batch's samples written again with the trainer's log-probabilities, which the training
    pass computes: of the first micro-batch of the first step that has tokens to train. No weights have changed then.

    SLiME's loss hands a micro-batch's log-probabilities to `_maybe_capture_log_probs`, which keeps them for its own
    dumps; it is called in the order of micro-batches. Of a context-parallel group each process holds a part. Where
    SLiME has no such function nothing is written.
    """
    from megatron.core import mpu

    loss, trained = module_of("backends.megatron_utils.loss"), {sample.index: sample for sample in found}
    batches = data["micro_batch_indices"][: data["num_microbatches"][0]]
    wanted = [[place for place in batch if data["sample_indices"][place] in trained] for batch in batches]
    awaited = next((number for number, places in enumerate(wanted) if places), None)
    kept = getattr(loss, "_maybe_capture_log_probs", None)
    if kept is None or awaited is None:
        return
    theirs, calls = getattr(kept, "theirs", kept), count()  # the last rollout's may not have come to its micro-batch

    def capture(batch: Mapping[str, Any], log_probs: Sequence[Tensor]) -> None:
        theirs(batch, log_probs)
        if next(calls) < awaited:
            return
        loss._maybe_capture_log_probs = theirs
        if [*batch["total_lengths"]] != [data["total_lengths"][place] for place in batches[awaited]]:
            return  # another micro-batch than this one, as from another schedule of a pipeline
        parts = dict(zip(batches[awaited], log_probs, strict=True))
        samples = [
            replace(trained[data["sample_indices"][place]], log_probs=_of_trained(data, place, parts[place]))
            for place in wanted[awaited]
        ]
        if mpu.get_context_parallel_rank() == 0:
            append_trained(Path(args.swe_run_dir) / TRAINED, samples)

    capture.theirs = theirs  # type: ignore[attr-defined]
    loss._maybe_capture_log_probs = capture


def _trained_samples(args: Any, rollout_id: int, data: dict[str, Any]) -> Iterator[TrainedSample]:
    """Yield those of this process's samples that have tokens to train. All processes of a context-parallel group must
    run through these: each holds a part of the values, and whole masks."""
    steps = _steps(data)
    for place, mask_R in enumerate(data["loss_masks"]):
        if not mask_R.any():
            continue
        advantages, *log_probs = (
            _of_trained(data, place, data[name][place]) for name in ("advantages", "log_probs") if name in data
        )
        yield TrainedSample(
            rollout_id=rollout_id,
            index=data["sample_indices"][place],
            advantage=advantages[0] if len({*advantages}) == 1 else advantages,
            log_probs=log_probs[0] if log_probs else None,
            step=steps.get(place),
            attempt=getattr(args, "swe_attempt", None),
        )


def _of_trained(data: dict[str, Any], place: int, values: Tensor) -> list[float]:
    """Return a sample's values of its trained tokens, of which this process may hold a part."""
    lengths = int(data["total_lengths"][place]), int(data["response_lengths"][place])
    whole_R = _context_parallel().all_gather_with_cp(values.detach(), *lengths).cpu()
    return _digits(whole_R[data["loss_masks"][place].bool().cpu()])


def _steps(data: dict[str, Any]) -> dict[int, int]:
    """Map the place of a sample among this process's to its optimizer step."""
    batches = iter(data["micro_batch_indices"])
    return {
        place: step
        for step, count in enumerate(data["num_microbatches"])
        for batch in islice(batches, count)
        for place in batch
    }


def _digits(values: Tensor) -> list[float]:
    """Round values to as many digits as tell float32's values apart."""
    return [float(f"{value:.9g}") for value in values.tolist()]
