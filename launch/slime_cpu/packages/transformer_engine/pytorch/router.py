"""Fused routing, which `--moe-router-fusion` asks for: Megatron takes None for a Transformer Engine without it."""

fused_compute_score_for_moe_aux_loss = None
fused_moe_aux_loss = None
fused_topk_with_score_function = None
