"""Bytes of activations on one GPU in training. Pure arithmetic.

What a layer keeps, its parts know (`recipes/layers/`); here layers, micro-batches and the logits are added up. bf16
unless said; sequence parallelism wherever tp > 1, as in SLiME's scripts. Tokens are those of one micro-batch on one
GPU: `parallel.max_tokens_per_gpu`.

Invariants, which tests hold: none of it grows with tp; full recomputation never takes more than selective, and
selective never more than none; all of it is proportional to the tokens.
"""

from __future__ import annotations

from slime_swe.launch.plan.formulae import padded_vocab
from slime_swe.recipes.layout import Layout
from slime_swe.recipes.shape import Shape


def saved_bytes(
    shape: Shape, layout: Layout, tokens: int, *, recompute: str, stage: int, in_flight: int, skew: float
) -> float:
    """What the forward passes of all micro-batches in flight keep for the backward pass.

    in_flight: micro-batches that a pipeline stage has begun and not finished: at most pp - stage in the schedule 1F1B
        (Narayanan et al. 2021), and no more than there are.
    skew: tokens that the busiest expert-parallel rank gets, over the mean.
    """
    layers = shape.stage(stage, layout.pp).items()
    kept = sum(count * layer.saved(layout, recompute=recompute, skew=skew) for layer, count in layers)
    final = 4 * shape.hidden / layout.tp if stage == layout.pp - 1 else 0.0  # the last norm's input and output
    return tokens * (in_flight * kept + final)


def workspace_bytes(shape: Shape, layout: Layout, tokens: int, *, recompute: str, stage: int = 0, skew: float) -> float:
    """The most that one layer's backward pass needs for a moment."""
    layers = shape.stage(stage, layout.pp)
    return tokens * max(layer.workspace(layout, recompute=recompute, skew=skew) for layer in layers)


def logits_bytes(shape: Shape, layout: Layout, tokens: int, *, entropy: bool, scaled: bool) -> float:
    """fp32 `[tokens, vocab / tp]`: the logits and their softmax, which becomes the gradient in place; a third one where
    entropy has a gradient or the temperature is not 1.

    Taken on the last stage, over all tokens. Computing log-probabilities in chunks saves nothing here: each chunk keeps
    its softmax, and the gradients are joined again. Source: SLiME `utils/ppo_utils.py`,
    `_VocabParallelLogProbEntropy`, and `backends/megatron_utils/loss.py`, `get_log_probs_and_entropy`.
    """
    copies = 3 if entropy or scaled else 2
    return 4.0 * copies * tokens * padded_vocab(shape.vocab, layout.tp) / layout.tp
