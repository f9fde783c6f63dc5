"""The policy's checkpoint in Hugging Face format, of the shape that the recipe states, and converted for Megatron; and
its chat template: proven, and writing tool calls as the recipe's parser reads them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError
from slime_swe.launch.doctor import Finding, Machine, failure, ok, skipped
from slime_swe.launch.doctor.capacity import size
from slime_swe.launch.doctor.versions import upstream_of
from slime_swe.launch.model import checkpoint_folder, checkpoint_path, converted_folder, mismatches, readers
from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.render import sections
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.agents.native import load_template
from slime_swe.rollout.chat.tokenizer import TemplateError, load_tokenizer, shipped_templates
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, tool_format
from slime_swe.rollout.retention import METADATA, TRACKER

INDEX = "model.safetensors.index.json"
_AGAIN = "download or copy it again: `hf download` resumes what a broken connection left"


def check_checkpoint(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Compare config.json with the recipe, then check the weights and the tokenizer."""
    try:
        folder = checkpoint_folder(recipe.model.checkpoint, recipe.model.folder)
    except UserError as error:
        yield failure("checkpoint", str(error), "fetch it, or name one that is there", _download(recipe))
        return
    yield from _shape(recipe, folder)
    yield _weights(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        yield failure("checkpoint", f"{folder} holds no tokenizer", _AGAIN)


def _download(recipe: Recipe) -> str:
    """Return the command that downloads an `ORG/NAME`; empty for a folder, of which nobody knows where it came from."""
    spec = recipe.model.checkpoint
    folder = checkpoint_path(spec, recipe.model.folder)
    return f"hf download {spec} --local-dir {shlex.quote(str(folder))}" if folder.parts[-2:] == Path(spec).parts else ""


def _shape(recipe: Recipe, folder: Path) -> Iterator[Finding]:
    try:
        wrong = mismatches(recipe)
    except UserError as error:
        yield failure("architecture", str(error), "give the checkpoint that the recipe is about")
        return
    for violation in wrong:
        yield failure("architecture", violation.message, violation.fix)
    if not wrong:
        kind, weights = recipe.model.config["model_type"], recipe.model.shape.parameters
        yield ok("architecture", f"{kind}, {weights / 1e9:.3g} B weights, as the recipe states")


def _weights(folder: Path) -> Finding:
    """Check that every shard which the index names is there and whole, as far as the header of each says."""
    try:
        shards = _shards(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return failure("checkpoint", f"{folder / INDEX} can't be read: {error}", _AGAIN)
    if not shards:
        return failure("checkpoint", f"{folder} holds no *.safetensors", _AGAIN)
    from safetensors import SafetensorError, safe_open  # of the `embedded` extra

    for shard in shards:
        try:
            with safe_open(shard, "numpy"):
                pass  # it reads the header, and compares the file's length with it
        except (OSError, SafetensorError) as error:
            return failure("checkpoint", f"{shard}: {error}", _AGAIN)
    total = sum(shard.stat().st_size for shard in shards)
    return ok("checkpoint", f"{folder}, {size(total)} in {len(shards)} file{'s'[: len(shards) != 1]}")


def _shards(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [folder / name for name in sorted(set(names))]


SCRIPT = "tools/convert_hf_to_torch_dist.py"
ONE_GPU = 20e9  # bytes of weights that one GPU converts with room to spare


def conversion(recipe: Recipe) -> str:
    """Return the command that converts the checkpoint for Megatron, as lines for a shell. Several processes share the
    layers by pipeline, so that each holds a part of them."""
    model, upstream = recipe.model, upstream_of(recipe)
    checkouts = upstream.checkouts()
    folder = checkpoint_path(model.checkpoint, model.folder)
    processes = 1 if 2 * model.shape.parameters <= ONE_GPU else max(1, recipe.cluster.gpus_per_node)
    shape = upstream.manifest.to_argv(sections(recipe, Path(), resume=False, upstream=upstream)["model"])
    flags = [shlex.join([name, *values]) for name, values in split(shape)]
    return continued(
        f"cd {shlex.quote(str(checkouts.loop))} &&",
        f"PYTHONPATH={shlex.quote(str(checkouts.megatron))}",
        f"torchrun --nproc-per-node={processes} {SCRIPT}",
        *flags,
        shlex.join(["--hf-checkpoint", str(folder)]),
        shlex.join(["--save", str(converted_folder(recipe))]),
    )


def continued(*parts: str) -> str:
    """Join the parts of a command, each on a line of its own."""
    return " \\\n  ".join(parts)


def check_converted(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the converted checkpoint: the policy that training starts from, and the KL penalty's reference."""
    if recipe.algorithm.lora_rank:
        yield skipped("converted", "an adapter is trained beside the weights in Hugging Face format")
        return
    folder = converted_folder(recipe)
    missing = unfinished(folder)
    if missing:
        yield failure("converted", f"{folder}: {missing}", "convert it, on a machine with GPUs", conversion(recipe))
    else:
        yield ok("converted", str(folder))


def unfinished(folder: Path) -> str:
    """Say what a conversion has left out; empty where it is complete."""
    try:
        name = (folder / TRACKER).read_text(encoding="ascii").strip()
    except OSError:
        return f"no {TRACKER} there" if folder.is_dir() else "not there"
    inner = folder / (name if name == "release" else f"iter_{int(name):07d}" if name.isdigit() else "?")
    if not (inner / METADATA).is_file():
        return f"{TRACKER} says {name!r}, but {inner.name}/{METADATA} is missing: the conversion did not finish"
    return ""


def check_chat(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the chat template and its tool calls. Both need the checkpoint; without one they are skipped."""
    try:
        folder = str(checkpoint_folder(recipe.model.checkpoint, recipe.model.folder))
    except UserError:
        yield skipped("chat template", "there is no checkpoint")
        return
    written = tool_format(recipe.model.tool_calls)
    try:
        load_template(folder, recipe.model.chat_template, written)
    except TemplateError as error:
        fix = f"name a template that keeps earlier turns by model.chat_template: {', '.join(shipped_templates())}"
        yield failure("chat template", str(error), fix)
    else:
        yield ok("chat template", "each turn's increment is proven exact")
    if written.instructions:
        said = (
            f"model.tool_format={recipe.model.tool_calls} asks for its calls in the system prompt, not by the template"
        )
        yield ok("tool calls", said)
        return
    yield _tool_calls(load_tokenizer(folder, recipe.model.chat_template), recipe.model.tool_calls)


def _tool_calls(tokenizer: Any, written: str) -> Finding:
    """Check that the parser reads back calls as the template renders them: so the policy was taught to write them."""
    fits = readers(partial(tokenizer.apply_chat_template, tokenize=False), written)
    if fits is None:
        return skipped("tool calls", "the template renders no tool calls, so there is nothing to compare with")
    if written in fits:
        return ok("tool calls", f"what the template writes, model.tool_format={written} reads back")
    found = f"model.tool_format={written} does not read back what the checkpoint's template writes"
    if fits:
        return failure("tool calls", found, f"set model.tool_format={' or '.join(fits)}, which does")
    return failure("tool calls", found, f"none of {', '.join(TOOL_FORMATS)} does: add a format in rollout/chat/")
