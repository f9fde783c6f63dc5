"""Bytes of activations on one GPU in training. Pure arithmetic.

Starts from table 2 of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models"), with
what these models do otherwise: flash attention (nothing quadratic is kept), grouped-query attention, gated feed-forward
layers, RMS norms, no dropout, experts. bf16 unless said; sequence parallelism wherever tp > 1, as in SLiME's scripts.
Tokens are those of one micro-batch on one GPU: `parallel.max_tokens_per_gpu`.

Invariants, which tests hold: none of it grows with tp; full recomputation never takes more than selective, and
selective never more than none; all of it is proportional to the tokens.
"""

from __future__ import annotations

from slime_swe.launch.plan.formulae import Layout, padded_vocab
from slime_swe.recipes.architecture import Architecture


def saved_bytes(
    architecture: Architecture, layout: Layout, tokens: int, *, recompute: str, stage: int, in_flight: int, skew: float
) -> float:
    """What the forward passes of all micro-batches in flight keep for the backward pass.

    in_flight: micro-batches that a pipeline stage has begun and not finished: at most pp - stage in the schedule 1F1B
        (Narayanan et al. 2021), and no more than there are.
    skew: tokens that the busiest expert-parallel rank gets, over the mean.
    """
    per_layer = (
        architecture.hidden * 2 / layout.tp
        if recompute == "full"
        else layer_bytes(architecture, layout, selective=recompute == "selective", skew=skew)
    )
    final = 4 * architecture.hidden / layout.tp if stage == layout.pp - 1 else 0.0  # the last norm's input and output
    layers = architecture.layers // layout.pp
    return tokens * (in_flight * layers * per_layer + final)


def layer_bytes(architecture: Architecture, layout: Layout, *, selective: bool, skew: float) -> float:
    """What one layer keeps of one token, nothing recomputed but the core of attention if `selective`.

    Both norms' inputs and outputs: 8h (Transformer Engine keeps a projection's input before it gathers it).
    """
    norms = 8 * architecture.hidden / layout.tp
    if architecture.experts:
        return norms + attention_bytes(architecture, layout.tp, selective) + expert_bytes(architecture, layout, skew)
    return norms + attention_bytes(architecture, layout.tp, selective) + 6 * architecture.ffn / layout.tp


def attention_bytes(architecture: Architecture, tp: int, selective: bool) -> float:
    """The fused projection (q + 2k, of which the values are a view), queries and keys after rotation, the output, one
    more copy of the queries where they have a norm, and 4 bytes a head of softmax statistics. These alone are saved by
    recomputing the core of flash attention."""
    queries, keys = architecture.heads * architecture.head_dim, architecture.kv_heads * architecture.head_dim
    statistics = 0 if selective else 4 * architecture.heads
    return (6 * queries + 6 * keys + 2 * queries * architecture.qk_norm + statistics) / tp


def expert_bytes(architecture: Architecture, layout: Layout, skew: float) -> float:
    """One layer's experts, a token: the sorted inputs (2h), gate and up projections (4f) and their product (2f) of each
    token's top k, and the router's logits, scores and mask (10 bytes an expert).

    A rank sends its tokens / tp, k times each, and gets as many back; with etp > 1 it gets those of etp ranks and a
    1/etp of each expert's width. Source: Megatron-LM `core/transformer/moe/token_dispatcher.py` (all-to-all).
    """
    width = 2 * architecture.hidden * layout.etp + 6 * architecture.expert_ffn
    return (skew * architecture.experts_per_token * width + 10 * architecture.experts) / layout.tp


def workspace_bytes(architecture: Architecture, layout: Layout, tokens: int, *, recompute: str, skew: float) -> float:
    """The most that one layer's backward pass needs for a moment: the gathered input and its gradient (4h, not sharded
    by tp), gradients of the widest projections, and under full recomputation the layer's own activations again."""
    again = 0.0
    if recompute == "full":  # its input is among what is saved
        again = layer_bytes(architecture, layout, selective=False, skew=skew) - 2 * architecture.hidden / layout.tp
    queries, keys = architecture.heads * architecture.head_dim, architecture.kv_heads * architecture.head_dim
    attention = (8 * queries + 4 * keys) / layout.tp  # of the output, q, k, v; the kernel sums dq in fp32
    if architecture.experts:
        width = 4 * architecture.hidden * layout.etp + 6 * architecture.expert_ffn
        feed_forward = skew * architecture.experts_per_token * width / layout.tp
    else:
        feed_forward = 6 * architecture.ffn / layout.tp
    return tokens * (again + 4 * architecture.hidden + max(attention, feed_forward))


def logits_bytes(architecture: Architecture, layout: Layout, tokens: int, *, entropy: bool, scaled: bool) -> float:
    """fp32 `[tokens, vocab / tp]`: the logits and their softmax, which becomes the gradient in place; a third one where
    entropy has a gradient or the temperature is not 1.

    Taken on the last stage, over all tokens. Computing log-probabilities in chunks saves nothing here: each chunk keeps
    its softmax, and the gradients are joined again. Source: SLiME `utils/ppo_utils.py`,
    `_VocabParallelLogProbEntropy`, and `backends/megatron_utils/loss.py`, `get_log_probs_and_entropy`.
    """
    copies = 3 if entropy or scaled else 2
    return 4.0 * copies * tokens * padded_vocab(architecture.vocab, layout.tp) / layout.tp
