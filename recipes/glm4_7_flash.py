"""GLM-4.7-Flash, which thinks before each reply: 64 experts and multi-head latent attention, on two nodes.

    slime-swe train recipe=glm4_7_flash

What is not stated here is in `gpu_defaults.py`. The chat template is ours: it keeps the reasoning of earlier turns.

Context parallelism takes the place of tensor parallelism. Under that Megatron counts the projections to the latent once
for each rank in the gradient's norm, which is then clipped early: a rehearsal with tp 4 found it 26 % too large.

Engines have data-parallel attention, as in SLiME's script for this model: the latent is cached whole on each GPU that
attends to a request, so that four GPUs which attend together have room for 0.8 million tokens, and else for 3.1.

Tool calls: the untrained model writes those of its template, not always well-formed (ollama#13820). Shares are not
published.

Follows: miles' example of training a coding agent, for this model: ep 8, 64k context, lr 1e-6. It has tp 4, a KL
penalty of 0.01 and samples at temperature 0.8; none is taken over (docs/recipes.md says why).

Expect: no score: none is published of that example. This recipe has not been run on GPUs.

Forecast: 59.2 % of the episodes solve their task, as its card says of SWE-bench Verified. That a model which thinks
samples 60 % of its episodes' tokens is assumed.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe, Slime
from slime_swe.recipes.gpu_defaults import GRPO, H100_NODE, R2E_GYM, ROLLOUT, SERVING, SLIME, gpu_recipe

# The model's own layer drafts, and the model accepts as it would have sampled, so that probabilities are its own. The
# figures are of SLiME's script for this model (scripts/run-glm4.7-30B-A3B.sh), which trains that layer too. Here it
# stays as it is, so that fewer drafts are accepted as the policy moves away. Without the last, SGLang runs 48 requests.
DRAFTS = {
    "sglang-speculative-algorithm": "EAGLE",
    "sglang-speculative-num-steps": 3,
    "sglang-speculative-eagle-topk": 1,
    "sglang-speculative-num-draft-tokens": 4,
    "sglang-max-running-requests": 128,
}


def recipe() -> Recipe:
    return gpu_recipe(
        name="glm4_7_flash",
        description="GLM-4.7-Flash, thinking, 64k context, GRPO with routing replay",
        checkpoint="zai-org/GLM-4.7-Flash",
        config={
            "model_type": "glm4_moe_lite",
            "num_hidden_layers": 47,
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "q_lora_rank": 768,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
            "n_routed_experts": 64,
            "n_shared_experts": 1,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1536,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.8,
            "vocab_size": 154880,
            "tie_word_embeddings": False,
            "rope_theta": 1000000.0,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 202752,
        },
        chat_template="glm4_7",
        hardware="2 nodes of 8 x H100-80GB",
        cluster=replace(H100_NODE, nodes=2),
        parallel=Parallel(cp=8, ep=8, max_tokens_per_gpu=8192, recompute="full"),
        serving=replace(SERVING, gpus_per_engine=4, ep=4, dp_attention=True),
        rollout=replace(
            ROLLOUT, max_turns=100, max_response=16384, max_context=65536, time_budget=1800.0, sandbox="ray:docker"
        ),
        data=R2E_GYM,
        forecast=Forecast(solved=0.592, sampled=0.6),
        algorithm=replace(GRPO, routing_replay="rollout"),
        slime=Slime({**SLIME.flags, **DRAFTS}),
    )
