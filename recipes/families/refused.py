"""Why a model that people ask for is of no family here, by the `model_type` of its `config.json`.

What SLiME can load is in its `slime/backends/megatron_utils/hf_to_megatron/__init__.py`, read at the pinned commit.
"""

from __future__ import annotations

from collections.abc import Mapping

_SPARSE = (
    "SLiME has sparse attention as a plug-in, with an indexer whose weights and cache no part here counts, and shares "
    "out sequences in another way (--allgather-cp), which is not planned here"
)
_KIMI_K2 = (
    "Kimi-K2-Instruct scales its positions with beta_fast 1, and SLiME's Megatron-LM has 32 and no flag for it, so "
    "that it would be trained with other positions than it is served with"
)
_NOT_LOADED = "SLiME can't load its checkpoints"

REFUSED: Mapping[str, tuple[str, str]] = {
    "deepseek_v2": ("DeepSeek-V2", _NOT_LOADED),
    "deepseek_v32": ("DeepSeek-V3.2", _SPARSE),
    "gemma2": ("Gemma 2", _NOT_LOADED),
    "gemma3": ("Gemma 3", _NOT_LOADED),
    "gemma3_text": ("Gemma 3", _NOT_LOADED),
    "gemma4": ("Gemma 4", _NOT_LOADED),
    "glm4": ("GLM-4", "its layers have norms behind attention and feed-forward too, which no part here counts"),
    "glm_moe_dsa": ("GLM-5", _SPARSE),
    "gpt_oss": ("gpt-oss", _NOT_LOADED),
    "kimi_k2": ("Kimi-K2", _KIMI_K2),
    "kimi_k25": ("Kimi-K2.5", _NOT_LOADED),
    "llama4": ("Llama 4", _NOT_LOADED),
    "mimo": (
        "MiMo",
        "Transformers has no class for it, which the toys of tests and rehearsals are made by. Its layers are Qwen2's: "
        "a subclass of slime_swe.recipes.families.qwen2.Qwen2 with model_types = ('mimo',) reads it",
    ),
    "mistral": ("Mistral", _NOT_LOADED),
    "mixtral": ("Mixtral", _NOT_LOADED),
    "nemotron_h": ("Nemotron-H and Nemotron 3", _NOT_LOADED),
    "phi3": ("Phi-3 and Phi-4", _NOT_LOADED),
    "qwen2_moe": ("Qwen1.5-MoE and Qwen2-MoE", "SLiME has no model file of it that its flags could be compared with"),
    "qwen3_vl": ("Qwen3-VL", _NOT_LOADED),
    "qwen3_vl_moe": ("Qwen3-VL", _NOT_LOADED),
}
"""`model_type` -> the models that have it, and why they are refused."""


def why(model_type: object) -> str:
    """A sentence; empty for a type that is not in the table."""
    if not isinstance(model_type, str) or model_type not in REFUSED:
        return ""
    models, reason = REFUSED[model_type]
    return f"{models} ({model_type}) can't be trained here: {reason}"
