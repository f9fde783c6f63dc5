"""A running SGLang that a recipe names: the command that starts it, and which model it says it has."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.model import checkpoint_path
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.engine import UNANSWERED, workers_at

PORT = 30000  # SGLang's own, in the command that is shown
_ANSWER_SECONDS = 30.0


def start_command(recipe: Recipe) -> str:
    """Starts SGLang with the recipe's checkpoint, on as many GPUs as an engine of it has."""
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
    """The URL of each server there, which are a router's workers or the server itself, and the `model_path` that it
    states; empty where it states none. Raises `InfrastructureError` where none answers."""
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

    name: what the servers call it, where that is not the folder. Not covered: a server that states no model, and a
    folder that has changed since the server loaded it.
    """
    for server, path in (await models_at(url)).items():
        right = path == name if name else Path(path).resolve() == folder.resolve()
        if path and not right:
            raise UserError(
                f"{server} serves {path}, and {folder} is to be evaluated: start SGLang with --model-path {folder}, or "
                f"give --model {path} if these are the same weights, as under a path of another machine"
            )
