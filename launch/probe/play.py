"""Play a few of a recipe's training tasks as its run would, and look at what the policy did."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from slime_swe.data_sources.registry import load_tasks
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import replace_file, writing
from slime_swe.launch.config import with_value
from slime_swe.launch.doctor.served import servers_of
from slime_swe.launch.engines import engine_of
from slime_swe.launch.evaluation.folder import Evaluation, known_episodes, output
from slime_swe.launch.evaluation.play import embedded_server, play_sets
from slime_swe.launch.evaluation.served import PORT, models_at, start_command
from slime_swe.launch.extras import EMBEDDED, require
from slime_swe.launch.model import checkpoint_folder
from slime_swe.launch.preflight import require_plug_ins, require_sandbox
from slime_swe.launch.probe.look import Look, advice, look
from slime_swe.launch.slime.render import to_args
from slime_swe.launch.task_file import write_tasks
from slime_swe.recipes.base import SGLANG, Recipe
from slime_swe.rollout.agents.base import AGENTS, agent_class
from slime_swe.rollout.loop_scope import require_room_for

PROBE, TASK_FILE = "probe.json", "tasks.jsonl"
SET = "probe"  # the set's name in the journal


@dataclass(frozen=True)
class Found:
    """A first look. served: the model, and who serves it. advice: what to change, a sentence each."""

    recipe: str
    agent: str
    served: str
    tasks: int
    samples: int
    look: Look
    advice: list[str]

    def as_json(self) -> dict[str, Any]:
        about = {"recipe": self.recipe, "agent": self.agent, "served": self.served}
        counts = {"tasks": self.tasks, "samples": self.samples}
        return {**about, **counts, **self.look.as_json(), "advice": self.advice}


def probe(recipe: Recipe, folder: Path, limit: int, samples: int) -> Found:
    """Play `samples` episodes of each of `limit` training tasks into a new folder, which has what was found as JSON
    too. Raises `UserError` for a recipe that can't be probed, and `InfrastructureError` where its server can't be
    asked."""
    _require_probed(recipe)
    url = _server_of(recipe)
    served = f"{recipe.model.checkpoint} by {_asked(url) if url else 'the embedded server'}"
    tasks = [task for spec in recipe.data.training_sets for task in load_tasks(spec)]
    tasks = random.Random(recipe.run.seed).sample(tasks, min(limit, len(tasks)))
    played = with_value(recipe, "data.eval", {SET: str((folder / TASK_FILE).resolve())})
    played = with_value(played, "data.eval_samples_per_task", samples)
    episodes = len(tasks) * samples
    evaluation = Evaluation(recipe.model.checkpoint, "", episodes, left=episodes)
    with output(folder, played, evaluation, resume=False):
        write_tasks(folder / TASK_FILE, tasks)
        try:
            asyncio.run(_play(played, folder, url))
        except InfrastructureError:
            if not known_episodes(folder, SET):
                raise
        left = episodes - len(known_episodes(folder, SET))
        Evaluation(recipe.model.checkpoint, "", episodes, left).write(folder)
        seen = look(folder, played)
        found = Found(recipe.name, recipe.rollout.agent, served, len(tasks), samples, seen, advice(seen, recipe))
        with writing(folder / PROBE):
            options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            replace_file(folder / PROBE, orjson.dumps(found.as_json(), option=options))
    return found


async def _play(recipe: Recipe, folder: Path, url: str) -> None:
    args = to_args(recipe, folder)
    args.eval_temperature = recipe.rollout.temperature
    args.use_rollout_routing_replay = False  # nothing is trained
    tasks = {SET: load_tasks(recipe.data.eval[SET])}
    if not url:
        async with embedded_server(args, folder):
            await play_sets(args, folder, tasks)
        return
    address = urlsplit(url)
    args.sglang_router_ip, args.sglang_router_port = address.hostname, address.port
    await play_sets(args, folder, tasks)


def _require_probed(recipe: Recipe) -> None:
    """Raise `UserError` where there is no policy to look at, or nothing that could play it."""
    if recipe.supervised or not agent_class(recipe.rollout.agent).calls_tools:
        callers = ", ".join(name for name in AGENTS if agent_class(name).calls_tools)
        what = "data.source" if recipe.supervised else f"rollout.agent={recipe.rollout.agent}"
        raise UserError(f"{what} has no tool calls to look at: agents that call tools are {callers}")
    checkpoint_folder(recipe.model.checkpoint, recipe.model.folder)
    require_plug_ins(recipe)
    require_sandbox(recipe)
    require_room_for(recipe.rollout.agent, recipe.rollout.sandbox)


def _server_of(recipe: Recipe) -> str:
    """The URL of the server that the recipe names; empty where the embedded one is to be started. Raises `UserError`
    where the policy needs SGLang, and none is named."""
    if named := [*servers_of(recipe).values()]:
        return named[0]
    if recipe.serving.server == SGLANG or engine_of(recipe).on_gpus:
        raise UserError(
            f"recipe={recipe.name} is served by SGLang, and serving.router_ip names none. On a machine with its GPUs:\n"
            f"  {start_command(recipe)}\n"
            f"  slime-swe probe recipe={recipe.name} serving.router_ip=127.0.0.1 serving.router_port={PORT}"
        )
    require(*EMBEDDED)
    return ""


def _asked(url: str) -> str:
    """The server at a URL, with the model that it says it has. Raises `InfrastructureError` where none answers."""
    has = " and ".join(sorted({path for path in asyncio.run(models_at(url)).values() if path}))
    return f"{url}, which has {has}" if has else url
