"""The policy's checkpoint in Hugging Face format: all there, and of the shape that the recipe states."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from launch.args import checkpoint_folder, checkpoint_path
from launch.doctor.disk import size
from launch.doctor.finding import Finding, failure, ok
from launch.doctor.machine import Machine
from launch.model import mismatches
from recipes.base import Recipe, RecipeError

INDEX = "model.safetensors.index.json"
_AGAIN = "download or copy it again: `hf download` resumes what a broken connection left"


def check_checkpoint(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """config.json against the recipe, then the weights and the tokenizer."""
    try:
        folder = checkpoint_folder(recipe.model.checkpoint, recipe.model.folder)
    except RecipeError as error:
        yield failure("checkpoint", str(error), "fetch it, or name one that is there", _download(recipe))
        return
    yield from _shape(recipe, folder)
    yield _weights(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        yield failure("checkpoint", f"{folder} holds no tokenizer", _AGAIN)


def _download(recipe: Recipe) -> str:
    """Of an `ORG/NAME`; nothing for a folder, of which nobody knows where it came from."""
    spec = recipe.model.checkpoint
    folder = checkpoint_path(spec, recipe.model.folder)
    return f"hf download {spec} --local-dir {shlex.quote(str(folder))}" if folder.parts[-2:] == Path(spec).parts else ""


def _shape(recipe: Recipe, folder: Path) -> Iterator[Finding]:
    try:
        wrong = mismatches(recipe)
    except RecipeError as error:
        yield failure("architecture", str(error), "give the checkpoint that the recipe is about")
        return
    for violation in wrong:
        yield failure("architecture", violation.message, violation.fix)
    if not wrong:
        shape = recipe.model.architecture
        yield ok("architecture", f"{shape.family}, {shape.parameters / 1e9:.3g} B weights, as the recipe states")


def _weights(folder: Path) -> Finding:
    """Every shard that the index names is there and whole, as far as the header of each tells."""
    try:
        shards = _shards(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return failure("checkpoint", f"{folder / INDEX} can't be read: {error}", _AGAIN)
    if not shards:
        return failure("checkpoint", f"{folder} holds no *.safetensors", _AGAIN)
    for shard in shards:
        missing = incomplete(shard)
        if missing:
            return failure("checkpoint", f"{shard}: {missing}", _AGAIN)
    total = sum(shard.stat().st_size for shard in shards)
    return ok("checkpoint", f"{folder}, {size(total)} in {len(shards)} file{'s'[: len(shards) != 1]}")


def _shards(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [folder / name for name in sorted(set(names))]


def incomplete(shard: Path) -> str:
    """What is wrong with a safetensors file, by its length; empty where nothing is.

    The format: 8 bytes of header length, a JSON header that gives each tensor its place, the tensors
    (https://github.com/huggingface/safetensors#format). What the tensors hold is not looked at.
    """
    if not shard.is_file():
        return "missing"
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > shard.stat().st_size:
            return "cut short"
        try:
            header = json.loads(file.read(length))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return "not a safetensors file"
    return "cut short" if shard.stat().st_size < 8 + length + end else ""
