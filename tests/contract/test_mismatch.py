"""Our masked importance sampling beside the example of SLiME's that it follows, through SLiME's own loss."""

from __future__ import annotations

import pytest
import torch
from tests.contract.test_loss import TOLERANCE, make_case, policy, slime_args, slime_loss

from slime_swe.launch.args import MISMATCH

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
