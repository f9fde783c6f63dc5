"""A 1.2 M-parameter agent learns to repair small Python repositories, on a laptop without a GPU.

    slime-swe train recipe=tiny_cpu

What it changes from GRPO as published (DeepSeekMath, arXiv:2402.03300), and why:

- no KL penalty, no reference model: the reward is a test suite, which a policy can't please without repairing the code;
- clip-higher (DAPO, arXiv:2503.14476): rare good edits may grow faster than they may shrink, which keeps exploration;
- groups in which every episode, or none, solved the task carry no gradient, and are not sampled again: near the end
  most groups are such, and steps become small by themselves;
- the baseline is over trajectories, whatever the number of training sequences that each became;
- truncated episodes are trained like others, where larger recipes mask them: the budgets are tight on purpose, and to
  keep within them is what the policy learns first;
- two optimizer steps on each rollout: on a CPU sampling costs more than training. Four were worse;
- 18 rollouts, as long as a visitor watches: the rate falls to zero over them, so that the end is the best point. 48
  ended no higher;
- the ratio's denominator is the server's: on the embedded engine it has the trainer's to the last bits, without a
  forward pass.
"""

from __future__ import annotations

from slime_swe.recipes.base import (
    Alarms,
    Algorithm,
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
        name="tiny_cpu",
        description="Qwen2-style seed policy of 1.2 M parameters on generated one-bug repositories",
        hardware="2 CPU cores, 4 GiB memory, no GPU",
        model=Model(
            checkpoint="embedded:seed",
            config={
                "model_type": "qwen2",
                "num_hidden_layers": 5,
                "hidden_size": 128,
                "intermediate_size": 384,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "vocab_size": 1217,
                "tie_word_embeddings": True,
                "rope_theta": 10000.0,
                "rms_norm_eps": 1e-6,
                "max_position_embeddings": 2048,
            },
            tool_format="qwen3_coder",
        ),
        cluster=Cluster(nodes=1, gpus_per_node=0, threads=1),
        parallel=Parallel(max_tokens_per_gpu=8192),
        serving=Serving(concurrency=128, deterministic=True),
        rollout=Rollout(
            batch_size=16,
            samples_per_task=8,
            max_turns=8,
            max_response=160,
            max_context=640,
            time_budget=60.0,
            no_call_turns=1,  # the seed policy knows no such answer, and its context has no room for it
            mask_truncated=[],
            sandbox_concurrency=32,
            system_prompt="Repair the code.",  # what the seed policy was trained with
        ),
        reward=Reward(mode="plus_minus"),
        data=Data(
            train=["synthetic:train"],
            eval={"heldout": "synthetic:heldout", "unseen": "synthetic:unseen"},
            eval_samples_per_task=1,
        ),
        algorithm=Algorithm(
            group_filter="",  # every group is trained, so that each rollout takes as long
            clip_low=0.2,
            clip_high=0.28,
            std_normalization=False,
            steps_per_rollout=2,
            rollout_logprobs=True,
        ),
        optimizer=Optimizer(lr=1.2e-3, schedule="linear", beta1=0.9, beta2=0.95, weight_decay=0.0, clip_grad=1.0),
        alarms=Alarms(uninformative=0.9),  # in the end most groups are solved by all, which is the aim
        run=Run(num_rollouts=18, seed=0),
    )
