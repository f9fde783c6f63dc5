"""What SLiME, Megatron and SGLang would refuse, refused first, with the field, its value and a fix."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_swe.launch.engines import violations
from tests.recipes.changes import changed, variant

DENSE, MOE, ASYNC = "qwen25_coder_7b", "qwen3_coder_30b_a3b", "qwen3_coder_30b_a3b_async"
GATED, LATENT = "qwen3_6_35b_a3b", "glm4_7_flash"

ACTING_ON_RATIO = {
    "algorithm.estimator": "gspo",
    "algorithm.dual_clip": 3.0,
    "algorithm.opsm_delta": 0.01,
}
ILLEGAL = [  # recipe, what is changed, the field that is named, what is said
    (DENSE, {"data__weights": [1.0, 2.0]}, "data.weights", "holds 2 numbers, and data.train 1 task sets"),
    (DENSE, {"data__weights": [float("inf")]}, "data.weights", "holds a number that is not finite"),
    (DENSE, {"data__boost_below": 0.5, "data__retire_above": 0.4}, "data.boost_below", "that data.retire_above=0.4"),
    (DENSE, {"data__filters": {"limit": "3"}}, "data.filters", "holds limit, which is no filter: use repo, not_repo"),
    (DENSE, {"run__num_rollouts": 0, "data__eval": {}}, "run.num_rollouts", "and data.eval names no set"),
    (DENSE, {"rollout__tries": 2, "rollout__agent": "aider"}, "rollout.tries", "is for the native agent"),
    (DENSE, {"parallel__tp": 8}, "parallel.tp", "28 attention heads and 4 KV heads: use 1, 2 or 4"),
    (DENSE, {"parallel__pp": 8}, "parallel.pp", "does not divide the 28 layers: use 1, 2, 4, 7, 14 or 28"),
    (DENSE, {"parallel__cp": 3}, "parallel.cp", "not a power of 2"),
    (DENSE, {"parallel__tp": 4, "parallel__cp": 4}, "parallel.tp", "groups of 16 GPUs, which do not divide the 8"),
    (DENSE, {"parallel__ep": 2}, "parallel.ep", "has no experts: use 1"),
    (DENSE, {"parallel__etp": 2}, "parallel.etp", "has no experts: use 1"),
    (DENSE, {"rollout__batch_size": 5, "rollout__samples_per_task": 5, "parallel__cp": 2}, "rollout.batch_size",
     "a multiple of 2"),
    (DENSE, {"rollout__max_context": 65536}, "parallel.max_tokens_per_gpu", "raise max_tokens_per_gpu to 16384"),
    (DENSE, {"rollout__max_context": 65536}, "rollout.max_context", "made for, 32768 tokens"),
    (DENSE, {"reward__overlong_tokens": 32769}, "reward.overlong_tokens",
     "reward.overlong_tokens=32769 is more than rollout.max_context=32768"),
    (DENSE, {"reward__overlong_turns": 51}, "reward.overlong_turns", "is more than rollout.max_turns=50"),
    (DENSE, {"cluster__gpu": ""}, "cluster.gpu", "name the kind of GPU"),
    (DENSE, {"serving__gpus_per_engine": 0}, "serving.gpus_per_engine", "give at least 1"),
    (DENSE, {"serving__gpus_per_engine": 3}, "serving.gpus_per_engine", "does not divide the 8 GPUs that train too"),
    (DENSE, {"serving__gpus_per_engine": 8}, "serving.gpus_per_engine", "28 attention heads"),
    (DENSE, {"serving__ep": 2}, "serving.ep", "no experts: use 1"),
    (DENSE, {"serving__dp_attention": True}, "serving.dp_attention", "not there for qwen2"),
    (MOE, {"serving__dp_attention": True}, "serving.dp_attention", "saves nothing"),
    (GATED, {"parallel__tp": 4}, "parallel.tp", "among more GPUs than their 2 KV heads: use 1 or 2"),
    (LATENT, {"rollout__generate": "my_module.generate"}, "serving.dp_attention", "is not known to send all turns"),
    (LATENT, {"slime__flags": {"sglang-speculative-algorithm": "EAGLE"}},
     "slime.flags.sglang-speculative-algorithm", "48 requests at once"),
    (DENSE, {"rollout__wall_time_budget": 60.0}, "rollout.wall_time_budget", "is less than rollout.time_budget=900"),
    (MOE, {"parallel__ep": 3}, "parallel.ep", "can't share out 128 experts: use 1, 2, 4"),
    (MOE, {"parallel__etp": 2}, "parallel.ep", "parallel.etp=2 x parallel.ep=8 x parallel.pp=1 makes groups of 16"),
    (MOE, {"parallel__etp": 5}, "parallel.etp", "can't share out an expert's width of 768"),
    (MOE, {"serving__ep": 3}, "serving.ep", "must divide both serving.gpus_per_engine=4 and the 128 experts"),
    (MOE, {"cluster__gpus_per_node": 6, "cluster__nodes": 4, "serving__gpus_per_engine": 4},
     "serving.gpus_per_engine", "neither divides nor is a multiple of cluster.gpus_per_node=6"),
    (MOE, {"cluster__rollout_gpus": 8}, "cluster.rollout_gpus", "set rollout_gpus to 0 or colocate to false"),
    (MOE, {"cluster__colocate": False}, "cluster.rollout_gpus", "leaves no GPU to serve on"),
    (MOE, {"rollout__schedule": "async"}, "rollout.schedule", "cluster.colocate=true can't"),
    (MOE, {"serving__external_engines": ["10.0.0.1:30000"]}, "serving.external_engines", "colocate to false"),
    (ASYNC, {"serving__external_engines": ["10.0.0.1:30000"]}, "serving.external_engines", "rollout_gpus to 0"),
    (MOE, {"rollout__schedule": "continuous"}, "rollout.schedule", "cluster.colocate=true can't"),
    (MOE, {"rollout__schedule": "carry", "rollout__generate": "my_module.generate"}, "rollout.schedule",
     "is not known to go on with a turn"),
    (ASYNC, {"rollout__schedule": "continuous", "rollout__generate": "my_module.generate"}, "rollout.schedule",
     "is not known to go on with a turn"),
    (DENSE, {"algorithm__routing_replay": "rollout"}, "algorithm.routing_replay", "no experts to route to"),
    (MOE, {"algorithm__routing_replay": "train", "algorithm__rollout_logprobs": True, "algorithm__mismatch": "none"},
     "algorithm.routing_replay", "which algorithm.rollout_logprobs=true leaves out"),
    (DENSE, {"algorithm__rollout_logprobs": True}, "algorithm.mismatch", "or set rollout_logprobs to false"),
    *[(name, {key.replace(".", "__"): value}, key, "which is 1 throughout") for name in (DENSE, ASYNC)
      for key, value in ACTING_ON_RATIO.items()],
    (DENSE, {"algorithm__estimator": "cispo", "algorithm__dual_clip": 3.0}, "algorithm.dual_clip", "does not have"),
    (DENSE, {"algorithm__dual_clip": 1.0}, "algorithm.dual_clip", "use more than 1"),
    (ASYNC, {"algorithm__keep_old_actor": True, "algorithm__rollout_logprobs": True}, "algorithm.keep_old_actor",
     "set one of them to false"),
    *[(MOE, {"algorithm__keep_old_actor": True, "rollout__schedule": name}, "algorithm.keep_old_actor",
       "use async or continuous") for name in ("sync", "carry")],
    (ASYNC, {"algorithm__keep_old_actor": True, "rollout__max_staleness": 0}, "algorithm.keep_old_actor",
     "set it to false"),
    (DENSE, {"algorithm__kl_unbiased": True}, "algorithm.kl_unbiased", "algorithm.kl_coef=0"),
    (DENSE, {"algorithm__kl_unbiased": True, "algorithm__kl_coef": 0.1, "algorithm__kl_in": "reward"},
     "algorithm.kl_unbiased", "algorithm.kl_in=reward"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "field", "said"), ILLEGAL)
def test_what_would_be_refused_later_is_refused_now(name, changes, field, said):
    found = [violation for violation in violations(variant(name, **changes)) if violation.field == field]
    assert any(said in str(violation) for violation in found), violations(variant(name, **changes))
    assert all(violation.fix and field in violation.message for violation in found)


MOVES_RATIO = [
    (DENSE, {"algorithm__steps_per_rollout": 2}),
    (DENSE, {"algorithm__rollout_logprobs": True, "algorithm__mismatch": "none"}),
    (ASYNC, {"algorithm__keep_old_actor": True}),
    (ASYNC, {"algorithm__keep_old_actor": True, "rollout__schedule": "async"}),
]
LEGAL = [
    (DENSE, {"parallel__tp": 4, "parallel__cp": 1, "parallel__max_tokens_per_gpu": 32768}),
    (DENSE, {"parallel__tp": 1, "parallel__pp": 4, "parallel__cp": 2, "parallel__max_tokens_per_gpu": 16384}),
    (DENSE, {"cluster__nodes": 4}),
    (DENSE, {"algorithm__kl_coef": 0.01, "algorithm__kl_in": "reward"}),
    ("qwen25_coder_32b", {"cluster__nodes": 1, "parallel__cp": 1, "parallel__max_tokens_per_gpu": 32768}),
    ("qwen25_coder_1_5b", {"parallel__tp": 4}),  # more GPUs than KV heads: these are copied
    (MOE, {"serving__gpus_per_engine": 8, "serving__ep": 8, "serving__dp_attention": True}),
    (MOE, {"cluster__nodes": 2, "serving__gpus_per_engine": 16, "serving__ep": 16, "serving__dp_attention": True}),
    (MOE, {"cluster__colocate": False, "serving__external_engines": ["10.0.0.1:30000"], "serving__gpus_per_engine": 0}),
    (ASYNC, {"rollout__schedule": "async"}),
    (ASYNC, {"rollout__schedule": "async", "rollout__generate": "my_module.generate"}),
    (MOE, {"rollout__schedule": "carry"}),
    *[
        (name, {key.replace(".", "__"): value} | moving)
        for key, value in [*ACTING_ON_RATIO.items(), ("algorithm.estimator", "cispo")]
        for name, moving in MOVES_RATIO
    ],
]


@pytest.mark.parametrize(("name", "changes"), LEGAL)
def test_what_would_run_is_not_refused(name, changes):
    assert violations(variant(name, **changes)) == []


SIZES = ("parallel.tp", "parallel.pp", "parallel.ep", "parallel.etp", "serving.gpus_per_engine", "serving.ep")


@given(st.sampled_from([DENSE, MOE]), st.sampled_from(SIZES), st.integers(1, 17), st.data())
def test_each_size_that_a_fix_offers_mends_what_it_was_offered_for(name, key, size, data):
    recipe = changed(variant(name), key, size)
    for violation in violations(recipe):
        offered = re.fullmatch(r"use ([\d, or]+)", violation.fix)
        if violation.field == key and offered:
            mended = changed(recipe, key, int(data.draw(st.sampled_from(re.findall(r"\d+", offered[1])))))
            reasons = {left.message.split(" ", 1)[1] for left in violations(mended) if left.field == key}
            assert violation.message.split(" ", 1)[1] not in reasons
