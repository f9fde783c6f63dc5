"""What is evaluated: a checkpoint, which is a run's or any other, or a model at an OpenAI-compatible endpoint.

A checkpoint is served by the embedded server, or by the running SGLang that the recipe names.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.config import DEFAULT_RECIPE, read_recipe, resolve, value_of, with_value
from slime_swe.launch.model import checkpoint_path
from slime_swe.launch.runs import RECIPE_FILE, find_run
from slime_swe.launch.slime.paths import CHECKPOINTS, EXPORTS
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.endpoint.client import key_of, require_endpoint
from slime_swe.rollout.engine import UNANSWERED, workers_at
from slime_swe.rollout.retention import INDEX, METADATA, TRACKER, saved

# An endpoint's model has this recipe's limits where none is named: those of a model of full size.
ENDPOINT_RECIPE = "qwen3_coder_30b_a3b"
ENDPOINT_CONCURRENCY = 16  # episodes at once: hosted APIs have limits of their own
EMBEDDED_CONCURRENCY = 64  # of the embedded server, where the recipe leaves it to the caches of GPUs


@dataclass(frozen=True)
class Endpoint:
    """A model at an OpenAI-compatible endpoint.

    url: the base of its API. model: its name there. key_variable: the environment variable with the key, or empty.
    """

    url: str
    model: str
    key_variable: str = ""


def endpoint_of(target: str, model: str | None, key_variable: str | None) -> Endpoint | None:
    """Return the endpoint at an address; None where the target is no address. Raises `UserError` for what does not go
    together; `model` may be that of SGLang too, which only the recipe can tell."""
    if "://" not in target:
        if key_variable:
            raise UserError(
                f"--key-variable is of an endpoint, and {target} is none: give its address, https://HOST/v1"
            )
        return None
    url = require_endpoint(target)
    if not model:
        raise UserError(f"which model of {url}? Give --model NAME")
    key_of(key_variable or "")
    return Endpoint(url, model, key_variable or "")


def recipe_at(endpoint: Endpoint, given: Sequence[str], concurrency: int | None) -> Recipe:
    """Resolve the recipe that says how episodes are played; it names the endpoint's model."""
    recipe = resolve(ENDPOINT_RECIPE, given)
    recipe = with_value(recipe, "model.checkpoint", endpoint.model)
    if concurrency is None and not value_of("serving.concurrency", given, ""):
        recipe = with_value(recipe, "serving.concurrency", ENDPOINT_CONCURRENCY)
    return recipe


def recipe_for(target: str, given: list[str]) -> Recipe:
    """Resolve the run's own recipe with these weights or its newest, or the named one with the model at `target`. Where
    it leaves the episodes at once to the caches of GPUs, the embedded server gets `EMBEDDED_CONCURRENCY`."""
    recipe = _recipe_for(target, given)
    return recipe if recipe.serving.concurrency else with_value(recipe, "serving.concurrency", EMBEDDED_CONCURRENCY)


def _recipe_for(target: str, given: list[str]) -> Recipe:
    model = model_folder(Path(target))
    if model is None:
        _require_there(Path(target))
        folder = find_run(target, value_of("run.dir", given, "runs"))
        return with_value(resolve(str(folder / RECIPE_FILE), given), "model.checkpoint", str(newest_weights(folder)))
    run = next((folder for folder in model.resolve().parents[:3] if (folder / RECIPE_FILE).is_file()), None)
    if run is not None and not value_of("recipe", given, ""):
        return with_value(resolve(str(run / RECIPE_FILE), given), "model.checkpoint", str(model))
    return resolve(DEFAULT_RECIPE, [*given, f"model={model}"])


def _require_there(target: Path) -> None:
    """Raise `UserError` for a path that leads nowhere, with what lies beside it; a name alone is a run's."""
    if "/" not in str(target) or target.exists():
        return
    beside = sorted(path.name for path in target.parent.glob("*"))[-5:]
    there = f"{target.parent} has {', '.join(beside)}" if beside else f"there is nothing in {target.parent}"
    raise UserError(
        f"{target} does not exist; {there}. Give a run's name or folder, a checkpoint, a folder with a model's "
        "config.json, or an endpoint, https://HOST/v1"
    )


def model_folder(target: Path) -> Path | None:
    """Find the folder of the model that a path names itself, or as a checkpoint; None where it names none.

    Raises `UserError` for a folder that is neither a model, nor a checkpoint, nor a run.
    """
    for folder in (target, target / "hf"):
        if (folder / "config.json").is_file():
            return folder
    if checkpoint := megatron_checkpoint(target):
        raise unconverted(checkpoint)
    if "/" in str(target) and target.is_dir() and not (target / RECIPE_FILE).is_file():
        raise UserError(
            f"{target} holds no model (config.json), no checkpoint of one (hf/config.json) and no run ({RECIPE_FILE}); "
            "a run under SLiME keeps its weights in Hugging Face format in exports/"
        )
    return None


def newest_weights(folder: Path) -> Path:
    """Find the newest weights in Hugging Face format: the embedded engine's checkpoint, or what SLiME has exported.

    An export counts once it has the index that SLiME writes last, for one shard too. Megatron-Bridge, by which miles
    exports an adapter's model, writes none for a single file, which is taken as it is. Raises `UserError` where there
    are none.
    """
    from slime_swe.embedded.checkpoint import latest

    found = latest(folder / "checkpoints")
    if found is not None:
        return found.model_dir
    whole = (path.parent for name in (INDEX, "model.safetensors") for path in (folder / EXPORTS).glob(f"*/{name}"))
    exported = [path for path in whole if path.name.isdigit() and (path / "config.json").is_file()]
    if not exported and (checkpoint := megatron_checkpoint(folder / CHECKPOINTS)):
        raise unconverted(checkpoint)
    if not exported:
        raise UserError(f"{folder} has no checkpoint yet: train it for one rollout at least")
    return max(exported, key=lambda path: int(path.name))


# Checkpoints in Megatron's format, which no server reads, and the command that makes a Hugging Face model of one.
def megatron_checkpoint(folder: Path) -> Path | None:
    """Find the Megatron checkpoint that a folder is, or the newest one in it; None where it holds none."""
    if (folder / METADATA).is_file():
        return folder
    if not (folder / TRACKER).is_file():
        return None
    found = saved(folder)
    return found[max(found)] if found else folder / "release"


def unconverted(checkpoint: Path) -> UserError:
    """Return the error for a Megatron checkpoint, saying where a Hugging Face model is and how one is made of it."""
    checkpoint = checkpoint.resolve()
    run = next((folder for folder in checkpoint.parents[:3] if (folder / RECIPE_FILE).is_file()), None)
    said = f"{checkpoint} is a checkpoint in Megatron's format, and evaluations read Hugging Face's"
    if run is None:
        return UserError(f"{said}. MODEL being the folder that training began with, convert it: {_command(checkpoint)}")
    return UserError(
        f"{said}: take one of {run / EXPORTS}, where the run keeps its weights in that format, or convert it: "
        f"{_command(checkpoint, read_recipe(run / RECIPE_FILE))}"
    )


def _command(checkpoint: Path, recipe: Recipe | None = None) -> str:
    """Return the command line of SLiME's own conversion tool."""
    checkouts, origin, size = SLIME.checkouts(), "MODEL", list[str]()
    if recipe is not None:
        origin = str(checkpoint_path(recipe.model.checkpoint, recipe.model.folder))
        size = ["--vocab-size", str(recipe.model.shape.vocab)]  # without the rows that pad it
    words = ["--input-dir", str(checkpoint), "--output-dir", f"{checkpoint}_hf", "--origin-hf-dir", origin, *size]
    path = shlex.quote(f"{checkouts.megatron}:{checkouts.loop}")
    return (
        f"cd {shlex.quote(str(checkouts.loop))} && PYTHONPATH={path} "
        f"python tools/convert_torch_dist_to_hf.py {shlex.join(words)}"
    )


# A running SGLang that a recipe names: the command that starts it, and which model it says it has.
PORT = 30000  # SGLang's own, in the command that is shown
_ANSWER_SECONDS = 30.0


def start_command(recipe: Recipe) -> str:
    """Return the command that starts SGLang with the recipe's checkpoint, on as many GPUs as an engine of it has."""
    serving = recipe.serving
    words = [
        "python -m sglang.launch_server --model-path",
        str(checkpoint_path(recipe.model.checkpoint, recipe.model.folder)),
    ]
    if serving.gpus_per_engine > 1:
        words.append(f"--tp-size {serving.gpus_per_engine}")
    if serving.dp_attention:
        words.append(f"--enable-dp-attention --dp-size {serving.gpus_per_engine} --enable-dp-lm-head")
        if recipe.model.shape.experts:
            words.append("--moe-dense-tp-size 1")
    if serving.ep > 1:
        words.append(f"--ep-size {serving.ep}")
    return " ".join([*words, f"--mem-fraction-static {serving.mem_fraction:g} --port {PORT}"])


async def models_at(url: str) -> dict[str, str]:
    """Ask each server there, a router's workers or the server itself, for its `model_path`, and return that by URL; it
    is empty where a server states none. Raises `InfrastructureError` where none answers."""
    timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
    found: dict[str, str] = {}
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http:
            for worker in await workers_at(http, url):
                found[worker["url"]] = await _model_path(http, worker["url"])
    except UNANSWERED as error:
        raise InfrastructureError(f"no SGLang can be asked at {url}: {error or type(error).__name__}") from error
    if not found:
        raise InfrastructureError(f"the router at {url} has no worker: start one and register it there")
    return found


async def _model_path(http: aiohttp.ClientSession, url: str) -> str:
    for path in ("/model_info", "/get_model_info"):  # the second is the older name
        async with http.get(f"{url}{path}") as response:
            if response.status == 200:
                said = await response.json(content_type=None)
                return str(said.get("model_path") or "") if isinstance(said, dict) else ""
    return ""


async def require_serves(url: str, folder: Path, name: str | None) -> None:
    """Raise `UserError` where a server at this address states another model than the one in `folder`.

    name: what the servers call it, where that is not the folder. It does not cover a server that states no model,
    nor a folder that has changed since the server loaded it.
    """
    for server, path in (await models_at(url)).items():
        right = path == name if name else Path(path).resolve() == folder.resolve()
        if path and not right:
            raise UserError(
                f"{server} serves {path}, and {folder} is to be evaluated: start SGLang with --model-path {folder}, or "
                f"give --model {path} if these are the same weights, as under a path of another machine"
            )
