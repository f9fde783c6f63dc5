"""Our masked importance sampling beside the example of SLiME's that it follows, through SLiME's own loss."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from slime_swe.launch.slime.render import MISMATCH
from slime_swe.launch.slime.slime_plugin import masked_importance_sampling
from tests.contract.test_loss import TOLERANCE, make_case, policy, slime_args, slime_loss

MICRO_BATCHES = [[0, 3, 5], [1, 2], [4, 6, 7]]
EXAMPLE = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"


def loss_and_gradients(case, function, low, high, veto, **changes):
    args = slime_args(
        use_rollout_logprobs=False, use_tis=True, custom_tis_function_path=function, entropy_coef=0.1,
        tis_clip_low=low, tis_clip=high, swe_mismatch_veto=veto,
        use_rs=True, tis_mode="mask", tis_level="token", rs_level="token", tis_lower_bound=low, tis_upper_bound=high,
        rs_lower_bound=low, rs_upper_bound=high, rs_veto_threshold=veto or None, tis_batch_normalize=False, **changes,
    )  # fmt: skip
    hidden, head = policy(case, 3)
    loss, reported = slime_loss(args, case, hidden, head, MICRO_BATCHES)
    return [loss.detach(), *torch.autograd.grad(loss, [*hidden, head])], reported


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("veto", [0.0, 1e-4])
@pytest.mark.parametrize(("low", "high"), [(0.5, 2.0), (0.9, 1.1), (0.0, 1.05)])
def test_it_is_slimes_example_without_normalised_weights(one_process, low, high, veto, per_token):
    case = make_case(2)
    case.rollout[4][case.masks[4].nonzero()[0]] += 20  # a trained token that the trainer finds next to impossible
    ours, reported = loss_and_gradients(case, MISMATCH["mis"], low, high, veto, calculate_per_token_loss=per_token)
    theirs, _ = loss_and_gradients(case, EXAMPLE, low, high, veto, calculate_per_token_loss=per_token)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, **TOLERANCE)
    assert reported["tis_clipfrac"] > 0
    assert (reported["mis_vetoed"] > 0) == (veto > 0)


def test_icepop_differs_by_what_becomes_of_the_other_terms(one_process):
    """With no other term and no veto the two are the same."""
    found = {}
    for entropy in (0.0, 0.1):
        for name, function in MISMATCH.items():
            args = slime_args(
                use_rollout_logprobs=False, use_tis=True, custom_tis_function_path=function, tis_clip_low=0.9,
                tis_clip=1.1, swe_mismatch_veto=0.0, entropy_coef=entropy,
            )  # fmt: skip
            case = make_case(2)
            loss, _ = slime_loss(args, case, *policy(case, 3), MICRO_BATCHES)
            found[name, entropy] = loss.item()
    assert found["icepop", 0.0] == pytest.approx(found["mis", 0.0], abs=1e-6)
    assert found["icepop", 0.1] != pytest.approx(found["mis", 0.1], abs=1e-3)


def test_context_parallel_processes_find_the_same_tokens(one_process, tmp_path):
    """Two real ones, each with its share of two sequences, of which the first has one token that vetoes it."""
    from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean

    generator = torch.Generator().manual_seed(4)
    sizes, totals = [9, 14], [13, 17]
    trained, noise, losses = ([torch.randn(size, generator=generator) for size in sizes] for _ in range(3))
    sampled = [log_prob + 0.3 * part for log_prob, part in zip(trained, noise, strict=True)]
    sampled[0][3] += 20
    masks = [torch.ones(size, dtype=torch.int) for size in sizes]
    masks[1][4:7] = 0
    args = {"tis_clip_low": 0.8, "tis_clip": 1.2, "swe_mismatch_veto": 1e-4}
    case = {"totals": totals, "masks": masks, "args": args, "losses": losses, "trained": trained, "sampled": sampled}
    torch.save(case, tmp_path / "case.pt")

    script = Path(__file__).with_name("mismatch_rank.py")
    paths = os.pathsep.join(
        [*filter(None, (os.environ.get(name) for name in ("SLIME_HOME", "MEGATRON_HOME"))), *sys.path]
    )
    started = [
        subprocess.Popen([sys.executable, script, str(rank), str(tmp_path)], env=os.environ | {"PYTHONPATH": paths})
        for rank in range(2)
    ]
    assert [process.wait(timeout=300) for process in started] == [0, 0]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]

    loss, kept, _ = masked_importance_sampling(
        Namespace(**args), pg_loss=torch.cat(losses), train_log_probs=trained, rollout_log_probs=sampled,
        loss_masks=masks, total_lengths=totals, response_lengths=sizes,
    )  # fmt: skip
    assert not kept[0].any() and 0 < kept[1].sum() < masks[1].sum()
    for rank in found:
        assert all(torch.equal(mine, whole) for mine, whole in zip(rank["masks"], kept, strict=True))
    whole = get_sum_of_sample_mean(totals, sizes, kept, [mask.sum() for mask in masks])(loss)
    torch.testing.assert_close(sum(rank["reduced"] for rank in found), whole)
