"""Recipes become jobs: every shipped one, and each choice of algorithm, schedule and layout."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from slime_swe.errors import UserError
from slime_swe.launch.config import flatten
from slime_swe.launch.engines import require_legal, violations
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.render import render, to_args
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.registry import RECIPES, load_recipe
from tests.launch.slime.other import other_than
from tests.recipes.changes import changed, variant

CHECKOUTS = Checkouts(Path("/slime"), Path("/megatron"))
FOLDER = Path("/runs/a")
ON_GPUS = [name for name in RECIPES if load_recipe(name).engine == "slime"]
FIRST = "qwen25_coder_7b"
MIXTURE = "qwen3_coder_30b_a3b"
READ_ELSEWHERE = {
    "name", "description", "hardware", "engine", "run.name", "run.dir",  # the command line
    "cluster.cpus_per_node", "cluster.memory_per_node", "cluster.disk_per_node", "cluster.gpu_hour_price",  # planner
    "forecast.sampled", "forecast.turns",  # planner
    "cluster.gpu", "cluster.ray_address", "data.allow_overlap", "serving.server",  # the launcher and the engine
    "warm_start.data", "warm_start.epochs", "warm_start.batch_size", "warm_start.lr",  # the stage's own job
    "algorithm.lora_rank", "algorithm.lora_alpha", "algorithm.lora_targets",  # engine=miles
}  # fmt: skip


def job_of(recipe, **options):
    return render(recipe, FOLDER, checkouts=CHECKOUTS, **options)


def flags_of(recipe, **options):
    """Flag -> its values, of the whole command."""
    return dict(split(job_of(recipe, **options).words))


@pytest.mark.parametrize("name", ON_GPUS)
def test_every_shipped_recipe_is_a_command_line_that_slime_takes(name):
    job = job_of(load_recipe(name))
    SLIME.manifest.check(job.words)
    said = dict(split(job.words))
    assert len(said) == sum(word.startswith("--") for word in job.words), "a flag is said twice"
    required = {name for name, flag in SLIME.manifest.flags.items() if flag.required and flag.owner == "slime"}
    assert required <= set(said)


@pytest.mark.parametrize("name", (FIRST, MIXTURE))
def test_every_field_of_the_recipe_reaches_the_job_or_is_named_here(name):
    """A field that nothing reads is a promise that nothing keeps."""
    recipe = variant(
        name, algorithm__kl_coef=0.1, run__trackers=["wandb"], serving__dp_attention=False, cluster__colocate=False
    )
    before = job_of(recipe)
    for key, value in flatten(dataclasses.asdict(recipe)):
        if key not in READ_ELSEWHERE:
            assert job_of(changed(recipe, key, other_than(key, value))) != before, key


def test_places_are_absolute_and_lie_in_the_run_s_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = render(load_recipe(FIRST), Path("runs/a"), checkouts=CHECKOUTS)
    assert job.directory == tmp_path / "runs/a"
    assert all(job.directory in path.parents for path in job.files)
    said = dict(split(job.words))
    assert said["--save"] == [str(tmp_path / "runs/a/checkpoints")]
    assert said["--hf-checkpoint"] == [str(tmp_path / "models/Qwen/Qwen2.5-Coder-7B-Instruct")]
    assert said["--ref-load"] == [str(tmp_path / "models/Qwen/Qwen2.5-Coder-7B-Instruct_torch_dist")]


def test_only_a_resumed_run_loads_its_own_checkpoints():
    recipe = load_recipe(FIRST)
    fresh, resumed = flags_of(recipe), flags_of(recipe, resume=True)
    assert "--load" not in fresh
    assert fresh | {"--load": [str(FOLDER / "checkpoints")], "--override-opt-param-scheduler": []} == resumed


def test_what_slime_has_no_flag_for_is_in_the_settings_file():
    job = job_of(load_recipe(FIRST))
    path = FOLDER / "slime" / "settings.yaml"
    settings = yaml.safe_load(job.files[path])
    assert dict(split(job.words))["--custom-config-path"] == [str(path)]
    assert set(settings) and all(name.startswith("swe_") for name in settings)
    assert settings["swe_run_dir"] == str(FOLDER)


def test_every_engine_gets_the_same_mixture():
    """Filters are part of the sets' names, so that nothing beside the task registry has to know them."""
    mixture = {
        "data__train": ["a.jsonl", "synthetic:train?limit=5"],
        "data__weights": [3.0, 1.0],
        "data__filters": {"tests": "2-"},
    }
    expected = {
        "swe_tasks": [f"{Path.cwd()}/a.jsonl?tests=2-", "synthetic:train?tests=2-&limit=5"],
        "swe_weights": [3.0, 1.0],
    }
    rendered = yaml.safe_load(job_of(variant(FIRST, **mixture)).files[FOLDER / "slime" / "settings.yaml"])
    assert {name: rendered[name] for name in expected} == expected
    for engine in ("embedded", "slime_cpu"):
        args = to_args(variant("tiny_cpu", engine=engine, **mixture), FOLDER)
        assert {name: getattr(args, name) for name in expected} == expected


def test_evaluation_sets_are_named_to_slime_and_to_the_function_that_plays_them():
    recipe = variant(FIRST, data__eval={"held/out": "synthetic:heldout", "own": "tasks.jsonl"})
    job = job_of(recipe)
    content = yaml.safe_load(job.files[FOLDER / "slime" / "evaluation.yaml"])["eval"]
    sets = {"held/out": "synthetic:heldout", "own": str(Path.cwd() / "tasks.jsonl")}
    assert {entry["name"]: entry["path"] for entry in content["datasets"]} == sets
    assert yaml.safe_load(job.files[FOLDER / "slime" / "settings.yaml"])["swe_eval_tasks"] == sets


@pytest.mark.parametrize(("interval", "said"), [(5, "5"), (0, "40")])
def test_evaluation_before_and_after_at_least(interval, said):
    recipe = variant(FIRST, run__eval_interval=interval, run__num_rollouts=40)
    assert flags_of(recipe)["--eval-interval"] == [said]


def test_slime_s_own_engines_are_sent_their_weights():
    assert not any(flag.startswith("--update-weight-") for flag in flags_of(load_recipe(FIRST)))


def test_without_evaluation_sets_nothing_is_evaluated():
    said = flags_of(variant(FIRST, data__eval={}))
    assert not {"--eval-interval", "--eval-config"} & set(said)


@pytest.mark.parametrize(("name", "more"), [(FIRST, {}), ("glm4_7_flash", {"--sglang-moe-dense-tp-size": ["1"]})])
def test_attention_by_data_comes_with_what_holds_it_together(name, more):
    """Dense layers have to stay shared where SGLang's model knows no other way: that is in mixtures alone."""
    said = flags_of(variant(name, serving__dp_attention=True, serving__gpus_per_engine=4))
    wanted = {
        "--sglang-enable-dp-attention": [],
        "--sglang-data-parallel-size": ["4"],
        "--sglang-enable-dp-lm-head": [],
        **more,
    }
    assert wanted.items() <= said.items()
    assert more or "--sglang-moe-dense-tp-size" not in said
    without = flags_of(variant(name, serving__dp_attention=False))
    assert not {"--sglang-enable-dp-attention", "--sglang-enable-dp-lm-head", *more} & set(without)


TWO_STEPS = {"algorithm__steps_per_rollout": 2}
APART = {"cluster__colocate": False, "cluster__rollout_gpus": 8}
CHOICES = [
    ({"algorithm__estimator": "grpo"}, {"--advantage-estimator": ["grpo"]}),
    ({"algorithm__estimator": "gspo", **TWO_STEPS}, {"--advantage-estimator": ["gspo"]}),
    (
        {"algorithm__estimator": "cispo", **TWO_STEPS, "algorithm__clip_low": 1.0, "algorithm__clip_high": 4.0},
        {"--advantage-estimator": ["cispo"], "--eps-clip": ["1.0"], "--eps-clip-high": ["4.0"]},
    ),
    ({"algorithm__dual_clip": 3.0, **TWO_STEPS}, {"--eps-clip-c": ["3.0"]}),
    ({"algorithm__opsm_delta": 0.01, **TWO_STEPS}, {"--use-opsm": [], "--opsm-delta": ["0.01"]}),
    ({"algorithm__keep_old_actor": True, "rollout__schedule": "async", **APART}, {"--keep-old-actor": []}),
    ({"algorithm__reduction": "token"}, {"--calculate-per-token-loss": []}),
    (
        {"algorithm__reduction": "constant"},
        {"--custom-pg-loss-reducer-function-path": ["slime_swe.launch.slime.slime_plugin.constant_reduction"]},
    ),
    ({"algorithm__clip_high": 0.28}, {"--eps-clip": ["0.2"], "--eps-clip-high": ["0.28"]}),
    ({"algorithm__mismatch": "truncate", "algorithm__mismatch_low": 0.5}, {"--use-tis": [], "--tis-clip-low": ["0.5"]}),
    (
        {"algorithm__mismatch": "icepop", "algorithm__mismatch_high": 5.0},
        {
            "--use-tis": [],
            "--tis-clip": ["5.0"],
            "--custom-tis-function-path": ["slime.backends.megatron_utils.loss.icepop_function"],
        },
    ),
    (
        {"algorithm__mismatch": "mis"},
        {"--custom-tis-function-path": ["slime_swe.launch.slime.slime_plugin.masked_importance_sampling"]},
    ),
    ({"algorithm__rollout_logprobs": True, "algorithm__mismatch": "none"}, {"--use-rollout-logprobs": []}),
    ({"algorithm__std_normalization": False}, {"--disable-grpo-std-normalization": []}),
    ({"algorithm__normalize_rewards": False}, {"--disable-rewards-normalization": []}),
    (
        {"algorithm__kl_coef": 0.01, "algorithm__kl_type": "k3", "algorithm__kl_unbiased": True},
        {"--use-kl-loss": [], "--kl-loss-coef": ["0.01"], "--kl-loss-type": ["k3"], "--use-unbiased-kl": []},
    ),
    (
        {"algorithm__kl_coef": 0.01, "algorithm__kl_in": "reward"},
        {
            "--kl-coef": ["0.01"],
            "--kl-loss-coef": ["0.0"],
            "--custom-advantage-function-path": ["slime_swe.launch.slime.slime_plugin.advantages_less_kl"],
        },
    ),
    ({"parallel__recompute": "selective"}, {"--recompute-granularity": ["selective"]}),
    ({"parallel__recompute": "full"}, {"--recompute-granularity": ["full"], "--recompute-method": ["uniform"]}),
    ({"parallel__tp": 2}, {"--tensor-model-parallel-size": ["2"], "--sequence-parallel": []}),
    ({"optimizer__cpu_offload": True}, {"--optimizer-cpu-offload": [], "--use-precision-aware-optimizer": []}),
    ({"run__trackers": ["wandb"], "run__project": "p"}, {"--use-wandb": [], "--wandb-project": ["p"]}),
    ({"cluster__colocate": False, "cluster__rollout_gpus": 16}, {"--rollout-num-gpus": ["16"]}),
    ({"cluster__nodes": 2}, {"--actor-num-nodes": ["2"], "--rollout-num-gpus": ["16"], "--num-gpus-per-node": ["8"]}),
    (
        {"serving__external_engines": ["a:1", "b:2"], "cluster__colocate": False},
        {
            "--rollout-external-engine-addrs": ["a:1", "b:2"],
            "--update-weight-transport": ["disk"],
            "--update-weight-disk-dir": ["/runs/a/weights"],
        },
    ),
    ({"algorithm__group_filter": "a.b"}, {"--dynamic-sampling-filter-path": ["a.b"]}),
]


@pytest.mark.parametrize(("changes", "expected"), CHOICES)
def test_each_choice_is_its_flags(changes, expected):
    recipe = variant(FIRST, **changes)
    assert not violations(recipe)
    said = flags_of(recipe)
    assert {flag: said.get(flag) for flag in expected} == expected


@pytest.mark.parametrize(
    ("replay", "flag", "other"),
    [
        ("train", "--use-routing-replay", "--use-rollout-routing-replay"),
        ("rollout", "--use-rollout-routing-replay", "--use-routing-replay"),
    ],
)
def test_routing_replay(replay, flag, other):
    said = flags_of(variant(MIXTURE, algorithm__routing_replay=replay))
    assert flag in said and other not in said


@pytest.mark.parametrize(
    ("changes", "script", "function"),
    [
        ({}, "train.py", "slime_swe.rollout.slime_plugin.generate_rollout"),
        ({**APART, "rollout__schedule": "async"}, "train_async.py", "slime_swe.rollout.slime_plugin.generate_rollout"),
        (
            {**APART, "rollout__schedule": "continuous"},
            "train_async.py",
            "slime_swe.rollout.slime_plugin.generate_rollout",
        ),
        ({"rollout__schedule": "carry"}, "train.py", "slime_swe.rollout.slime_plugin.generate_rollout"),
        (
            {**APART, "rollout__schedule": "continuous", "rollout__max_staleness": 0},
            "train.py",
            "slime_swe.rollout.slime_plugin.generate_rollout",
        ),
    ],
)
def test_schedules(changes, script, function):
    recipe = variant(FIRST, **changes)
    assert not violations(recipe)
    assert job_of(recipe).program[-1] == f"/slime/{script}"
    assert flags_of(recipe)["--rollout-function-path"] == [function]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm__reduction": "constant", "algorithm__kl_coef": 0.1},
        {"algorithm__reduction": "constant", "algorithm__entropy_coef": 0.1},
    ],
)
def test_what_slime_would_do_otherwise_is_refused(changes):
    with pytest.raises(UserError):
        require_legal(variant(FIRST, **changes))


def test_environment():
    job = job_of(variant(FIRST, run__trackers=["tensorboard"]))
    assert job.environment["PYTHONPATH"].split(":")[:2] == ["/slime", "/megatron"]
    assert job.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert job.environment["TENSORBOARD_DIR"] == str(FOLDER / "tensorboard")
    assert "GLOO_SOCKET_IFNAME" not in job.environment
    named = job_of(variant(FIRST, cluster__interface="eth1")).environment
    assert named["GLOO_SOCKET_IFNAME"] == named["NCCL_SOCKET_IFNAME"] == "eth1"
    assert job.environment["NCCL_NVLS_ENABLE"] == "0"


def test_checkouts_are_those_of_the_image_by_default(tmp_path):
    assert SLIME.checkouts({}) == Checkouts(Path("/root/slime"), Path("/root/Megatron-LM"))
    environment = {"SLIME_HOME": str(tmp_path), "MEGATRON_HOME": "/m"}
    assert SLIME.checkouts(environment) == Checkouts(tmp_path, Path("/m"))
    with pytest.raises(UserError, match="SLIME_HOME"):
        SLIME.require(environment)
