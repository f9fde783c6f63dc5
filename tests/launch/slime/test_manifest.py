"""The manifest of SLiME's flags, the flags that attributes become, and what is said of a wrong command line."""

from __future__ import annotations

import re

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.upstream import SLIME

MANIFEST = SLIME.manifest


def test_it_says_what_it_was_made_from():
    assert all(re.fullmatch("[0-9a-f]{40}", MANIFEST.made_from[name]) for name in ("slime", "megatron"))
    assert MANIFEST.made_from["sglang"] == "0.5.15.post1"


def test_it_holds_the_flags_of_all_three():
    owners = {flag.owner for flag in MANIFEST.flags.values()}
    assert owners == {"slime", "megatron", "sglang"}
    assert MANIFEST.flags["--rollout-batch-size"].required
    assert MANIFEST.flags["--sglang-mem-fraction-static"].type == "float"
    assert MANIFEST.flags["--kl-loss-type"].choices == ("k1", "k2", "k3", "low_var_kl")
    assert MANIFEST.flags["--train-backend"].choices == ("megatron",)
    assert len(MANIFEST.flags) > 1000


@pytest.mark.parametrize("gone", ("--qkv-format", "--rollout-external", "--use-slime-router", "--critic-lr"))
def test_flags_that_slime_dropped_are_not_in_it(gone):
    assert gone not in MANIFEST.flags


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rollout-batchsize", "8"], "unrecognized arguments: --rollout-batchsize 8"),
        (["--rollout-batch-size", "many"], "argument --rollout-batch-size: invalid int value: 'many'"),
        (["--rollout-batch-size", "8.0"], "invalid int value"),
        (["--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
        (["--train-env-vars", "{A"], "argument --train-env-vars: invalid"),
        (["--advantage-estimator", "dpo"], "invalid choice: 'dpo' (choose from"),
        (["--colocate", "yes"], "unrecognized arguments: yes"),
        (["--lr"], "argument --lr: expected one argument"),
        (["--lr", "1", "2"], "unrecognized arguments: 2"),
        (["--rollout-stop"], "argument --rollout-stop: expected at least one argument"),
        (["8", "--lr", "1"], "unrecognized arguments: 8"),
    ],
)
def test_a_wrong_command_line_is_refused(words, said):
    with pytest.raises(UserError, match=re.escape(said)):
        MANIFEST.check(words)


def test_a_right_command_line_passes():
    MANIFEST.check(["--lr", "1e-6", "--rollout-top-k", "-1", "--colocate", "--rollout-stop", "a", "b", "--seed=3"])


def test_words_are_split_at_flags():
    assert list(split(["--a", "1", "--b", "--c", "2", "3"])) == [("--a", ["1"]), ("--b", []), ("--c", ["2", "3"])]
    assert list(split([])) == []


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
    assert list(MANIFEST.to_argv(attributes)) == said


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
        MANIFEST.to_argv(attributes)
