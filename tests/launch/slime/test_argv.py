"""Attributes become the flags that set them, or are refused."""

from __future__ import annotations

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.slime.upstream import SLIME


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"lr": 1e-6}, ["--lr", "1e-06"]),
        ({"colocate": True}, ["--colocate"]),
        ({"colocate": False}, []),
        ({"rewards_normalization": True}, []),
        ({"rewards_normalization": False}, ["--disable-rewards-normalization"]),
        ({"add_bias_linear": False}, ["--disable-bias-linear"]),
        ({"offload_train": False}, ["--no-offload-train"]),
        ({"offload_train": True}, ["--offload-train"]),
        ({"rollout_stop": None}, []),
        ({"rollout_stop": ["a", "b c"]}, ["--rollout-stop", "a", "b c"]),
        ({"rollout_top_k": -1}, ["--rollout-top-k", "-1"]),
        ({"train_env_vars": {"A": "1"}}, ["--train-env-vars", '{"A": "1"}']),
        ({"lr": 1.0, "seed": 2}, ["--lr", "1.0", "--seed", "2"]),
    ],
)
def test_each_kind_of_flag(attributes, said):
    assert list(SLIME.manifest.to_argv(attributes)) == said


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"rollout_batchsize": 1}, "did you mean --rollout-batch-size"),
        ({"kl_loss_type": "k4"}, "invalid choice: 'k4'"),
        ({"rollout_batch_size": 1.5}, "invalid int value"),
        ({"lr": None}, "no flag of SLiME sets args.lr to None"),
    ],
)
def test_what_no_flag_says_is_refused(attributes, said):
    with pytest.raises(UserError, match=said):
        SLIME.manifest.to_argv(attributes)
