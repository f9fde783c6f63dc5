"""`Family`: what one kind of model needs everywhere, stated in one file of this folder; nothing else names a family.

Adding one is a `Family` in one file, which a recipe names by its dotted path (`model.architecture.family=mine.LLAMA`);
a line in `FAMILIES` gives it a short name. A model of a known family is a recipe alone.

What the planner counts is not here: it reads the numbers of an `Architecture`, whatever the family.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.recipes.architecture import Architecture
from slime_swe.recipes.base import Model

CONFIG = "config.json"
FAMILIES: Mapping[str, str] = {
    "qwen2": "slime_swe.recipes.families.qwen2.QWEN2",
    "qwen3": "slime_swe.recipes.families.qwen3.QWEN3",
    "qwen3_moe": "slime_swe.recipes.families.qwen3_moe.QWEN3_MOE",
}
KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab": "vocab_size",
    "max_context": "max_position_embeddings",
}


@dataclass(frozen=True)
class Family:
    """One kind of model: a decoder with rotary positions, RMS norms, gated feed-forward layers or experts.

    model_type: in `config.json`.
    qkv_bias, qk_norm: biases of the attention's input projections; norms of queries and keys.
    tool_format: how its published chat template writes tool calls: a name in `rollout.chat.tool_formats.TOOL_FORMATS`.
    dp_attention: SGLang can give each GPU of an engine the attention of its own requests.
    expert_keys: field of `Architecture` -> key of `config.json`; empty is a dense family.
    optional, required: key of `config.json` -> the one value that SLiME, Megatron and SGLang all compute; a required
        one must be stated, since leaving it out means something else.
    flags: attributes of SLiME's and Megatron's `args` that the shape does not give, such as the router's or `spec`.
    """

    model_type: str
    qkv_bias: bool
    qk_norm: bool
    tool_format: str
    dp_attention: bool = True
    expert_keys: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)

    def read(self, config: Mapping[str, Any]) -> Architecture:
        """The shape that a `config.json` states. Raises `UserError` where a part of it can't be trained."""
        kind = config.get("model_type") if isinstance(config, Mapping) else None
        if kind != self.model_type:
            raise UserError(
                f"it is a {kind} model, and the recipe is for {self.model_type} models: take a recipe of that "
                "family, or write one"
            )
        for key, given, allowed in self._untrainable(config):
            raise UserError(f"{key} is {given!r}, and only {allowed!r} can be trained")
        try:
            return Architecture(
                family=self.model_type,
                head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
                tied=config.get("tie_word_embeddings", False),
                rope_theta=float(_rope(config)["rope_theta"]),
                rms_eps=float(config["rms_norm_eps"]),
                qkv_bias=self.qkv_bias,
                qk_norm=self.qk_norm,
                **{name: config[key] for name, key in {**KEYS, **self.expert_keys}.items()},
            )
        except KeyError as error:
            raise UserError(f"{error.args[0]!r} is missing: download the model again") from error

    def _untrainable(self, config: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        """Key, value and the value that it must have, of every part that no `Architecture` can say."""
        scaling = config.get("rope_scaling") or _rope(config)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        parts = [("the type of rotary scaling", kind, "default")]
        optional = {"hidden_act": "silu", "use_sliding_window": False, **self.optional}
        parts += [(key, config.get(key) or allowed, allowed) for key, allowed in optional.items()]
        parts += [(key, config.get(key), allowed) for key, allowed in self.required.items()]
        return ((key, given, allowed) for key, given, allowed in parts if given != allowed)


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 moved the rotary base into `rope_parameters`."""
    return config.get("rope_parameters") or config


def load_family(name: str) -> Family:
    """The family of a short name or a dotted path. Raises `UserError` with what there is."""
    found = load_registered(name, FAMILIES, "model.architecture.family")
    if not isinstance(found, Family):
        raise UserError(f"model.architecture.family={name}: it must be a slime_swe.recipes.families.Family")
    return found


def tool_format_of(model: Model) -> str:
    """How the policy writes its tool calls: as the recipe says, else as its family does."""
    return model.tool_format or load_family(model.architecture.family).tool_format


def read_architecture(folder: Path, family: str) -> Architecture:
    """What the folder's `config.json` states. Raises `UserError` where it can't be read or is of no such model."""
    path = folder / CONFIG
    try:
        found = load_family(family).read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    return dataclasses.replace(found, family=family)
