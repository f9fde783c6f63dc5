"""What Transformers makes of the same weights and tokens: a computation that shares no code with SGLang or Megatron."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
VISION = ".visual."
PACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}  # tensor -> what is in it, by rows
LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")  # 1e-6 in Transformers, whatever the config says that others read
_EXPERTS = re.compile(r"layers\.(\d+)\.(?:\w+\.)*experts$")


@dataclass(frozen=True)
class Forward:
    """log_probs_T: of each token but the first. experts: layer -> T x chosen, of layers that have experts."""

    log_probs_T: Tensor
    experts: Mapping[int, Tensor]


class Reference:
    """The model of a `config.json` with the weights of a Hugging Face folder, in float32."""

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind: Any = AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM
        self.model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.chosen: dict[int, Tensor] = {}
        for name, module in self.model.named_modules():
            if name.endswith(LATENT_NORMS):
                module.variance_epsilon = config["rms_norm_eps"]
            found = _EXPERTS.search(name)
            if found:
                module.register_forward_pre_hook(self._keeping(int(found[1])), with_kwargs=True)

    def _keeping(self, layer: int) -> Any:
        def keep(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = [value for value in (*args, *options.values()) if isinstance(value, Tensor)]
            (self.chosen[layer],) = (value for value in given if not value.is_floating_point())

        return keep

    @torch.no_grad()
    def forward(self, tokens: list[int], temperature: float = 1.0) -> Forward:
        self.chosen.clear()
        ids = torch.tensor([tokens])
        logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1].float() / temperature
        log_probs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        return Forward(log_probs, {layer: chosen.clone() for layer, chosen in self.chosen.items()})


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face folder, but for a vision tower's, which SLiME neither trains nor converts. Packed
    experts are taken one by one, as SLiME writes them.

    Raises `FileNotFoundError` where it has none.
    """
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.safetensors")
    found = [(name, tensor) for path in files for name, tensor in load_file(path).items() if VISION not in name]
    return {name: tensor for packed in found for name, tensor in _one_by_one(*packed)}


def _one_by_one(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Of `experts.gate_up_proj`, experts x 2 widths x hidden size, or `experts.down_proj`, each expert's own."""
    start, packed, projection = name.rpartition(".experts.")
    if not packed or projection not in PACKED:
        yield name, tensor
        return
    for expert, weights in enumerate(tensor):
        for part, weight in zip(PACKED[projection], weights.chunk(len(PACKED[projection])), strict=True):
            yield f"{start}{packed}{expert}.{part}.weight", weight
