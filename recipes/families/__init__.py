"""`Family`: what one kind of model needs everywhere, stated in one file of this folder; nothing else names a family.

Adding one is a subclass of `Family` in one file, which a recipe names by its dotted path (`model.family=mine.Phi`); a
line in `FAMILIES` gives it a short name, and lets a recipe leave it out. A model of a known family is a recipe alone.
`refused.py` says of other models why no family reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.recipes.families.config import Config as Config
from slime_swe.recipes.families.refused import why
from slime_swe.recipes.families.tokens import CHATML, ControlTokens
from slime_swe.recipes.shape import Shape

FAMILIES: Mapping[str, str] = {
    "qwen2": "slime_swe.recipes.families.qwen2.Qwen2",
    "qwen3": "slime_swe.recipes.families.qwen3.Qwen3",
    "qwen3_moe": "slime_swe.recipes.families.qwen3_moe.Qwen3Moe",
    "qwen3_next": "slime_swe.recipes.families.qwen3_next.Qwen3Next",
    "qwen3_5": "slime_swe.recipes.families.qwen3_5.Qwen3_5",
    "glm4_moe": "slime_swe.recipes.families.glm4_moe.Glm4Moe",
    "glm4_moe_lite": "slime_swe.recipes.families.glm4_moe_lite.Glm4MoeLite",
    "minimax_m2": "slime_swe.recipes.families.minimax_m2.MiniMaxM2",
    "deepseek_v3": "slime_swe.recipes.families.deepseek_v3.DeepseekV3",
    "llama": "slime_swe.recipes.families.llama.Llama",
}
QUANTISED = ("fp8", "compressed-tensors")  # forms in which a server may hold the weights that SLiME sends it


class Family:
    """One kind of model.

    model_types: that it reads, in `config.json`.
    tool_format: how its published chat template writes tool calls: a name in `rollout.chat.tool_formats.TOOL_FORMATS`;
        empty where there is none for it, and a recipe must name its own.
    template: a shipped chat template with its control tokens, where the one of its tool format has others; else empty.
    control_tokens: of its published tokenizer.
    adapters: Megatron-Bridge makes it with LoRA adapters for packed sequences, as miles trains it.
    dp_attention: SGLang can give each GPU of an engine the attention of its own requests.
    served_on_cpu: SGLang can serve it on a CPU without `sgl-kernel`.
    packed_experts: its published checkpoints hold the experts of a layer in one tensor, as SLiME reads them.
    in_miles: miles 31f1ca96 has a layer specification and a conversion of weights for it.
    """

    model_types: ClassVar[tuple[str, ...]]
    tool_format: ClassVar[str]
    template: ClassVar[str] = ""
    control_tokens: ClassVar[ControlTokens] = CHATML
    adapters: ClassVar[bool] = False
    dp_attention: ClassVar[bool] = True
    served_on_cpu: ClassVar[bool] = True
    packed_experts: ClassVar[bool] = False
    in_miles: ClassVar[bool] = True

    def read(self, config: Config) -> Shape:
        """The shape that a `config.json` states. Raises `UserError` where a part of it can't be trained."""
        raise NotImplementedError

    def toy(self) -> dict[str, Any]:
        """The `config.json` of a small model with each kind of layer, for tests and rehearsals."""
        raise NotImplementedError


def load_family(name: str, model_type: object = None) -> Family:
    """The family of a short name or a dotted path; without a name, the one that reads this `model_type`.

    Raises `UserError` with what there is.
    """
    if not name:
        return _reader_of(model_type)
    found = load_registered(name, FAMILIES, "model.family")
    if not (isinstance(found, type) and issubclass(found, Family)):
        raise UserError(f"model.family={name}: it must be a subclass of slime_swe.recipes.families.Family")
    return found()


def read_config(family: Family, content: Any) -> tuple[Shape, Config]:
    """The shape of a `config.json`, and what was read of it. Raises `UserError`: another family's, or not trainable."""
    config = Config(content)
    kind = config.text("model_type")
    if kind not in family.model_types:
        said = f"it is a {kind} model, and the recipe is for {' and '.join(family.model_types)} models"
        raise UserError(". ".join(filter(None, (said, why(kind)))))
    _require_updatable(content)
    return family.read(config), config


def _require_updatable(content: Mapping[str, Any]) -> None:
    """Raises `UserError` for weights whose kind SLiME's update of a server does not write
    (`slime/backends/megatron_utils/megatron_to_hf/processors`)."""
    quantised = content.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
    if method is not None and method not in QUANTISED:
        raise UserError(
            f"quantization_config.quant_method is {method!r}: weights of this form can't be updated while the model is "
            f"trained. Give the checkpoint that they were made of; a server may have {' or '.join(QUANTISED)} "
            "(docs/slime_flags.md)"
        )


def _reader_of(model_type: object) -> Family:
    families = [load_family(name) for name in FAMILIES]
    for family in families:
        if model_type in family.model_types:
            return family
    known = ", ".join(kind for family in families for kind in family.model_types)
    said = f"model_type {model_type!r} is of no family here, which read {known}: name yours in model.family"
    raise UserError(". ".join(filter(None, (said, why(model_type)))))
