"""One process of a context-parallel group of two: our masked importance sampling of its share of two sequences.

    python tests/contract/mismatch_rank.py RANK FOLDER

It reads `case.pt` of the folder and writes `RANK.pt` there.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist

from slime_swe.launch.slime.slime_plugin import masked_importance_sampling
from slime_swe.launch.slime_cpu.shims import install


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    install()
    from megatron.core import mpu
    from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean, slice_log_prob_with_cp

    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    mpu.initialize_model_parallel(context_parallel_size=2)
    case = torch.load(folder / "case.pt")
    totals, responses, masks = case["totals"], [len(mask) for mask in case["masks"]], case["masks"]

    def share(whole: list[torch.Tensor]) -> list[torch.Tensor]:
        return [slice_log_prob_with_cp(*part) for part in zip(whole, totals, responses, strict=True)]

    loss, kept, _ = masked_importance_sampling(
        Namespace(**case["args"]),
        pg_loss=torch.cat(share(case["losses"])),
        train_log_probs=share(case["trained"]),
        rollout_log_probs=share(case["sampled"]),
        loss_masks=masks,
        total_lengths=totals,
        response_lengths=responses,
    )
    reduced = get_sum_of_sample_mean(totals, responses, kept, [mask.sum() for mask in masks])(loss)
    torch.save({"masks": kept, "reduced": reduced}, folder / f"{rank}.pt")
    dist.barrier()


if __name__ == "__main__":
    main()
