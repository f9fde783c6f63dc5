"""A recipe becomes the namespace that plug-ins and engines read, under SLiME's own names."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from slime_swe.data_sources.registry import absolute
from slime_swe.launch.config import flatten, resolve
from slime_swe.launch.engines.embedded import RULES
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.slime.render import to_args
from tests.launch.slime.other import other_than
from tests.recipes.changes import changed

SLIME_NAMES = """
hf_checkpoint rollout_batch_size n_samples_per_prompt num_rollout over_sampling_batch_size rollout_max_response_len
rollout_max_context_len rollout_temperature rollout_top_p rollout_top_k rollout_stop rollout_stop_token_ids
rollout_skip_special_tokens rollout_seed rollout_shuffle sglang_router_ip sglang_router_port sglang_server_concurrency
sglang_enable_deterministic_inference reward_key group_rm save save_interval load
custom_generate_function_path custom_rm_path custom_reward_post_process_path dynamic_sampling_filter_path
data_source_path custom_rollout_log_function_path custom_eval_rollout_log_function_path optimizer lr lr_decay_style
lr_warmup_iters adam_beta1 adam_beta2 adam_eps weight_decay clip_grad eps_clip eps_clip_high use_kl_loss kl_loss_coef
kl_loss_type kl_coef use_unbiased_kl custom_advantage_function_path use_tis tis_clip tis_clip_low
custom_tis_function_path use_rollout_logprobs eps_clip_c use_opsm opsm_delta keep_old_actor
entropy_coef advantage_estimator calculate_per_token_loss custom_pg_loss_reducer_function_path grpo_std_normalization
rewards_normalization num_steps_per_rollout max_tokens_per_gpu use_routing_replay use_rollout_routing_replay
eval_interval n_samples_per_eval_prompt seed
""".split()
OUR_NAMES = """
swe_tasks swe_weights swe_eval_tasks swe_agent swe_tool_format swe_system_prompt swe_max_turns swe_time_budget
swe_wall_time_budget swe_chat_template swe_sandbox swe_max_over_sampling swe_schedule swe_max_staleness swe_version_lag
swe_sandbox_concurrency swe_reward_mode swe_harness swe_harness_python swe_negative_control swe_max_attempts swe_run_dir
swe_mask_truncated swe_overlong_tokens swe_overlong_turns swe_overlong_penalty swe_reward_weights swe_last_mile
swe_grammar swe_grammar_kind swe_grammar_tolerance swe_tries swe_retire_above swe_boost_below swe_rate_episodes
swe_threads swe_keep_checkpoints swe_keep_exports swe_attempt swe_mismatch_veto swe_trackers swe_project
swe_no_call_turns swe_keep_disk_free swe_outage_limit swe_alarms swe_keep_best swe_save_every_minutes
swe_cached_episodes swe_least_spread
""".split()
READ_ELSEWHERE = {
    "name", "description", "hardware", "engine", "run.name", "run.dir",  # the command line
    "model.checkpoint", "model.folder", "model.config", "model.family",  # tested by themselves
    "cluster.cpus_per_node", "cluster.memory_per_node", "cluster.disk_per_node", "cluster.gpu_hour_price",  # planner
    "serving.mem_fraction",  # of a GPU
    "forecast.context", "forecast.sampled", "forecast.turns",  # planner; with GPUs, how many begin
    "forecast.solved",  # planner, and with a filter the cap of sampling
    "serving.server",  # the engine's rules
    "data.allow_overlap",  # before any engine
    "warm_start.data", "warm_start.epochs", "warm_start.batch_size", "warm_start.lr",  # in the recipe of the stage
    "algorithm.lora_alpha", "algorithm.lora_targets",  # of no use without a rank, which this engine refuses
}  # fmt: skip
ONE_VALUE = {key for key, _, _ in RULES}  # of every other value the recipe's checks say why there is none


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(checkpoint_folder(EMBEDDED_SEED) / "config.json", folder)
    return folder


@pytest.fixture
def recipe(checkpoint):
    return resolve("tiny_cpu", [f"model.checkpoint={checkpoint}"])


def test_names_are_exactly_those_of_the_contract(recipe, tmp_path):
    assert sorted(vars(to_args(recipe, tmp_path))) == sorted(SLIME_NAMES + OUR_NAMES)


def test_every_field_of_the_recipe_reaches_the_engine_or_is_named_here(recipe, tmp_path):
    """A field that nothing reads is a promise that nothing keeps."""
    recipe = dataclasses.replace(recipe, algorithm=dataclasses.replace(recipe.algorithm, kl_coef=0.1))
    before = vars(to_args(recipe, tmp_path))
    for key, value in flatten(dataclasses.asdict(recipe)):
        if key not in READ_ELSEWHERE | ONE_VALUE:
            assert vars(to_args(changed(recipe, key, other_than(key, value)), tmp_path)) != before, key


def test_paths_are_absolute_and_only_a_resumed_run_loads(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fresh, resumed = to_args(recipe, Path("runs/a")), to_args(recipe, Path("runs/a"), resume=True)
    assert fresh.swe_run_dir == str(tmp_path / "runs/a")
    assert fresh.load is None
    assert resumed.load == resumed.save == str(tmp_path / "runs/a/checkpoints")
    assert vars(fresh) | {"load": resumed.load} == vars(resumed)


def test_zero_stands_for_the_default(recipe, tmp_path):
    args = to_args(recipe, tmp_path)
    assert args.eval_interval is None
    assert args.sglang_router_ip is None and args.sglang_router_port is None


def test_task_files_are_named_by_their_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("a/tasks.jsonl") == str(tmp_path / "a/tasks.jsonl")
    assert absolute("synthetic:train") == "synthetic:train"


@pytest.mark.parametrize(
    ("place", "expected"),
    [("loss", {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_coef": 0.0}),
     ("reward", {"use_kl_loss": False, "kl_loss_coef": 0.0, "kl_coef": 0.1})],
)  # fmt: skip
def test_the_kl_penalty_is_in_one_place(recipe, tmp_path, place, expected):
    args = vars(to_args(changed(changed(recipe, "algorithm.kl_coef", 0.1), "algorithm.kl_in", place), tmp_path))
    assert {name: args[name] for name in expected} == expected
