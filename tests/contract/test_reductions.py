"""Dr.GRPO's constant reduction by SLiME's own reducer."""

from __future__ import annotations

from argparse import Namespace

import torch

from slime_swe.launch.slime.slime_plugin import constant_reduction


def test_token_losses_are_summed_over_one_constant(one_process):
    from megatron.training import global_vars

    before = global_vars._GLOBAL_ARGS
    global_vars._GLOBAL_ARGS = Namespace(rollout_max_context_len=50)
    try:
        masks = [torch.tensor([1, 0, 1]), torch.tensor([0, 0]), torch.tensor([1])]
        losses = torch.tensor([1.0, 100.0, 2.0, 100.0, 100.0, 4.0])
        reduce = constant_reduction([5, 4, 2], [3, 2, 1], masks, False)
        assert torch.isclose(reduce(losses), torch.tensor((1.0 + 2.0 + 4.0) / 50))
    finally:
        global_vars._GLOBAL_ARGS = before
