"""`slime.flags`: what SLiME has and no field of a recipe sets, from the command line to the job."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import assemble, flatten, read_recipe, resolve, save_recipe
from slime_swe.launch.engines import violations
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.flags import UNREAD, owners
from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.render import render, sections
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.registry import RECIPES, load_recipe
from tests.launch.slime.examples import PAGE, examples
from tests.launch.slime.other import other_than
from tests.recipes.changes import changed, variant

DENSE, MIXTURE = "qwen25_coder_7b", "qwen3_coder_30b_a3b"


def job_of(recipe):
    return render(recipe, Path("/runs/a"), checkouts=Checkouts(Path("/slime"), Path("/megatron")))


def rendered(**given):
    """The group of these flags, of a recipe that has no others."""
    recipe = variant(DENSE, slime__flags={name.replace("_", "-"): value for name, value in given.items()})
    assert not violations(recipe)
    return list(job_of(recipe).flags.get("slime.flags", ()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"router_policy": "manual"}, ["--router-policy", "manual"]),
        ({"async_save": True}, ["--async-save"]),
        ({"async_save": False}, []),
        ({"offload_rollout": True, "offload_train": False}, ["--offload-rollout", "--no-offload-train"]),
        ({"sglang_cuda_graph_bs": [1, 2, 4]}, ["--sglang-cuda-graph-bs", "1", "2", "4"]),
        ({"rollout_health_check_timeout": 60}, ["--rollout-health-check-timeout", "60"]),
        ({"train_env_vars": {"A": "b c"}}, ["--train-env-vars", '{"A": "b c"}']),
        ({"no_offload_train": False}, ["--offload-train"]),
        ({}, []),
    ],
)
def test_each_kind_of_flag(given, words):
    assert rendered(**given) == words


def test_they_come_last_and_are_shown_with_all_that_is_shown(tmp_path):
    recipe = resolve(DENSE, ["slime.flags.sglang-chunked-prefill-size=4096"])
    job = job_of(recipe)
    assert list(job.flags)[-1] == "slime.flags"
    assert job.argv[-2:] == ["--sglang-chunked-prefill-size", "4096"]
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert read_recipe(tmp_path / "recipe.yaml") == recipe
    assert "    sglang-chunked-prefill-size: 4096\n" in (tmp_path / "recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("overrides", "flags"),
    [
        (["slime.flags={router-policy: manual, async-save: true}"], {"router-policy": "manual", "async-save": True}),
        (["slime.flags={}", "slime.flags.router-policy=manual"], {"router-policy": "manual"}),
        (["slime.flags={}", "+slime.flags.sglang-cuda-graph-bs=[1,2]"], {"sglang-cuda-graph-bs": [1, 2]}),
        (["slime.flags={a: 1}", "~slime.flags.a"], {}),
        (["slime.flags={}", "slime.flags.x=1e-6", "slime.flags.y=/a/b-c"], {"x": 1e-6, "y": "/a/b-c"}),
    ],
)
def test_the_command_line_sets_adds_and_removes_them(overrides, flags):
    assert assemble(DENSE, overrides).slime.flags == flags


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("router-polcy", "manual", "slime.flags.router-polcy is no flag of SLiME, Megatron or SGLang: did you mean"),
        ("router_policy", "manual", "did you mean router-policy?"),
        ("--router-policy", "manual", "did you mean router-policy?"),
        ("chunked-prefill-size", 1, "did you mean sglang-chunked-prefill-size?"),
        ("qwertyuiop", 1, "`--dry-run` shows what is given already"),
        ("help", True, "is no flag"),
        ("router-policy", "consistent", "invalid choice: 'consistent' (choose from"),
        ("router-policy", True, "it takes a value; ~slime.flags.router-policy leaves the flag out"),
        ("router-policy", None, "it takes a value"),
        ("router-policy", ["manual", "random"], "unrecognized arguments: random"),
        ("rollout-health-check-timeout", "long", "invalid float value: 'long'"),
        ("use-fault-tolerance", "yes", "it is a switch, and takes true or false"),
        ("sglang-cuda-graph-bs", [], "expected at least one argument"),
        ("sglang-cuda-graph-bs", [1, "many"], "invalid int value: 'many'"),
        ("eps-clip", 0.1, "sets args.eps_clip, which algorithm.clip_low sets: change algorithm.clip_low"),
        ("disable-grpo-std-normalization", True, "which algorithm.std_normalization sets"),
        ("optimizer-cpu-offload", True, "which optimizer.cpu_offload sets"),
        ("recompute-num-layers", 2, "which parallel.recompute sets"),
        ("sglang-mem-fraction-static", 0.5, "change serving.mem_fraction"),
        ("use-wandb", True, "which run.trackers sets"),
        ("num-layers", 8, "which model.config sets"),
        ("custom-config-path", "a.yaml", "sets args.custom_config_path, which every run sets by itself: leave it out"),
        ("load", "/elsewhere", "which every run sets by itself"),
        ("save-hf", "/elsewhere", "which every run sets by itself"),
    ],
)
def test_what_can_not_be_passed_on_is_refused_by_name(name, value, said):
    found = violations(variant(DENSE, slime__flags={name: value}))
    assert [violation.field for violation in found] == [f"slime.flags.{name}"]
    assert said in str(found[0])


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_what_would_do_nothing_or_harm_is_refused_with_the_reason(name):
    flag = SLIME.manifest.flags[f"--{name}"]
    value = True if flag.switch else 1 if flag.type in ("int", "float") else "a.b"
    (found,) = violations(variant(DENSE, slime__flags={name: value}))
    assert found.field == f"slime.flags.{name}" and UNREAD[name][0] in str(found) and found.fix
    if flag.switch:
        assert not violations(variant(DENSE, slime__flags={name: False}))


def test_the_other_backend_of_miles_is_refused():
    (found,) = violations(variant(MIXTURE, engine="miles", slime__flags={"train-backend": "fsdp"}))
    assert "layout, flags and plan are Megatron's" in str(found)


def test_differences_of_weights_need_external_engines():
    """SLiME refuses them at the start where no disk hands weights over (slime/utils/arguments.py)."""
    delta = {"update-weight-mode": "delta", "update-weight-local-checkpoint-dir": "/scratch/weights"}
    (found,) = violations(variant(DENSE, slime__flags=delta))
    assert "hands differences of weights over by a disk" in str(found)
    external = {"cluster__colocate": False, "serving__external_engines": ["node17:30000"]}
    refused = {violation.field for violation in violations(variant(DENSE, slime__flags=delta, **external))}
    assert not any("update-weight" in field for field in refused)


def test_two_flags_for_one_attribute_are_refused():
    (found,) = violations(variant(DENSE, slime__flags={"offload-train": True, "no-offload-train": True}))
    assert "sets args.offload_train, which slime.flags.offload-train sets" in str(found)


@pytest.mark.parametrize("name", ["attention-backend", "log-probs-chunk-size"])
def test_what_no_field_depends_on_is_replaced_and_said_once(name):
    value = {"attention-backend": "auto", "log-probs-chunk-size": 512}[name]
    recipe = variant(DENSE, slime__flags={name: value})
    assert not violations(recipe)
    said = [words for flag, words in split(job_of(recipe).words) if flag == f"--{name}"]
    assert said == [[str(value)]]


@pytest.mark.parametrize("name", (DENSE, MIXTURE))
def test_every_attribute_that_a_field_changes_is_known_to_be_its_own(name):
    """Also with values and beside others that `owners` does not try."""
    recipe = variant(name, algorithm__kl_coef=0.1, run__trackers=["wandb"], cluster__colocate=False)

    def attributes(recipe):
        groups = sections(recipe, Path("/run"), resume=False)
        return {dest: value for group in groups.values() for dest, value in group.items()}

    before = attributes(recipe)
    for key, value in flatten(dataclasses.asdict(recipe)):
        if key not in ("model.family", "slime.flags"):
            after = attributes(changed(recipe, key, other_than(key, value)))
            for dest in before | after:
                if before.get(dest) != after.get(dest):
                    assert owners(SLIME)[dest], (key, dest)


@pytest.mark.parametrize("name", RECIPES)
def test_every_attribute_of_every_recipe_has_an_owner_or_is_every_run_s(name):
    assert set().union(*sections(load_recipe(name), Path("/run"), resume=True).values()) <= set(owners(SLIME))


def test_the_embedded_engine_has_none():
    with pytest.raises(UserError, match=r"slime\.flags=.*the embedded engine is not SLiME, and has none of its flags"):
        resolve("tiny_cpu", ["slime.flags.router-policy=manual"])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sglang-chunked-prefill-size", 4096, "is for SGLang, and the embedded server runs in its place"),
        ("router-policy", "consistent_hashing", "is known in SLiME's image alone: use manual"),
        ("distributed-backend", "nccl", "which every run sets by itself"),
        ("no-gradient-accumulation-fusion", True, "which every run sets by itself"),
        ("eps-clip", 0.1, "change algorithm.clip_low"),
    ],
)
def test_slime_on_a_cpu_takes_what_applies(name, value, said):
    (found,) = violations(variant("tiny_cpu", engine="slime_cpu", slime__flags={name: value}))
    assert said in str(found)
    assert not violations(variant("tiny_cpu", engine="slime_cpu", slime__flags={"router-policy": "manual"}))


def test_the_manifest_knows_the_policy_of_the_router_in_slime_s_image():
    assert "consistent_hashing" in SLIME.manifest.flags["--router-policy"].choices
    assert rendered(router_policy="consistent_hashing") == ["--router-policy", "consistent_hashing"]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.title)
def test_every_documented_example_renders(example):
    name, *overrides = example.words
    recipe = resolve(name, overrides)
    SLIME.manifest.check(job_of(recipe).words)


def test_every_documented_example_is_found():
    assert [example.title for example in examples()] == re.findall("^### (.*)", PAGE.read_text(), re.MULTILINE)


def test_recipes_for_gpus_ask_for_what_slime_advises_for_agents():
    for name in RECIPES:
        recipe = load_recipe(name)
        if recipe.engine == "slime":
            said = dict(split(job_of(recipe).words))
            assert said["--router-policy"] == ["consistent_hashing"] and "--use-fault-tolerance" in said, name
