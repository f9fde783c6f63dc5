"""SLiME's own loss: which settings let the ratio differ from 1, so that clips, GSPO, CISPO and masks act at all."""

from __future__ import annotations

import pytest
import torch

from tests.contract.test_loss import make_case, policy, slime_args, slime_loss

MICRO_BATCHES = [[0, 3, 5], [1, 2], [4, 6, 7]]
ACTING = {
    "grpo": {},
    "gspo": {"advantage_estimator": "gspo"},
    "gspo in its own range": {"advantage_estimator": "gspo", "eps_clip": 3e-4, "eps_clip_high": 4e-4},
    "cispo": {"advantage_estimator": "cispo", "eps_clip_high": 0.28},
    "dual clip": {"eps_clip_c": 3.0},
    "opsm": {"use_opsm": True, "opsm_delta": 1e-4},
}


def gradients(case, old, **settings):
    """Of every hidden state and the head, and what SLiME reports. `old`: None makes SLiME take the trained policy's."""
    args = slime_args(use_rollout_logprobs=old == "server", **settings)
    case.old = None if old is None else case.old
    hidden, head = policy(case, 7)
    loss, reported = slime_loss(args, case, hidden, head, MICRO_BATCHES)
    return torch.autograd.grad(loss, [*hidden, head]), reported


def largest_difference(ours, theirs):
    return max((mine - other).abs().max().item() for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("name", ACTING)
def test_one_step_on_weights_that_are_trained_is_grpo_whatever_is_set(one_process, name, per_token):
    """No separate pass, no server's log-probabilities, no older weights: what the schedule is does not matter."""
    plain, _ = gradients(make_case(1), None, eps_clip=0.99, eps_clip_high=99.0, calculate_per_token_loss=per_token)
    found, reported = gradients(make_case(1), None, **ACTING[name], calculate_per_token_loss=per_token)
    assert largest_difference(found, plain) < 1e-6
    assert reported["pg_clipfrac"] == 0


@pytest.mark.parametrize("old", ["server", "older weights"])
@pytest.mark.parametrize("name", ACTING)
def test_it_acts_where_the_old_policy_is_another(one_process, name, old):
    """`rollout_logprobs`, and `keep_old_actor` or the second of several steps, which SLiME's loss can't tell apart."""
    plain, _ = gradients(make_case(1), old, eps_clip=0.99, eps_clip_high=99.0)
    found, _ = gradients(make_case(1), old, **ACTING[name])
    assert largest_difference(found, plain) > 1e-3


def test_opsm_leaves_out_bad_sequences_that_became_unlikelier_and_no_others(one_process):
    case, delta = make_case(1), 0.1
    hidden, head = policy(case, 7)
    loss, _ = slime_loss(slime_args(use_opsm=True, opsm_delta=delta, eps_clip=0.99, eps_clip_high=99.0),
                         case, hidden, head, MICRO_BATCHES)  # fmt: skip
    left_out = {i for i, grad in enumerate(torch.autograd.grad(loss, hidden)) if not grad.any()}
    expected = set()
    for i, (tokens, mask) in enumerate(zip(case.tokens, case.masks, strict=True)):
        start = len(tokens) - len(mask)
        log_probs = torch.log_softmax(hidden[i] @ head.T, 1)[torch.arange(start - 1, len(tokens) - 1), tokens[start:]]
        mean = ((case.old[i] - log_probs) * mask).sum() / mask.sum().clamp(min=1)
        if not mask.any() or (case.rewards[i] < 0 and mean > delta):
            expected.add(i)
    assert left_out == expected
    assert 1 < len(expected) < len(case.masks)
