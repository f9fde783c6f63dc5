"""A recipe becomes the namespace that plug-ins and engines read, under SLiME's own names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from launch.args import EMBEDDED_SEED, checkpoint_folder, to_args
from launch.config import resolve
from launch.keys import flatten
from recipes.base import RecipeError

SLIME_NAMES = """
hf_checkpoint rollout_batch_size n_samples_per_prompt num_rollout over_sampling_batch_size rollout_max_response_len
rollout_max_context_len rollout_temperature rollout_top_p rollout_top_k rollout_stop rollout_stop_token_ids
rollout_skip_special_tokens rollout_seed rollout_shuffle sglang_router_ip sglang_router_port sglang_server_concurrency
sglang_enable_deterministic_inference reward_key group_rm partial_rollout save load custom_generate_function_path
custom_rm_path custom_reward_post_process_path dynamic_sampling_filter_path data_source_path
custom_rollout_log_function_path custom_eval_rollout_log_function_path optimizer lr lr_decay_style lr_warmup_iters
adam_beta1 adam_beta2 adam_eps weight_decay clip_grad eps_clip eps_clip_high use_kl_loss kl_loss_coef kl_loss_type
use_tis tis_clip entropy_coef advantage_estimator grpo_std_normalization rewards_normalization num_steps_per_rollout
max_tokens_per_gpu use_rollout_routing_replay eval_interval n_samples_per_eval_prompt seed
""".split()
OUR_NAMES = """
swe_tasks swe_eval_tasks swe_agent swe_tool_format swe_system_prompt swe_max_turns swe_time_budget swe_sandbox
swe_sandbox_concurrency swe_reward_mode swe_max_attempts swe_run_dir swe_threads
""".split()


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    return folder


@pytest.fixture
def recipe(checkpoint):
    return resolve("tiny_cpu", [f"model.checkpoint={checkpoint}"])


def test_names_are_exactly_those_of_the_contract(recipe, tmp_path):
    assert sorted(vars(to_args(recipe, tmp_path))) == sorted(SLIME_NAMES + OUR_NAMES)


def test_every_field_of_the_recipe_reaches_the_engine_or_is_named_here(recipe, tmp_path):
    """A field that nothing reads is a promise that nothing keeps."""
    before = vars(to_args(recipe, tmp_path))
    read_elsewhere = {
        "name", "description", "hardware", "run.name", "run.dir",  # the launcher
        "cluster.nodes", "cluster.gpus_per_node", "parallel.tp", "parallel.pp", "parallel.cp",  # the recipe's checks
        "parallel.ep", "parallel.etp",
    }  # fmt: skip
    for key, value in flatten(dataclasses.asdict(recipe)):
        if key in read_elsewhere or key == "model.checkpoint":
            continue
        section, name = key.split(".")
        section_changed = dataclasses.replace(getattr(recipe, section), **{name: other_than(value)})
        changed = dataclasses.replace(recipe, **{section: section_changed})
        assert vars(to_args(changed, tmp_path)) != before, key


def other_than(value):
    if isinstance(value, bool):
        return not value
    return (
        value + 7 if isinstance(value, int | float) else {str: "other", list: ["other"], dict: {"a": "b"}}[type(value)]
    )


def test_paths_are_absolute_and_only_a_resumed_run_loads(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fresh, resumed = to_args(recipe, Path("runs/a")), to_args(recipe, Path("runs/a"), resume=True)
    assert fresh.swe_run_dir == str(tmp_path / "runs/a")
    assert fresh.load is None
    assert resumed.load == resumed.save == str(tmp_path / "runs/a/checkpoints")
    assert vars(fresh) | {"load": resumed.load} == vars(resumed)


def test_zero_stands_for_the_default(recipe, tmp_path):
    args = to_args(recipe, tmp_path)
    assert args.over_sampling_batch_size == args.rollout_batch_size
    assert args.eval_interval is None
    assert args.sglang_router_ip is None and args.sglang_router_port is None


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"holds no config.json.*embedded:seed"):
        checkpoint_folder(str(tmp_path))


def test_the_seed_policy_comes_with_the_package():
    assert (checkpoint_folder(EMBEDDED_SEED) / "model.safetensors").is_file()
