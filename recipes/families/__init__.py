"""`Family`: what one kind of model needs everywhere, stated in one file of this folder; nothing else names a family.

Adding one is a subclass of `Family` in one file, which a recipe names by its dotted path (`model.family=mine.Phi`); a
line in `FAMILIES` gives it a short name, and lets a recipe leave it out. A model of a known family is a recipe alone.
`REFUSED` says of other models why no family reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.recipes.layers import Shape

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


@dataclass(frozen=True)
class ControlTokens:
    """The special tokens of a family's tokenizer that its chat template is made of. control: those in the chat
    template. ends: of these, the ones that end a turn, the tokenizer's `eos_token` first. pad: its `pad_token`.

    words: added tokens that are not special, such as those around a tool call; a tokenizer has those of its template.
    """

    control: tuple[str, ...]
    ends: tuple[str, ...]
    pad: str
    words: tuple[str, ...] = (
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
    )


CHATML = ControlTokens(("<|im_start|>", "<|im_end|>"), ("<|im_end|>",), "<|endoftext|>")


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
        """Read the shape that a `config.json` states. Raises `UserError` where a part of it can't be trained."""
        raise NotImplementedError

    def toy(self) -> dict[str, Any]:
        """Return the `config.json` of a small model with each kind of layer, for tests and rehearsals."""
        raise NotImplementedError


def load_family(name: str, model_type: object = None) -> Family:
    """Return the family of a short name or a dotted path; without a name, the one that reads this `model_type`.

    Raises `UserError` with what there is.
    """
    if not name:
        return _reader_of(model_type)
    found = load_registered(name, FAMILIES, "model.family")
    if not (isinstance(found, type) and issubclass(found, Family)):
        raise UserError(f"model.family={name}: it must be a subclass of slime_swe.recipes.families.Family")
    return found()


def read_config(family: Family, content: Any) -> tuple[Shape, Config]:
    """Return the shape of a `config.json`, and what was read. Raises `UserError`: another family's, not trainable."""
    config = Config(content)
    kind = config.text("model_type")
    if kind not in family.model_types:
        said = f"it is a {kind} model, and the recipe is for {' and '.join(family.model_types)} models"
        raise UserError(". ".join(filter(None, (said, why(kind)))))
    _require_updatable(content)
    return family.read(config), config


class Config:
    """A `config.json`, or a section of it, as a family reads it by Hugging Face's own keys. It remembers what was read,
    and as what. Null counts as missing.

    values: dotted key -> the value that was read there, what stands for a missing one included.
    places: dotted keys that hold what was read.

    Every method raises `UserError` that names the key, its value and what is allowed.
    """

    def __init__(self, content: Any, parent: Config | None = None, section: str = "") -> None:
        if not isinstance(content, Mapping):
            raise UserError(f"{section or 'it'} must be a mapping of keys and values, not {content!r:.60}")
        self._content, self._before = content, f"{section}." if section else ""
        self.values: dict[str, Any] = parent.values if parent else {}
        self.places: set[str] = parent.places if parent else set()

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._checked(key, self._found(key, default), (str,), "text"))

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Read a whole number of at least `least`."""
        value = self._checked(key, self._found(key, default), (int,), f"a whole number of at least {least}")
        return int(value) if value >= least else self._refuse(key, value, f"a whole number of at least {least}")

    def size_or_null(self, key: str) -> int | None:
        """Read a whole number, or None where the content states null: a key that is left out is missing."""
        if self._content.get(key, 0) is not None:
            return self.size(key)
        self.places.add(f"{self._before}{key}")
        self.values[f"{self._before}{key}"] = None
        return None

    def number(self, key: str, default: float | None = None, within: str = "") -> float:
        """Read a number of more than 0. within: a section that newer writers put it in."""
        value = self._checked(key, self._found(key, default, within), (int, float), "a number above 0")
        return float(value) if value > 0 else self._refuse(key, value, "a number above 0")

    def flag(self, key: str, default: bool | None = None) -> bool:
        return bool(self._checked(key, self._found(key, default), (bool,), "true or false"))

    def texts(self, key: str, default: list[str]) -> list[str]:
        value = self._found(key, default)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self._refuse(key, value, "a list of texts")
        return list(value)

    def only(self, key: str, allowed: Any, within: str = "", *, stated: bool = False) -> None:
        """Require `allowed`: nothing else can be trained. stated: leaving it out is something else. False, 0, [] are
        one value."""
        value = self._found(key, None if stated else allowed, within)
        if value != allowed and (value or allowed):
            raise UserError(f"{self._before}{key} is {value!r}, and only {allowed!r} can be trained")

    def section(self, key: str) -> Config:
        return Config(self._content.get(key), self, f"{self._before}{key}")

    def has(self, key: str) -> bool:
        return self._content.get(key) is not None

    def part(self) -> dict[str, Any]:
        """Return what was read of the content: the same keys and values, and no others."""
        return _part(self._content, self.places, self._before)

    def unread(self) -> list[str]:
        """List dotted keys of the content that nothing has read."""
        return [key for key in _leaves(self._content, self._before) if key not in self.places]

    def _found(self, key: str, default: Any, within: str = "") -> Any:
        inner = self._content.get(within) if within else None
        nested = isinstance(inner, Mapping) and inner.get(key) is not None
        value = inner[key] if isinstance(inner, Mapping) and nested else self._content.get(key)
        self.places.add(f"{self._before}{within}.{key}" if nested else f"{self._before}{key}")
        value = default if value is None else value
        if value is None:
            raise UserError(f"{self._before}{key} is missing")
        self.values[f"{self._before}{key}"] = value
        return value

    def _checked(self, key: str, value: Any, kinds: tuple[type, ...], wanted: str) -> Any:
        right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        return value if right else self._refuse(key, value, wanted)

    def _refuse(self, key: str, value: Any, wanted: str) -> Any:
        raise UserError(f"{self._before}{key}={value!r} is not allowed: it must be {wanted}")


def _leaves(content: Mapping[str, Any], before: str) -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def _part(content: Mapping[str, Any], places: set[str], before: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        if f"{before}{key}" in places:
            found[key] = value
        elif isinstance(value, Mapping) and (inner := _part(value, places, f"{before}{key}.")):
            found[key] = inner
    return found


def _require_updatable(content: Mapping[str, Any]) -> None:
    """Raise `UserError` for weights whose kind SLiME's update of a server does not write
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


# Why a model that people ask for is of no family here, by the `model_type` of its `config.json`.
#
# What SLiME can load is in its `slime/backends/megatron_utils/hf_to_megatron/__init__.py`, read at the pinned commit.
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
    """Say why a model is refused, in a sentence; empty for a type that is not in the table."""
    if not isinstance(model_type, str) or model_type not in REFUSED:
        return ""
    models, reason = REFUSED[model_type]
    return f"{models} ({model_type}) can't be trained here: {reason}"
