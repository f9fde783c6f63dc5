"""Play an evaluation's episodes into its folder.

Read this file first. `target` says what is evaluated and how episodes of it are played, and the package itself keeps
what was played so that a killed evaluation goes on: an episode is in the journal as soon as it is over, and none that
is whole there is played again. The command counts what the folder then holds.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from slime_swe.data_sources.task import Task
from slime_swe.launch.config import with_value
from slime_swe.launch.evaluation import appending, known_episodes
from slime_swe.launch.evaluation.target import Endpoint
from slime_swe.launch.model import EMBEDDED_SEED
from slime_swe.launch.progress import Bar
from slime_swe.launch.slime.render import to_args
from slime_swe.recipes.base import Recipe, Rollout
from slime_swe.rollout.agents.native import SCHEMAS
from slime_swe.rollout.endpoint.client import EndpointClient, key_of, spending_of
from slime_swe.rollout.endpoint.replies import Spending
from slime_swe.rollout.evaluation import as_slime, evaluate
from slime_swe.rollout.hooks import RolloutHooks, optional_hook
from slime_swe.rollout.play import Player

Sets = Mapping[str, Sequence[Task]]


async def evaluate_checkpoint(recipe: Recipe, folder: Path, sets: Sets) -> None:
    """Play the episodes that the folder's journal has not, by the SGLang that the recipe names, or else by the embedded
    server."""
    args = to_args(recipe, folder)
    args.use_rollout_routing_replay = False  # nothing is trained
    if recipe.serving.router_ip:
        args.swe_cached_episodes = 0.0  # which is of the recipe's own engines
        await play_sets(args, folder, sets)
        return
    await play_sets_here(args, folder, sets)


async def evaluate_endpoint(recipe: Recipe, folder: Path, sets: Sets, endpoint: Endpoint, spending: Spending) -> None:
    """Play the episodes that the folder's journal has not at an endpoint, until its budget is spent.

    Raises `UserError` for what the endpoint refuses.
    """
    args = endpoint_args(recipe, folder, endpoint)
    spending = await spending_of(spending)
    await play_sets(args, folder, sets, spending)


async def require_usable(endpoint: Endpoint) -> None:
    """Raise `UserError` where nothing answers at an endpoint, or it refuses the key, the model or tools."""
    key, uncounted = key_of(endpoint.key_variable), Spending(Path(os.devnull))
    async with EndpointClient(endpoint.url, endpoint.model, key=key, spending=uncounted) as client:
        await client.require_usable(SCHEMAS)


def endpoint_args(recipe: Recipe, folder: Path, endpoint: Endpoint) -> Namespace:
    """Return arguments for an endpoint: there are no weights here, and no engine that a token could be sent to."""
    args = to_args(with_value(recipe, "model.checkpoint", EMBEDDED_SEED), folder)
    args.hf_checkpoint, args.sglang_router_ip, args.sglang_router_port = "", "", 0
    args.use_rollout_routing_replay = False
    args.swe_cached_episodes = 0.0
    args.swe_endpoint, args.swe_endpoint_model, args.swe_endpoint_key = (
        endpoint.url,
        endpoint.model,
        endpoint.key_variable,
    )
    return args


async def play_sets_here(args: Namespace, folder: Path, sets: Sets) -> None:
    """Play the episodes that the folder's journal has not, by an embedded server of the checkpoint of `args`. Its log
    is in the folder. Raises `ServerError` when it ends."""
    from slime_swe.embedded.server_process import ServerProcess  # of the `embedded` extra

    args.swe_cached_episodes = 0.0  # which is of the recipe's GPUs
    async with ServerProcess.of_run(args, folder / "server.log") as server:
        args.sglang_router_ip, args.sglang_router_port = server.host, server.port
        await server.while_alive(play_sets(args, folder, sets))


async def play_sets(args: Namespace, folder: Path, sets: Sets, spending: Spending | None = None) -> None:
    """Play the episodes that the folder's journal has not, by the server that `args` name."""
    player = Player(args, RolloutHooks.load(args))
    for name, tasks in sets.items():
        total = len(tasks) * args.n_samples_per_eval_prompt
        known = known_episodes(folder, name)
        if len(known) == total:
            continue
        if known:
            print(f"{name}: {len(known)} of {total} episodes were played before", file=sys.stderr)
        with Bar(f"evaluating {name}", total) as bar:
            samples = await evaluate(
                player,
                tasks,
                bar.show,
                known=known,
                may_begin=lambda: spending is None or not spending.is_spent,
                keep=appending(folder, name),
            )
        if args.custom_eval_rollout_log_function_path != Rollout.log_evaluation:  # ours writes the journal
            log = optional_hook(args, "custom_eval_rollout_log_function_path")
            if log is not None:
                log(-1, args, {name: as_slime(samples)}, {})
