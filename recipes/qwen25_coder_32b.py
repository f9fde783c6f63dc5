"""Qwen2.5-Coder-32B-Instruct on four nodes: the large dense preset.

    slime-swe train recipe=qwen25_coder_32b data.train=[path/to/tasks.jsonl]

What it changes from GRPO as published (DeepSeekMath, arXiv:2402.03300), and why:

- no KL penalty, no reference model: the reward is a test suite, and a second copy of the model costs memory;
- clip-higher (DAPO, arXiv:2503.14476): rare good edits may grow faster than they may shrink;
- groups in which every episode, or none, solved the task are dropped and others sampled in their place (DAPO);
- advantages are not divided by the group's deviation (Dr. GRPO, arXiv:2503.20783), which would weigh tasks by how
  seldom they are solved;
- the baseline is over trajectories, whatever the number of training sequences that each became;
- truncated importance sampling: SGLang and Megatron compute slightly different probabilities of the same token.

What it trains on: the tasks that you name, one `Task` object a line; without `data.train` it is `embedded:train`,
generated one-bug repositories, which says whether everything works and little about a model of this size.

On one node: cluster.nodes=1 parallel.cp=1 parallel.max_tokens_per_gpu=32768 optimizer.cpu_offload=true

What to expect: this recipe has not been run on GPUs. Published for this model on SWE-bench Verified: 61.4 % pass@1
after fine-tuning on expert episodes, which this recipe does not do, and then GRPO.
"""

from __future__ import annotations

from recipes.base import (
    Algorithm,
    Architecture,
    Cluster,
    Data,
    Model,
    Optimizer,
    Parallel,
    Recipe,
    Reward,
    Rollout,
    Run,
    Serving,
)


def recipe() -> Recipe:
    return Recipe(
        name="qwen25_coder_32b",
        description="Qwen2.5-Coder-32B-Instruct, 32k context, GRPO",
        hardware="4 nodes of 8 x H100-80GB",
        engine="slime",
        model=Model(
            checkpoint="Qwen/Qwen2.5-Coder-32B-Instruct",
            architecture=Architecture(
                family="qwen2",
                layers=64,
                hidden=5120,
                ffn=27648,
                heads=40,
                kv_heads=8,
                head_dim=128,
                vocab=152064,
                tied=False,
                rope_theta=1e6,
                rms_eps=1e-6,
                qkv_bias=True,
                qk_norm=False,
                max_context=32768,
            ),
            tool_format="hermes",
        ),
        cluster=Cluster(
            nodes=4,
            gpus_per_node=8,
            gpu="H100-80GB",
            cpus_per_node=96,
            memory_per_node=1024,
            disk_per_node=2048,
        ),
        parallel=Parallel(tp=8, cp=2, max_tokens_per_gpu=16384, recompute="full"),
        serving=Serving(gpus_per_engine=4, concurrency=64, deterministic=False, mem_fraction=0.7),
        rollout=Rollout(
            batch_size=32,
            samples_per_task=8,
            max_turns=50,
            max_response=4096,
            max_context=32768,
            time_budget=1200.0,
            sandbox_concurrency=64,
            system_prompt=(
                "You are a software engineer. Repair the repository in the working directory: look at its files, "
                "change them, run its tests, and submit when they pass."
            ),
        ),
        reward=Reward(mode="plus_minus"),
        data=Data(train=["embedded:train"], eval={"heldout": "embedded:heldout"}),
        algorithm=Algorithm(clip_low=0.2, clip_high=0.28, tis=True, tis_clip=2.0, std_normalization=False),
        optimizer=Optimizer(lr=1e-6, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_grad=1.0),
        run=Run(num_rollouts=200, eval_interval=20, save_interval=20),
    )
