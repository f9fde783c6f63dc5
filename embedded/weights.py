"""Hugging Face checkpoints on disk: read one, whole or sharded; replace one so that no reader sees half of a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from slime_swe.errors import UserError
from slime_swe.files import replace_file

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"


class CheckpointError(UserError):
    """A checkpoint directory that cannot be used; the message says which file and why."""


def read_config(directory: str | Path) -> dict[str, Any]:
    """The parsed `config.json` of `directory`."""
    path = Path(directory) / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; a Hugging Face checkpoint directory is needed") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, a JSON object is needed")
    return config


def read_tensors(directory: str | Path) -> dict[str, torch.Tensor]:
    """All tensors of `directory`, by name, from `model.safetensors` or the shards that its index names."""
    directory = Path(directory)
    tensors: dict[str, torch.Tensor] = {}
    for name in _shards(directory):
        try:
            tensors.update(load_file(directory / name))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {directory / name}: {error}") from error
    return tensors


def digest(directory: str | Path) -> str:
    """What tells models apart, wherever they lie: SHA-256 over `config.json` and the weight files."""
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
