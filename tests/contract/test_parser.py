"""Every recipe's command line through SLiME's own parser and checks."""

from __future__ import annotations

import pytest

from slime_swe.launch.config import resolve
from slime_swe.launch.plan.admission import most_an_engine
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.toy import one_rank, scaled, shape_keys, toy_config
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.warm_start import stage_of
from slime_swe.recipes.base import Parallel
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.registry import RECIPES
from tests.contract.parsed import different, parsed, same
from tests.launch.rehearse.gpus import node
from tests.launch.slime.examples import examples
from tests.launch.warm_start.recorded import with_data
from tests.recipes.changes import variant

GPU_RECIPES = [name for name in RECIPES if resolve(name).engine == "slime"]


@pytest.fixture
def parse(slime_home, tmp_path, monkeypatch):
    """A recipe's job through SLiME's `parse_args`: what it made of it, and the attributes that we asked for."""
    from slime.utils.arguments import parse_args

    as_in_the_image(monkeypatch)
    return lambda recipe: parsed(recipe, parse_args, SLIME, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_slime_takes_the_command_line_and_means_what_we_mean(parse, name):
    """SLiME ignores a flag that it does not know, so each attribute is looked up."""
    assert changed_by_slime(*parse(resolve(name))) == {}


@pytest.mark.parametrize("name", GPU_RECIPES)
@pytest.mark.parametrize("kind", ["rollouts", "resume", "alone"])
def test_slime_takes_what_is_rehearsed_on_gpus(slime_home, tmp_path, monkeypatch, kind, name):
    """On a node of eight GPUs: the run itself, training alone on its dumps, and that on one rank."""
    from slime.utils.arguments import parse_args

    as_in_the_image(monkeypatch)
    own, platform = resolve(name), node(8)
    config = shape_keys(toy_config(own.model, platform), own.model)
    recipe = scaled(own, platform, tmp_path / "toy", config, tmp_path)
    dumped = tmp_path / "rollouts"

    def job_of(recipe, run):
        checkouts = SLIME.checkouts()
        if kind == "rollouts":
            return jobs.train_job(recipe, platform, run, checkouts)
        return jobs.replay_job(recipe, platform, run, checkouts, dumped, resume=False)

    recipe = one_rank(recipe) if kind == "alone" else recipe
    args, asked = parsed(recipe, parse_args, SLIME, tmp_path, monkeypatch, job_of)
    if kind != "rollouts":  # where nothing is served, SLiME does not parse what is for servers
        asked = {dest: value for dest, value in asked.items() if not dest.startswith(("sglang_", "router_"))}
    assert changed_by_slime(args, asked) == {}


@pytest.mark.parametrize("name", FAMILIES)
def test_slime_takes_each_family_s_flags_and_config(parse, name):
    """Of its toy, on one GPU a copy: SLiME compares its flags with the checkpoint's `config.json`."""
    recipe = variant("qwen3_coder_30b_a3b", model__config=load_family(name).toy(), parallel=Parallel())
    assert changed_by_slime(*parse(recipe)) == {}


@pytest.mark.parametrize(
    "settings",
    [
        "estimator=cispo clip_low=1 clip_high=4 rollout_logprobs=true mismatch=none",
        "estimator=gspo clip_low=3e-4 clip_high=4e-4 steps_per_rollout=2 dual_clip=3",
        "keep_old_actor=true opsm_delta=1e-4",
        "mismatch=icepop mismatch_low=0.5 mismatch_high=5",
        "mismatch=mis mismatch_low=0.5 mismatch_veto=1e-3",
    ],
)
def test_slime_takes_each_loss_and_loads_its_function(parse, settings):
    from slime.utils.misc import load_function

    overrides = [f"algorithm.{setting}" for setting in settings.split()]
    args, asked = parse(resolve("qwen3_coder_30b_a3b_async", overrides))
    assert changed_by_slime(args, asked) == {}
    if "mismatch_veto" in settings:
        assert args.swe_mismatch_veto == 1e-3
    if args.custom_tis_function_path:
        assert callable(load_function(args.custom_tis_function_path))


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_slime_takes_the_supervised_stage(parse, tmp_path, name):
    recipe = with_data(resolve(name), tmp_path / "solved.jsonl")
    args, asked = parse(stage_of(recipe, tmp_path / "run"))
    assert changed_by_slime(args, asked) == {}
    assert (args.loss_type, args.calculate_per_token_loss) == ("sft_loss", True)
    assert args.debug_train_only and not args.compute_advantages_and_returns and not args.offload_train
    assert args.custom_generate_function_path == "slime_swe.rollout.warm_start.generate"
    assert args.sglang_server_concurrency == most_an_engine(recipe)


def changed_by_slime(args, asked):
    return {dest: pair for dest, pair in different(args, asked).items() if dest not in SET_BY_SLIME}


SET_BY_SLIME = {
    "load",  # the converted checkpoint, where there is none to resume from
    "use_routing_replay",  # by use_rollout_routing_replay
}


def as_in_the_image(monkeypatch):
    """The parser of the router takes what that in SLiME's image takes, which is a fork without a package. The policies
    are in PyPI's router, whose parser leaves one out (`sglang_router.router.policy_from_str`)."""
    from slime.backends.sglang_utils import arguments

    def add(parser):
        parser = theirs(parser)
        for action in parser._actions:
            action.choices = [*(action.choices or ()), *more] if (more := choices(action)) else action.choices
        return parser

    def choices(action):
        return [choice for option in action.option_strings for choice in SLIME.of_the_image.get(option, ())]

    theirs = arguments.add_sglang_router_arguments
    monkeypatch.setattr(arguments, "add_sglang_router_arguments", add)


PASSED_ON = {  # a flag of each kind
    "router-policy": "manual",
    "async-save": "true",
    "attention-backend": "fused",
    "rollout-health-check-timeout": "60",
    "offload-rollout": "false",
    "sglang-cuda-graph-bs": "[1,2,4]",
    "sglang-log-level": "error",
    "train-env-vars": "{A: b}",
}


def test_slime_holds_the_value_of_each_kind_of_flag(parse):
    flags = [f"slime.flags.{name}={value}" for name, value in PASSED_ON.items()]
    args, asked = parse(resolve("qwen25_coder_1_5b", flags))
    dests = {SLIME.manifest.flags[f"--{name}"].dest for name in PASSED_ON}
    assert len(dests) == len(PASSED_ON)
    assert {dest: getattr(args, dest) for dest in dests if not same(args, dest, asked[dest])} == {}


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.title)
def test_slime_takes_every_documented_example(parse, example):
    name, *overrides = example.words
    args, asked = parse(resolve(name, overrides))
    assert changed_by_slime(args, asked) == {}
