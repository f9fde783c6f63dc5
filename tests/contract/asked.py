"""What a train loop's entry script asks of `should_run_periodic_action`, in the order of the text."""

from __future__ import annotations

import ast
from pathlib import Path

QUESTION = "should_run_periodic_action"


def asked(script: Path) -> list[str]:
    """The interval that each call in its loop over rollouts is about."""
    loops = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.For)]
    (loop,) = (node for node in loops if ast.unparse(node.target) == "rollout_id")
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and ast.unparse(node.func) == QUESTION]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    assert all(ast.unparse(call.args[0]) == "rollout_id" for call in calls)
    return [ast.unparse(call.args[1]).removeprefix("args.") for call in calls]


def imported(script: Path) -> dict[str, str]:
    """Name -> the module that the script takes it from."""
    found = (node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module or "" for node in found for alias in node.names}


def is_as_the_loop_takes_it(script: Path, package: str) -> None:
    """Assert what `slime_swe.launch.slime.loop` builds on."""
    assert imported(script)[QUESTION] == f"{package}.utils.misc"
    at_start = [interval for interval in asked(script) if interval in ("save_interval", "eval_interval")]
    assert at_start == ["save_interval", "eval_interval"], "whether to save first, then whether to evaluate"
