"""Recipes become jobs of miles, with whole weights and with adapters, and what miles can't do is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.engines import Start, engine_of, violations
from slime_swe.launch.engines.miles import MILES
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import readable
from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.render import render, script_of
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.registry import RECIPES, load_recipe
from tests.recipes.changes import changed, variant

ON_GPUS = [name for name in RECIPES if load_recipe(name).engine == "slime"]
MIXTURE, DENSE = "qwen3_coder_30b_a3b", "qwen25_coder_7b"
LORA = {"engine": "miles", "algorithm__lora_rank": 32, "algorithm__reduction": "trajectory"}


def job_of(recipe):
    assert violations(recipe) == []
    return render(recipe, Path("/runs/a"), upstream=MILES, checkouts=Checkouts(Path("/miles"), Path("/megatron")))


def flags_of(recipe):
    """Flag -> its values, of the whole command."""
    return {name: " ".join(words) for name, words in split(job_of(recipe).words)}


@pytest.mark.parametrize("name", ON_GPUS)
def test_every_shipped_recipe_is_a_command_line_that_miles_takes(name):
    recipe = variant(name, engine="miles")
    job = job_of(recipe)
    MILES.manifest.check(job.words)
    assert job.program[-1] == f"/miles/{script_of(recipe)}"
    assert job.environment["PYTHONPATH"].split(":")[:2] == ["/miles", "/megatron"]


def test_the_flags_are_slimes_but_for_what_the_fork_has_otherwise():
    """The group of each flag that differs, and how."""
    ours = flags_of(variant("qwen3_coder_next", engine="miles"))
    slime = render(load_recipe("qwen3_coder_next"), Path("/runs/a"), checkouts=Checkouts(Path("/s"), Path("/m")))
    theirs = {name: " ".join(words) for name, words in split(slime.words)}
    assert dict(ours.items() - theirs.items()) == {
        "--spec": "miles_plugins.models.qwen3_next get_qwen3_next_spec",
        "--pause-generation-mode": "abort",
        "--sglang-router-policy": "consistent_hashing",
    }
    assert dict(theirs.items() - ours.items()) == {
        "--spec": "slime_plugins.models.qwen3_next get_qwen3_next_spec",
        "--use-gated-attention": "",
        "--router-policy": "consistent_hashing",
        "--rollout-data-postprocess-path": "slime_swe.launch.slime.slime_plugin.write_trained",
    }


def test_a_run_that_goes_on_from_a_checkpoint_is_not_evaluated_first(tmp_path):
    recipe = variant(DENSE, engine="miles")

    def skips(**options):
        return "--skip-eval-before-train" in render(recipe, tmp_path, upstream=MILES, **options).argv

    assert not skips() and not skips(resume=True)  # there is no checkpoint yet
    tracker = tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt"
    tracker.parent.mkdir()
    tracker.write_text("19")
    assert skips(resume=True) and not skips()


def test_it_says_whose_flags_they_are():
    assert f"as miles {MILES.loop.commit[:9]} takes it" in readable(job_of(variant(DENSE, engine="miles")))


def test_icepop_is_the_fork_s_own_function():
    flags = flags_of(variant(DENSE, engine="miles", algorithm__mismatch="icepop"))
    assert flags["--custom-tis-function-path"].startswith("miles.backends.training_utils.")


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"algorithm__estimator": "cispo", "algorithm__steps_per_rollout": 2}, "algorithm.estimator", "no"),
        ({"algorithm__kl_coef": 0.1, "algorithm__kl_in": "reward"}, "algorithm.kl_in", "engine=slime"),
        (
            {"serving__external_engines": ["a:1"], "cluster__colocate": False},
            "serving.external_engines",
            "engine=slime",
        ),
        ({"slime__flags": {"balance-by-flop": True}}, "slime.flags.balance-by-flop", "no flag of miles"),
    ],
)
def test_what_slime_alone_can_do_is_refused(changes, key, said):
    (found,) = violations(variant(DENSE, engine="miles", **changes))
    assert found.field == key and (said in str(found))
    others = {name: value for name, value in changes.items() if name != "slime__flags"}
    assert violations(variant(DENSE, engine="slime", **others)) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_taken_or_refused_with_the_other_engine(family):
    recipe = variant(MIXTURE, engine="miles", model__config=load_family(family).toy())
    found = [each for each in violations(recipe) if "miles" in str(each)]
    assert [each.field for each in found] == ["model.config.model_type"] * (family == "minimax_m2")
    assert all("engine=slime" in each.fix for each in found)


@pytest.mark.parametrize("engine", ["slime", "slime_cpu", "embedded"])
def test_every_other_engine_refuses_an_adapter_and_says_which_takes_it(engine):
    name = MIXTURE if engine == "slime" else "tiny_cpu"
    found = [each for each in violations(variant(name, **LORA | {"engine": engine})) if "lora_rank" in each.field]
    assert len(found) == 1 and "engine=miles" in found[0].fix


def test_an_adapter_s_flags():
    flags = flags_of(variant(MIXTURE, **LORA))
    assert (flags["--lora-rank"], flags["--lora-alpha"]) == ("32", "32")
    assert flags["--target-modules"] == "linear_qkv,linear_proj,linear_fc1,linear_fc2"
    assert flags["--megatron-to-hf-mode"] == "bridge" and flags["--ref-load"] == flags["--hf-checkpoint"]
    assert flags["--sglang-lora-backend"] == "triton"
    chosen = LORA | {"algorithm__lora_alpha": 64, "algorithm__lora_targets": ["linear_qkv"]}
    dense = flags_of(variant(DENSE, **chosen))
    assert (dense["--lora-alpha"], dense["--target-modules"]) == ("64", "linear_qkv")
    assert "--sglang-lora-backend" not in dense
    assert not {name for name in flags_of(variant(MIXTURE, engine="miles")) if "lora" in name}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (DENSE, {"algorithm__reduction": "token"}, "algorithm.reduction=token .*: use trajectory"),
        (DENSE, {"algorithm__lora_rank": 7}, "algorithm.lora_rank=7 can't be shared out .*: make it a multiple of 2"),
        (MIXTURE, {"algorithm__lora_targets": ["linear_qkv", "linear_fc1"]}, "adapts linear_fc1 alone"),
        (
            DENSE,
            {"slime__flags": {"sglang-speculative-algorithm": "EAGLE3", "sglang-max-running-requests": 64}},
            "sglang-speculative-algorithm=EAGLE3 drafts .*: use NGRAM",
        ),
        ("qwen3_coder_next", {}, "not known to work for qwen3_next models"),
        ("glm4_7_flash", {"slime__flags": {}}, "not known to work for glm4_moe_lite models"),
        (
            DENSE,
            {"cluster__colocate": False, "cluster__rollout_gpus": 2, "parallel__pp": 2, "parallel__tp": 1},
            "parallel.pp=2 leaves no GPU with a whole adapter .*: use 1, or colocate",
        ),
    ],
)
def test_what_an_adapter_can_t_be_trained_with(name, changes, said):
    (found,) = violations(variant(name, **LORA | changes))
    assert re.search(said, str(found)), str(found)


def test_all_that_is_wrong_is_named_at_once():
    recipe = variant(DENSE, engine="miles", algorithm__lora_alpha=16, algorithm__lora_targets=["linear_qkv"])
    assert [each.field for each in violations(recipe)] == ["algorithm.lora_alpha", "algorithm.lora_targets"]
    assert all("give a lora_rank" in each.fix for each in violations(recipe))
    recipe = changed(changed(recipe, "algorithm.lora_rank", 7), "algorithm.estimator", "cispo")
    recipe = changed(recipe, "algorithm.steps_per_rollout", 2)
    found = [each.field for each in violations(recipe)]
    assert sorted(found) == ["algorithm.estimator", "algorithm.lora_rank", "algorithm.reduction"]
    (wrong,) = violations(changed(recipe, "algorithm.lora_targets", ["q_proj"]))
    assert "linear_qkv, linear_proj, linear_fc1, linear_fc2" in wrong.fix


def test_a_run_with_an_adapter_does_not_go_on(tmp_path):
    recipe = variant(DENSE, **LORA)
    with pytest.raises(UserError, match="lora-adapter-path"):
        engine_of(recipe).check(recipe, Start(resume=True))


def test_a_missing_checkout_is_answered_with_the_commands_that_make_it(tmp_path):
    environment = {"MILES_HOME": str(tmp_path), "MEGATRON_HOME": str(tmp_path)}
    with pytest.raises(UserError) as refusal:
        MILES.require(environment)
    said = str(refusal.value)
    assert "MILES_HOME" in said and "engine=miles" in said
    assert all(f"checkout {each.commit}" in said for each in (MILES.loop, MILES.megatron))
    assert MILES.checkouts({}) == Checkouts(Path("/root/miles"), Path("/root/Megatron-LM"))


def test_each_train_loop_has_a_manifest_of_its_own():
    assert {flag.owner for flag in MILES.manifest.flags.values()} == {"miles", "megatron", "sglang"}
    assert "--lora-rank" in MILES.manifest.flags and "--lora-rank" not in SLIME.manifest.flags
    assert "cispo" not in MILES.manifest.flags["--advantage-estimator"].choices
    with pytest.raises(UserError, match="miles does not take this"):
        MILES.manifest.check(["--advantage-estimator", "cispo"])
