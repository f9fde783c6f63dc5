"""What the recipes for GPUs share: machine, usual sizes, GRPO as it is changed here, optimizer, tasks and their prompt.

What is changed from GRPO as published (DeepSeekMath, arXiv:2402.03300), and why:

- no KL penalty, no reference model: the reward is a test suite, and a second copy of the model costs memory;
- clip-higher (DAPO, arXiv:2503.14476): rare good edits may grow faster than they may shrink. Neither bound acts while
  a rollout has one optimizer step and the old log-probabilities come from the weights that it trains: the ratio is 1;
- every trained token of a step weighs the same (`reduction=token`, DAPO), whatever the length of its episode;
- groups in which every episode, or none, solved the task are dropped and others sampled in their place (DAPO);
- episodes that a limit of time, turns or context cut are left out of the loss, but not of the baseline
  (`rollout.mask_truncated`);
- advantages are not divided by the group's deviation (Dr. GRPO, arXiv:2503.20783), which would weigh tasks by how
  seldom they are solved;
- the baseline is over trajectories, whatever the number of training sequences that each became;
- truncated importance sampling: SGLang and Megatron compute slightly different probabilities of the same token.

`rollout.schedule` stays `sync` where GPUs train and serve in turns, although by the planner's simulation `carry` takes
fewer GPU hours: no run on GPUs has shown that SLiME offloads its engines when requests were cut, and its fork has open
changes for engines that then time out (radixark/miles#1335, #1585).

Each recipe trains on a corpus of real repositories, in containers, and is evaluated on SWE-bench Verified:
`slime-swe tasks fetch` and `slime-swe tasks images` bring both. With `data.train=[synthetic:train] data.eval={}
rollout.sandbox=local` any of them trains on generated one-bug repositories, which say whether everything works and
little about a model of this size.
"""

from __future__ import annotations

from typing import Any

from slime_swe.recipes.base import (
    Algorithm,
    Cluster,
    Data,
    Model,
    Optimizer,
    Parallel,
    Recipe,
    Rollout,
    Run,
    Serving,
    Slime,
)

# The disk of machines to rent: AWS p5.48xlarge 30.7 TB, Azure ND H100 v5 28 TB, NVIDIA DGX H100 30.7 TB. On Google's
# a3-highgpu-8g, which has 6 TB, take a part of the tasks.
H100_NODE = Cluster(gpus_per_node=8, gpu="H100-80GB", cpus_per_node=96, memory_per_node=1024, disk_per_node=8192)
PARALLEL = Parallel(tp=2, cp=4, max_tokens_per_gpu=8192, recompute="none")
SERVING = Serving(gpus_per_engine=2, concurrency=0, deterministic=False, mem_fraction=0.7)
ROLLOUT = Rollout(
    batch_size=32,
    samples_per_task=8,
    max_turns=50,
    max_response=4096,
    max_context=32768,
    time_budget=900.0,
    wall_time_budget=7200.0,  # a batch waits for its slowest episode, on all GPUs; DeepSWE ends one after 5,400 s
    sandbox="docker",
    system_prompt="You are a software engineer. Repair the repository in the working directory: look at its files, "
    "change them, run its tests, and submit when they pass.",
)
GRPO = Algorithm(
    reduction="token", clip_low=0.2, clip_high=0.28, mismatch="truncate", mismatch_high=2.0, std_normalization=False
)
ADAMW = Optimizer(lr=1e-6, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_grad=1.0)
VERIFIED = {"verified": "swebench:verified"}
SWE_GYM = Data(train=["swegym:train"], eval=VERIFIED)
R2E_GYM = Data(train=["r2egym:subset"], eval=VERIFIED)
SWE_REBENCH = Data(train=["swerebench:filtered"], eval=VERIFIED)
RUN = Run(
    num_rollouts=200, eval_interval=20, save_interval=20, save_every_minutes=45, keep_checkpoints=2, keep_exports=2
)
# What SLiME's documents advise for agents (commit 624b824a):
SLIME = Slime(
    flags={
        # All turns of an episode reach the engine that has its prefix cached, by the header that `generate` sends
        # (docs/en/get_started/agent.md, "Agent Serving And Performance"; docs/en/advanced/sglang-config.md).
        "router-policy": "consistent_hashing",
        # An engine that hangs is stopped, and started anew with the next weights; turns that it had are asked for
        # again elsewhere meanwhile (docs/en/advanced/fault-tolerance.md, "Recommended Production Pattern").
        "use-fault-tolerance": True,
        # Seconds of each rollout before its first check: engines compile kernels, and one that fails a check meanwhile
        # is lost until the next weights. The wait begins anew with each rollout (slime/utils/health_monitor.py).
        "rollout-health-check-first-wait": 300,
        # While an engine is started anew, before the next weights, the other ranks wait for the first at a barrier, 10
        # minutes by default (slime/backends/megatron_utils/actor.py, update_weights): less than large weights take from
        # a network disk, and the run would end.
        "distributed-timeout-minutes": 60,
    }
)


def gpu_recipe(
    checkpoint: str, config: dict[str, Any], tool_format: str = "", chat_template: str = "", **parts: Any
) -> Recipe:
    """Make a recipe for SLiME of `parts` of `Recipe`, and those above for all that they leave out."""
    shared = {
        "engine": "slime",
        "hardware": "1 node of 8 x H100-80GB",
        "cluster": H100_NODE,
        "parallel": PARALLEL,
        "serving": SERVING,
        "rollout": ROLLOUT,
        "data": SWE_GYM,
        "algorithm": GRPO,
        "optimizer": ADAMW,
        "run": RUN,
        "slime": SLIME,
    }
    return Recipe(
        model=Model(checkpoint, config, tool_format=tool_format, chat_template=chat_template), **{**shared, **parts}
    )
