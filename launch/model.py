"""The model that a recipe names: where its files lie, and what they have to say to the recipe.

That is whether they are of that model, or how the recipe is to become theirs.

A recipe's `model.tool_format` and `model.chat_template` are of its own model: another member of the family may write
other calls, as Qwen3-Coder does beside Qwen3. `model=` never keeps them unsaid for such a model (`_formats`).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Container
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError
from slime_swe.recipes.base import Model, Recipe
from slime_swe.recipes.checks import Violation
from slime_swe.recipes.families import Config, Family, read_config
from slime_swe.recipes.registry import RECIPES, load_recipe
from slime_swe.rollout.chat.tokenizer import shipped_templates, template_path
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, ToolCall, parse, tool_format
from slime_swe.rollout.tools import TOOLS

EMBEDDED_SEED = "embedded:seed"
CONFIG = "config.json"
FORMATS = ("tool_format", "chat_template")  # fields of `Model` that say how one model writes
_NO_VARIANT = re.compile(r"a?\d+(\.\d+)?[bm]|fp8|bf16")  # words of a name that change no format: sizes, precisions


def checkpoint_folder(spec: str, models: str = "models") -> Path:
    """Return the folder that `model.checkpoint` names. Raises `UserError` where it holds no Hugging Face model."""
    folder = checkpoint_path(spec, models)
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"model.checkpoint={spec!r} is not a model in Hugging Face format ({folder} holds no {CONFIG}): give a "
            f"folder that does, an ORG/NAME that model.folder={models} holds, or {EMBEDDED_SEED}"
        )
    return folder


def checkpoint_path(spec: str, models: str = "models") -> Path:
    """Return the absolute path of `model.checkpoint`: a folder as given, else that `ORG/NAME` in `model.folder`."""
    if spec == EMBEDDED_SEED:
        return Path(str(files("slime_swe.embedded"))).resolve() / "seed" / "checkpoint"
    given = Path(spec).expanduser()
    named = spec.count("/") == 1 and not spec.startswith((".", "~", "/")) and not given.is_dir()
    return (Path(models).expanduser() / spec if named else given).resolve()


def converted_folder(recipe: Recipe) -> Path:
    """Return the folder of the same weights in Megatron's format, beside that in Hugging Face format."""
    return Path(f"{checkpoint_path(recipe.model.checkpoint, recipe.model.folder)}_torch_dist")


def chat_template(model: Model) -> str:
    """Return a shipped template's name, or a file's absolute path. Raises `UserError` where there is neither."""
    name = model.chat_template
    return name if not name or name in shipped_templates() else str(template_path(name).resolve())


def with_model(recipe: Recipe, spec: str, folder: str, given: Container[str] = ()) -> Recipe:
    """Return the recipe for another model of its family: a folder, or the `ORG/NAME` that `folder` holds.

    given: keys that the user sets beside it, which need no answer here.

    Raises `UserError` where it isn't there, or of another family, or where nobody says how it writes its calls.
    """
    path = checkpoint_path(spec, folder)
    if not (path / CONFIG).is_file():
        raise UserError(f"model={spec}: {path} holds no {CONFIG}: {_how_to_get(spec, path)}")
    found = read_folder(path, recipe.model.kind).part()
    model = dataclasses.replace(recipe.model, checkpoint=spec, config=found, folder=folder)
    model = dataclasses.replace(model, **_formats(recipe, model, path, given))
    if "model.tool_format" not in given:
        _require_read_back(model, path)
    return dataclasses.replace(recipe, model=model, description=f"{spec}, as recipe {recipe.name} does it")


def _formats(recipe: Recipe, model: Model, path: Path, given: Container[str]) -> dict[str, Any]:
    """Return `FORMATS` of a recipe that gets another model.

    A model of the recipe's own kind (another size, another precision) keeps them, and one of the kind of a shipped
    recipe takes that recipe's. A name that says nothing of a model is taken for a fine-tune of the recipe's: it keeps
    them where its shape is the recipe's, or its own chat template writes the recipe's calls. Any other keeps none that
    the recipe states: raises `UserError` where the user does not say what to have in their place.
    """
    kinds = {_kind(shipped.checkpoint): shipped for shipped in (load_recipe(name).model for name in RECIPES)}
    kinds[_kind(recipe.model.checkpoint)] = recipe.model
    kind = _kind(str(path))
    like = kinds.get(kind)
    if like is None and kind[0] not in {words[0] for words in kinds} and _is_fine_tune(recipe, model, path):
        like = recipe.model
    if like is not None:
        return {field: getattr(like, field) for field in FORMATS}
    open_questions = [field for field in FORMATS if getattr(model, field) and f"model.{field}" not in given]
    if not open_questions:
        return {}
    stated = " and ".join(f"model.{field}={getattr(model, field)}" for field in open_questions)
    allowed = {
        "tool_format": f"model.tool_format={model.kind.tool_format or 'NAME'} is its family's, and the others are "
        f"{', '.join(name for name in TOOL_FORMATS if name != model.kind.tool_format)}",
        "chat_template": "model.chat_template='' is the checkpoint's own, and those shipped are "
        f"{', '.join(shipped_templates())}",
    }
    raise UserError(
        f"model={model.checkpoint}: the recipe states {stated} for {recipe.model.checkpoint}, and nothing says that "
        f"this model writes so too. Name what it has: {'; '.join(allowed[field] for field in open_questions)}"
    )


def _kind(checkpoint: str) -> tuple[str, ...]:
    """Return the words of a name that say how a model writes: Qwen3-Coder-30B-A3B-Instruct -> qwen3, coder, instruct.

    In Hugging Face's cache, the name is that of the folder above `snapshots`.
    """
    parts = Path(checkpoint).parts
    name = parts[-3].rpartition("--")[2] if len(parts) > 2 and parts[-2] == "snapshots" else Path(checkpoint).name
    words = tuple(word for word in name.lower().split("-") if not _NO_VARIANT.fullmatch(word))
    return words or ("",)


def _is_fine_tune(recipe: Recipe, model: Model, path: Path) -> bool:
    """Say whether a model has the recipe's shape, whatever length it was tuned for, or a chat template whose calls the
    recipe's tool format reads."""
    shape = recipe.model.shape
    if dataclasses.replace(read_config(model.kind, model.config)[0], max_context=shape.max_context) == shape:
        return True
    return recipe.model.tool_calls in (_read_back(model, path) or ())


def _read_back(model: Model, path: Path) -> list[str] | None:
    """List the tool formats that read what the checkpoint's own chat template writes; None where that can't be seen: it
    has none, it writes no calls, or `transformers` is not installed."""
    template = own_template(path)
    if not template or find_spec("transformers") is None:
        return None
    return readers(renderer(template), model.tool_calls)


# How a chat template writes tool calls, and which tool formats read them back.
Render = Callable[..., Any]
"""It takes messages and `tools`, and returns the text of both, as a tokenizer's `apply_chat_template` does."""

PROBES = (
    ToolCall("view", {"path": "src/a.py"}),
    ToolCall("str_replace", {"path": "a b.py", "old": 'if x < 1:\n    return "{}"\n', "new": "  # ünï 漢字 & \\n\n"}),
)
_BEFORE = "I look at it."


def readers(render: Render, written: str) -> list[str] | None:
    """List the tool formats, `written` among those that are asked, that read back each call as the template writes it;
    None where it writes none."""
    said = {call.name: _rendered(render, call) for call in PROBES}
    if not any(said.values()):
        return None
    schemas = [tool.spec.schema() for tool in TOOLS]

    def reads(name: str) -> bool:
        turns = [(parse(said[call.name], name, schemas), call) for call in PROBES]
        return all(turn.error is None and turn.calls == [call] for turn, call in turns)

    return [name for name in dict.fromkeys((*TOOL_FORMATS, written)) if reads(name)]


def own_template(folder: Path) -> str:
    """Read the chat template that a checkpoint's folder holds; empty where it holds none. Raises `UserError` where its
    `tokenizer_config.json` can't be read."""
    file, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        given = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except ValueError as error:
        raise UserError(f"{config} is not JSON: {error}") from error
    template = given.get("chat_template") if isinstance(given, dict) else None
    return template if isinstance(template, str) else ""


def renderer(template: str) -> Render:
    """Make a renderer of a template's text that needs no tokenizer, and leaves its special tokens out. It needs
    `transformers`."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(messages: Any, tools: Any) -> Any:
        return render_jinja_template([messages], tools=tools, chat_template=template)[0][0]

    return render


def _rendered(render: Render, call: ToolCall) -> str:
    """Render the assistant's turn that makes this call, as the template writes it; empty where it writes none."""
    from jinja2 import TemplateError as JinjaError

    user, function = {"role": "user", "content": "Repair it."}, {"name": call.name, "arguments": call.arguments}
    calls = [{"type": "function", "function": function}]
    reply = {"role": "assistant", "content": _BEFORE, "tool_calls": calls}
    try:
        text: str = render([user, reply], tools=[tool.spec.schema() for tool in TOOLS])
    except (JinjaError, TypeError):  # a template that wants `content` only
        return ""
    said = text.rpartition(_BEFORE)[2]
    return said if call.name in said else ""


def _require_read_back(model: Model, path: Path) -> None:
    """Raise `UserError` where the checkpoint's own chat template writes calls that the model's format does not read."""
    found = None if tool_format(model.tool_calls).instructions else _read_back(model, path)
    if found is None or model.tool_calls in found:
        return
    fix = f"set model.tool_format={' or '.join(found)}" if found else "name a format that does in model.tool_format"
    raise UserError(
        f"model={model.checkpoint}: its chat template writes calls that model.tool_format={model.tool_calls} does not "
        f"read back: {fix}"
    )


def mismatches(recipe: Recipe) -> list[Violation]:
    """List where the recipe's `model.config` is not the checkpoint's; nothing where no checkpoint lies here.

    A run can be planned on a machine that holds no model: only what is there is compared. Raises `UserError` where a
    `config.json` is there and is of no model that can be trained.
    """
    path = checkpoint_path(recipe.model.checkpoint, recipe.model.folder)
    if not (path / CONFIG).is_file():
        return []
    found = read_folder(path, recipe.model.kind).values
    stated = read_config(recipe.model.kind, recipe.model.config)[1].values
    fix = f"write model={recipe.model.checkpoint} to take all of it from there, or name the right model.checkpoint"
    return [
        Violation(
            f"model.config.{key}", f"model.config.{key}={value} is not what {path / CONFIG} says, {found[key]}", fix
        )
        for key, value in stated.items()
        if key in found and value != found[key]
    ]


def read_folder(folder: Path, family: Family) -> Config:
    """Read the folder's `config.json`. Raises `UserError` where it can't be, or is of no model that can be trained."""
    path = folder / CONFIG
    try:
        return read_config(family, json.loads(path.read_text(encoding="utf-8")))[1]
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def _how_to_get(spec: str, path: Path) -> str:
    if path.parts[-2:] == tuple(spec.split("/")):
        return (
            f"`hf download {spec} --local-dir {path}` fetches the model, and with {CONFIG} after its name what `plan` "
            "and `train --dry-run` read of it"
        )
    return "give a folder that holds a model in Hugging Face format, or ORG/NAME"
