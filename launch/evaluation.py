"""Evaluate one checkpoint: serve it, play the evaluation tasks through the recipe's plug-ins, count."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from embedded.evaluate import as_slime, evaluate, load_evaluation_tasks
from embedded.hooks import Hooks
from embedded.metrics import evaluation_metrics
from embedded.rollouts import Player
from embedded.server_process import ServerProcess


class EvaluationError(RuntimeError):
    """Infrastructure broke every episode of a set, so that there is nothing to report."""


async def evaluate_checkpoint(args: Namespace) -> dict[str, dict[str, Any]]:
    """Figures of each set of `args.swe_eval_tasks`; trajectories go to `args.swe_run_dir`. Raises `EvaluationError`."""
    hooks, tasks = Hooks.load(args), load_evaluation_tasks(args)
    async with ServerProcess.of_run(args, Path(args.swe_run_dir) / "server.log") as server:
        args.sglang_router_ip, args.sglang_router_port = server.host, server.port
        player = Player(args, hooks)
        return {name: await _evaluate_set(args, hooks, player, name, tasks[name]) for name in tasks}


async def _evaluate_set(args: Namespace, hooks: Hooks, player: Player, name: str, tasks: Any) -> dict[str, Any]:
    samples = await evaluate(player, tasks)
    if hooks.log_evaluation is not None:
        hooks.log_evaluation(-1, args, {name: as_slime(samples)}, {})
    metrics = evaluation_metrics(samples)
    if not metrics["episodes"]:
        failure = (samples[0].metadata or {}).get("infrastructure")
        raise EvaluationError(f"infrastructure broke every episode of {name!r}: {failure}")
    return metrics
