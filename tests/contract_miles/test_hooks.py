"""Our plug-ins as miles' own code finds them, calls them and takes what they return."""

from __future__ import annotations

import inspect
from argparse import Namespace

import pytest

from slime_swe.launch.slime.render import PLUG_INS, ROLLOUT_FUNCTION
from slime_swe.rollout.engine import ADAPTER
from slime_swe.rollout.episode import Episode, Segment, StopReason
from slime_swe.rollout.records import to_samples
from tests.contract.asked import is_as_the_loop_takes_it
from tests.contract.rollouts import GROUP, a_masked_rollout, a_rollout, flat, play

THIRD = 1 / 3  # minus the baseline of both groups: three episodes earned 1, -1 and -1; 2 was broken, 5 had no turn
SCHEDULED = {"dp_size": 1, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
ARGS = {
    "reward_key": None,
    "rewards_normalization": True,
    "grpo_std_normalization": False,
    "global_batch_size": GROUP,
    "use_dynamic_global_batch_size": False,
    "use_dynamic_batch_size": True,
    "max_tokens_per_gpu": 24,
    "disable_rollout_trim_samples": False,
    "balance_data": False,
    "balance_by_flops": False,
    "multi_lora": False,
}


def test_the_samples_are_miles_own(miles_home):
    from miles.utils.types import Sample

    assert all(type(sample) is Sample for sample in flat(a_rollout()))


def test_each_hook_of_ours_is_a_flag_of_miles_but_that_of_advantages(miles_home):
    from slime_swe.launch.engines.miles import MILES
    from slime_swe.launch.slime.upstream import SLIME

    functions = {"rollout_function_path", "eval_function_path", *PLUG_INS}
    losses = {"custom_advantage_function_path", "custom_pg_loss_reducer_function_path", "custom_tis_function_path"}
    known = {flag.dest for flag in MILES.manifest.flags.values()}
    assert functions <= known and losses - known == {"custom_advantage_function_path"}
    assert losses <= {flag.dest for flag in SLIME.manifest.flags.values()}


def test_the_rollout_function_is_called_as_slime_calls_it_and_returns_miles_types(miles_home, monkeypatch):
    from miles.rollout.base_types import (
        RolloutFnConstructorInput,
        RolloutFnEvalInput,
        RolloutFnEvalOutput,
        RolloutFnTrainInput,
        RolloutFnTrainOutput,
    )
    from miles.rollout.inference_rollout.compatibility import call_rollout_function, load_rollout_function

    from slime_swe.rollout import slime_plugin

    async def collect(args, rollout_id, data_source):
        return slime_plugin.RolloutFnTrainOutput([rollout_id, data_source])

    async def evaluate(args):
        return slime_plugin.RolloutFnEvalOutput({"seen": args})

    monkeypatch.setattr(slime_plugin, "_collect", collect)  # what would need engines
    monkeypatch.setattr(slime_plugin, "_evaluate", evaluate)
    made = load_rollout_function(RolloutFnConstructorInput(args=Namespace(), data_source="tasks"), ROLLOUT_FUNCTION)
    output = call_rollout_function(made, RolloutFnTrainInput(rollout_id=3, weight_version=1))
    assert output == RolloutFnTrainOutput([3, "tasks"])
    assert call_rollout_function(made, RolloutFnEvalInput(rollout_id=3)) == RolloutFnEvalOutput({"seen": Namespace()})


def test_generate_is_taken_for_a_function_with_slimes_arguments(miles_home):
    from miles.rollout.inference_rollout.compatibility import LegacyGenerateFnAdapter, load_generate_function

    adapter = load_generate_function("slime_swe.rollout.slime_plugin.generate")
    assert type(adapter) is LegacyGenerateFnAdapter and adapter._has_evaluation_param


def test_the_reward_function_takes_what_miles_gives_it(miles_home):
    """miles calls it as `rm_function(args, samples, **kwargs)` for a group, and with a sample for one."""
    from miles.rollout.rm_hub import async_rm, batched_async_rm

    from slime_swe.rewards.slime_plugin import reward

    assert all("rm_function(args, sample" in inspect.getsource(call) for call in (async_rm, batched_async_rm))
    inspect.signature(reward).bind(Namespace(), [], evaluation=True)


def test_a_group_is_filtered(miles_home):
    from miles.rollout.filter_hub.base_types import call_dynamic_filter

    from slime_swe.rewards.slime_plugin import keep_group

    args = Namespace(reward_key=None)
    assert call_dynamic_filter(keep_group, args, a_rollout()[0]).keep
    verdict = call_dynamic_filter(keep_group, args, [play(index, reward=-1.0) for index in range(4)])
    assert (verdict.keep, verdict.reason) == (False, "all_unsolved")


def train_data(groups, **changes):
    """What miles' rollout manager makes of the groups that our rollout function returns."""
    from miles.ray.rollout.rollout_data_conversion import postprocess_rollout_data
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data

    from slime_swe.rewards.slime_plugin import post_process
    from slime_swe.rollout.slime_plugin import as_groups

    args = Namespace(**ARGS | changes)
    samples, metadata = postprocess_rollout_data(args, as_groups(groups), train_parallel_config=SCHEDULED)
    return args, convert_samples_to_train_data(args, samples, metadata, None, post_process)


def test_advantages_masks_and_denominators_are_per_episode(miles_home):
    _, data = train_data(a_rollout())
    by_rollout = dict(zip(data["rollout_ids"], data["rewards"], strict=True))
    assert by_rollout == pytest.approx(
        {0: 1 + THIRD, 1: THIRD - 1, 2: 0.0, 3: THIRD - 1, 4: 1 + THIRD, 5: 0.0, 6: THIRD - 1, 7: THIRD - 1}
    )
    siblings = [place for place, owner in enumerate(data["rollout_ids"]) if owner == 0]
    total = sum(sum(data["loss_masks"][place]) for place in siblings)
    assert len(siblings) == 3 and {data["rollout_mask_sums"][place] for place in siblings} == {total}
    assert data["truncated"] == [int(owner == 1) for owner in data["rollout_ids"]]
    assert all(versions == ["1"] for versions in data["weight_versions"] if versions)


def test_a_masked_episode_is_in_the_baseline_and_not_in_the_loss(miles_home):
    _, data = train_data([a_masked_rollout(("max_turns", "time_budget"))])
    assert data["rewards"] == pytest.approx([1.5, -0.5, -0.5, -0.5, -0.5])
    sums = [sum(mask) for mask in data["loss_masks"]]
    assert min(sums[:2]) > 0 and sums[2:] == data["rollout_mask_sums"][2:] == [0, 0, 0]


def test_the_split_keeps_every_sample_once_and_an_episode_in_one_step(miles_home):
    from miles.ray.rollout.train_data_conversion import (
        can_schedule_on_rollout_side,
        split_train_data_by_dp_scheduled_raw,
    )

    args, data = train_data(a_rollout())
    assert can_schedule_on_rollout_side(args, data, SCHEDULED)
    (rank,) = split_train_data_by_dp_scheduled_raw(args, data, train_parallel_config=SCHEDULED)
    assert sorted(rank["partition"]) == list(range(len(flat(a_rollout()))))
    batches, steps = iter(rank["micro_batch_indices"]), {}
    for step, count in enumerate(rank["num_microbatches"]):
        for local in (local for _ in range(count) for local in next(batches)):
            steps.setdefault(rank["rollout_ids"][local], set()).add(step)
    assert sorted(steps) == [*range(2 * GROUP)] and all(len(found) == 1 for found in steps.values())


def test_routed_experts_are_the_array_that_miles_checks(miles_home):
    import numpy

    from slime_swe.sample import Sample

    table = numpy.arange(1, 1 + 4 * 6, dtype=numpy.int32)
    segment = Segment(
        [1, 2, 3, 4, 5], [0, 1, 1, 0, 1], [0.0, -0.5, -0.5, 0.0, -0.5], 1, routed_experts=(table.tobytes(),)
    )
    args = Namespace(num_layers=3, moe_router_topk=2)
    episode = Episode("task", (segment,), "", StopReason.SUBMITTED)
    (sample,) = to_samples(args, Sample(index=0, metadata={}), episode, str, placeholder=0)
    sample.validate()
    assert numpy.array_equal(sample.rollout_routed_experts, table.reshape(4, 3, 2))


def test_logging_is_called_and_miles_goes_on_to_log_our_metrics(miles_home, tmp_path, monkeypatch):
    from miles.ray.rollout import metrics

    seen = {}
    monkeypatch.setattr(metrics.tracking, "log", lambda args, figures, step_key: seen.update(figures))
    paths = {name: f"slime_swe.rollout.slime_plugin.{function}" for name, function in LOGS.items()}
    args = Namespace(**SETTINGS, **paths, swe_run_dir=str(tmp_path))
    metrics.log_rollout_data(0, args, flat(a_rollout()), {"rollout/staleness": 0.0}, 2.0)
    assert {"rollout/staleness", "swe/episodes", "rollout/truncated_ratio"} <= seen.keys()
    assert (tmp_path / "episodes.jsonl").read_text().count("\n") == len(flat(a_rollout()))
    samples = [play(index, reward=1.0) for index in range(2)]
    evaluated = {"verified": {"rewards": [1.0, 1.0], "truncated": [False, False], "samples": samples}}
    metrics.log_eval_rollout_data(0, args, evaluated, {})
    assert {"eval/verified", "eval/verified/swe/episodes"} <= seen.keys()


LOGS = {
    "custom_rollout_log_function_path": "log_rollout",
    "custom_eval_rollout_log_function_path": "log_evaluation",
}
SETTINGS = {
    "reward_key": None, "sglang_router_ip": "127.0.0.1", "sglang_router_port": 1, "hf_checkpoint": "unused",
    "rollout_max_context_len": 100, "swe_agent": "native", "swe_tool_format": "hermes", "swe_system_prompt": "",
    "swe_max_turns": 1, "swe_time_budget": 1.0, "swe_sandbox": "local", "swe_sandbox_concurrency": 1,
    "swe_max_attempts": 1, "rollout_seed": 0, "load_debug_rollout_data": None, "log_passrate": False, "ci_test": False,
    "advantage_estimator": "grpo", "log_reward_category": None, "sglang_speculative_algorithm": None,
    "wandb_always_use_train_step": False, "rollout_num_gpus": 1, "rollout_batch_size": 2, "n_samples_per_prompt": GROUP,
    "n_samples_per_eval_prompt": 1, "use_session_server": False, "debug_rollout_only": False,
}  # fmt: skip


def test_the_adapter_is_asked_for_by_its_name(miles_home):
    from miles.utils.lora import LORA_ADAPTER_NAME

    assert ADAPTER == LORA_ADAPTER_NAME


@pytest.mark.parametrize("script", ["train.py", "train_async.py"])
def test_miles_asks_whether_to_save_and_then_whether_to_evaluate(miles_home, script):
    is_as_the_loop_takes_it(miles_home / script, "miles")
