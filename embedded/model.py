"""Qwen2's architecture and weights, which the trainer and the server share.

Parameter names are those of `transformers`' `Qwen2ForCausalLM`, so a checkpoint of either loads in the other.
Shapes: T tokens, H hidden, D head dimension, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from slime_swe.errors import UserError
from slime_swe.files import replace_file


@dataclass(frozen=True)
class ModelConfig:
    """The architecture, read from a Hugging Face `config.json`; `raw` is that file, kept to be written back."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, directory: str | Path) -> ModelConfig:
        """Read `directory/config.json`; raises CheckpointError for anything that this forward pass does not compute."""
        return cls.from_dict(read_config(directory))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        _refuse_unsupported(raw, rope)
        try:
            return cls(
                vocab_size=int(raw["vocab_size"]),
                hidden_size=int(raw["hidden_size"]),
                intermediate_size=int(raw["intermediate_size"]),
                num_hidden_layers=int(raw["num_hidden_layers"]),
                num_attention_heads=int(raw["num_attention_heads"]),
                num_key_value_heads=int(raw.get("num_key_value_heads") or raw["num_attention_heads"]),
                head_dim=int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]),
                max_position_embeddings=int(raw.get("max_position_embeddings", 32768)),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
                raw=dict(raw),
            )
        except KeyError as error:
            raise CheckpointError(f"config.json lacks {error.args[0]!r}, which a Qwen2 model needs") from error


def _refuse_unsupported(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    for name, given, allowed in (
        ("model_type", raw.get("model_type"), "qwen2"),
        ("rope type", kind, "default"),
        ("use_sliding_window", raw.get("use_sliding_window", False), False),
        ("hidden_act", raw.get("hidden_act", "silu"), "silu"),
    ):
        if given != allowed:
            raise CheckpointError(f"config.json has {name} {given!r}; the embedded engine computes only {allowed!r}")


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query)
        self.k_proj = nn.Linear(config.hidden_size, key)
        self.v_proj = nn.Linear(config.hidden_size, key)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Backbone(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Qwen2(nn.Module):
    """The weights of a Qwen2 causal language model. `exact_forward.py` and `forward.py` compute with them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @classmethod
    def load(cls, directory: str | Path, dtype: torch.dtype = torch.float32) -> Qwen2:
        """Read a Hugging Face checkpoint directory; raises CheckpointError where names or shapes don't fit."""
        model = cls(ModelConfig.load(directory)).to(dtype)
        model.load_tensors(read_tensors(directory))
        return model

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy `tensors` (Hugging Face names) into the parameters; nothing is changed unless all of them fit."""
        own = dict(self.named_parameters())
        given = {name: t for name, t in tensors.items() if name != "lm_head.weight" or name in own}
        if own.keys() != given.keys():
            raise CheckpointError(f"checkpoint and model differ in tensors: {sorted(own.keys() ^ given.keys())[:6]}")
        for name, parameter in own.items():
            if parameter.shape != given[name].shape:
                raise CheckpointError(f"{name} is {tuple(given[name].shape)}, config says {tuple(parameter.shape)}")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(given[name])

    def save(self, directory: str | Path) -> None:
        """Write `model.safetensors` and `config.json`, each atomically; tokenizer files are left alone."""
        dtype = str(next(self.parameters()).dtype).removeprefix("torch.")
        config = {k: v for k, v in self.config.raw.items() if k != "torch_dtype"} | {"dtype": dtype}
        write_checkpoint(directory, dict(self.named_parameters()), config)

    @property
    def head_weight(self) -> Tensor:
        """The output projection [V, H]: the embedding where they are tied."""
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight


# Hugging Face checkpoints on disk: read one, whole or sharded; replace one so that no reader sees half of a file.
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"


class CheckpointError(UserError):
    """A checkpoint directory cannot be used; the message says which file and why."""


def read_config(directory: str | Path) -> dict[str, Any]:
    """Read and parse the `config.json` of `directory`."""
    path = Path(directory) / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; a Hugging Face checkpoint directory is needed") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, a JSON object is needed")
    return config


def read_tensors(directory: str | Path) -> dict[str, torch.Tensor]:
    """Read all tensors of `directory`, by name, from `model.safetensors` or the shards that its index names."""
    directory = Path(directory)
    tensors: dict[str, torch.Tensor] = {}
    for name in _shards(directory):
        try:
            tensors.update(load_file(directory / name))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {directory / name}: {error}") from error
    return tensors


def digest(directory: str | Path) -> str:
    """Tell models apart, wherever they lie: SHA-256 over `config.json` and the weight files."""
    directory = Path(directory)
    total = hashlib.sha256()
    for name in (CONFIG_FILE, *_shards(directory)):
        try:
            with (directory / name).open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise CheckpointError(f"cannot read {directory / name}: {error}") from error
    return f"sha256:{total.hexdigest()}"


def write_checkpoint(directory: str | Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Write `model.safetensors` and `config.json`; each file is replaced atomically and is on disk at return."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(directory / WEIGHTS_FILE, save(contiguous, metadata={"format": "pt"}))
    replace_file(directory / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())


def _shards(directory: Path) -> list[str]:
    if (directory / WEIGHTS_FILE).is_file():
        return [WEIGHTS_FILE]
    try:
        index = json.loads((directory / INDEX_FILE).read_text(encoding="utf-8"))
        return sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{directory} holds neither {WEIGHTS_FILE} nor a readable {INDEX_FILE}") from error


def rope_tables(positions_T: Tensor, config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin [T, 1, D/2] of rotary embeddings (Su et al. 2021, arXiv:2104.09864). Angles are float32,
    as upstream."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = positions_T.float()[:, None, None] * (1.0 / config.rope_theta**exponents)
    return angles.double().cos().to(dtype), angles.double().sin().to(dtype)


def interleaved(parameter: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows (or entries) of a projection within each head from halves to pairs.

    So rotary embeddings are one complex product; scores don't notice the order."""
    heads: Tensor = parameter.view(-1, 2, head_dim // 2, *parameter.shape[1:])
    return heads.transpose(1, 2).flatten(0, 2)
