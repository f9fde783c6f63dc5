"""The manifest of SLiME's flags, and what it says of a wrong command line."""

from __future__ import annotations

import re

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.slime.manifest import load_manifest, split

MANIFEST = load_manifest()


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
        (["--rollout-batchsize", "8"], "has no flag --rollout-batchsize; did you mean --rollout-batch-size"),
        (["--zzz"], "has no flag --zzz"),
        (["--rollout-batch-size", "many"], "--rollout-batch-size many: it must be a whole number"),
        (["--rollout-batch-size", "8.0"], "it must be a whole number"),
        (["--lr", "fast"], "--lr fast: it must be a number"),
        (["--train-env-vars", "{A"], "it must be JSON"),
        (["--advantage-estimator", "dpo"], "it must be one of grpo, gspo"),
        (["--colocate", "yes"], "--colocate takes no value"),
        (["--lr"], "--lr takes 1 value"),
        (["--lr", "1", "2"], "--lr takes 1 value"),
        (["--rollout-stop"], "--rollout-stop takes at least one value"),
        (["8", "--lr", "1"], "'8' follows no flag"),
    ],
)
def test_a_wrong_command_line_is_refused(words, said):
    with pytest.raises(UserError, match=re.escape(said)):
        MANIFEST.check(words)


def test_a_right_command_line_passes():
    MANIFEST.check(["--lr", "1e-6", "--rollout-top-k", "-1", "--colocate", "--rollout-stop", "a", "b", "--seed=3"])


def test_words_are_split_at_flags():
    assert list(split(["--a", "1", "--b", "--c=2"])) == [("--a", ["1"]), ("--b", []), ("--c", ["2"])]
    assert list(split([])) == []
