"""What a token weighs by SLiME's own loss, as `docs/algorithms.md` says, and our constant reduction by its reducer."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from slime_swe.embedded.train_data import TrainData, token_weights
from slime_swe.launch.slime.render import CONSTANT_REDUCTION
from slime_swe.launch.slime.slime_plugin import constant_reduction
from tests.contract.test_loss import slime_args

REDUCTIONS = {
    "trajectory": ({}, [1 / 4, 1 / 12]),
    "token": ({"calculate_per_token_loss": True}, [1 / 8, 1 / 8]),
    "constant": ({"custom_pg_loss_reducer_function_path": CONSTANT_REDUCTION}, [1 / 16, 1 / 16]),
}


@pytest.fixture
def context(one_process, monkeypatch):
    """`--rollout-max-context-len`, where Megatron keeps its arguments."""

    def is_of(tokens):
        monkeypatch.setattr("megatron.training.global_vars._GLOBAL_ARGS", Namespace(rollout_max_context_len=tokens))

    return is_of


def test_token_losses_are_summed_over_one_constant(context):
    context(50)
    masks = [torch.tensor([1, 0, 1]), torch.tensor([0, 0]), torch.tensor([1])]
    losses = torch.tensor([1.0, 100.0, 2.0, 100.0, 100.0, 4.0])
    reduce = constant_reduction([5, 4, 2], [3, 2, 1], masks, False)
    assert torch.isclose(reduce(losses), torch.tensor((1.0 + 2.0 + 4.0) / 50))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_each_reduction_weighs_a_token_as_the_page_says(context, name):
    """Episodes of 2 and 6 trained tokens; the second is two training sequences."""
    context(8)
    changes, (short, long) = REDUCTIONS[name]
    masks = [torch.tensor([1, 0, 1]), torch.tensor([1, 1]), torch.tensor([1, 0, 1, 1, 1])]
    weights = weights_in_slime(masks, [2, 6, 6], 2, changes)
    for weight, mask, expected in zip(weights, masks, (short, long, long), strict=True):
        torch.testing.assert_close(weight, mask * expected)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_replay_weighs_tokens_as_slimes_loss_does(context, name):
    """What is left out of the loss counts too: as an episode, and in `token` as one token."""
    context(8)
    masks, sums = [[1, 0, 1], [1, 1], [1, 0, 1, 1, 1], [0, 0]], [2, 6, 6, 1]
    theirs = weights_in_slime([torch.tensor(mask) for mask in masks], sums, 3, REDUCTIONS[name][0])
    ours = token_weights(TrainData([], masks, [], [], [0, 1, 1, 2], sums), range(4), name, max_context=8)
    for place, mask in enumerate(masks):
        torch.testing.assert_close(theirs[place], torch.tensor(mask) * ours.get(place, 0.0))


def weights_in_slime(
    masks: list[torch.Tensor], sums: list[int], episodes: int, changes: dict[str, object]
) -> list[torch.Tensor]:
    """Of each token of each sample: at a ratio of 1, the derivative of SLiME's loss by its advantage, negated.

    sums: the trained tokens of each sample's episode. episodes: of the step.
    """
    from slime.backends.megatron_utils.loss import loss_function

    advantages = [torch.ones(len(mask), requires_grad=True) for mask in masks]
    lengths = [len(mask) + 2 for mask in masks]
    batch = {
        "unconcat_tokens": [torch.zeros(length, dtype=torch.long) for length in lengths],
        "total_lengths": lengths,
        "response_lengths": [len(mask) for mask in masks],
        "loss_masks": masks,
        "rollout_mask_sums": torch.tensor(sums, dtype=torch.float),
        "advantages": advantages,
    }
    args = slime_args(use_rollout_logprobs=False, **changes)
    loss, tokens, _ = loss_function(args, batch, 1, episodes, torch.zeros(1, sum(lengths), 5))
    return [-grad for grad in torch.autograd.grad(loss / tokens, advantages)]
