"""What the agent is told and finds: the pairs as text, and a command that tries its program on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from slime_swe.data_sources.arc.oracle import ArcOracle, Grid, Pair
from slime_swe.data_sources.arc.tool.forms import digits
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.dotted import load_registered
from slime_swe.patches import make_patch

ANSWER = "solution.py"
TOOL = "arc_tool"  # its package in sandboxes
COMMAND = f"python3 -B -m {TOOL}"
_FOLDER = "slime_swe.data_sources.arc.tool"
# Name of a form -> dotted path of `form(grid) -> str`. Any other dotted path works; the command then shows digits.
FORMS = {
    "digits": f"{_FOLDER}.forms.digits",
    "letters": f"{_FOLDER}.forms.letters",
    "json": f"{_FOLDER}.forms.as_json",
}
_ASKED = f"""\
Find the rule that makes each output from its input, and write it as a program.

{ANSWER} must define transform(grid). A grid is a list of rows, a row a list of whole numbers from 0 to 9. It may also \
define transform2(grid), a second attempt. The task is solved if, for each test input, one of them returns the right \
grid. It may import from the standard library: MODULES.
`{COMMAND}` tries it on the pairs; `{COMMAND} trace 1` shows each line that runs on pair 1.
"""


def arc_task(
    name: str, train: Sequence[Pair], test: Sequence[Pair], split: str, form: str = "digits", **metadata: Any
) -> Task:
    """The task of these pairs. form: of the grids in the statement; a name in `FORMS` or a dotted path.

    Raises `UserError` for a form that there is not.
    """
    shown = load_registered(form, FORMS, "the form of grids")
    oracle = ArcOracle(command=COMMAND, train=tuple(train), test=tuple(test), gold_patch=_gold_patch(test))
    files = {"task.json": _record(oracle, form), **tool_files()}
    return Task(name, _statement(oracle, shown), Workspace(files), oracle, "arc", split, metadata)


@cache
def tool_files() -> dict[str, str]:
    """The package that tries programs, by path in the sandbox."""
    found = [path for path in resources.files(_FOLDER).iterdir() if path.name.endswith(".py")]
    return {f"{TOOL}/{path.name}": path.read_text(encoding="utf-8") for path in sorted(found, key=lambda p: p.name)}


def _statement(oracle: ArcOracle, form: Callable[[Any], str]) -> str:
    parts = [_ASKED.replace("MODULES", ", ".join(oracle.modules))]
    for number, pair in enumerate(oracle.train, 1):
        parts.append(f"Input {number}:\n{form(listed(pair.input))}\nOutput {number}:\n{form(listed(pair.output))}\n")
    for number, pair in enumerate(oracle.test, 1):
        parts.append(f"Test input {number}:\n{form(listed(pair.input))}\n")
    return "\n".join(parts)


def _record(oracle: ArcOracle, form: str) -> str:
    """What the command reads. It has no hidden output."""
    train = [{"input": pair.input, "output": pair.output} for pair in oracle.train]
    test = [{"input": pair.input} for pair in oracle.test]
    rules = {"modules": oracle.modules, "functions": oracle.functions}
    return json.dumps({"form": form, "train": train, "test": test, **rules}, separators=(",", ":")) + "\n"


def _gold_patch(test: Sequence[Pair]) -> str:
    """A table of the hidden outputs: no program that follows the rule is known. It is one line, which no other task's
    table has, so that `contamination` does not find all tasks alike."""
    table = {_key(pair.input): _key(pair.output) for pair in test}
    program = (
        f"def transform(grid): return [[*map(int, row)] for row in {table!r}"
        '["/".join("".join(map(str, row)) for row in grid)].split("/")]\n'
    )
    return make_patch({}, {ANSWER: program})


def _key(grid: Grid) -> str:
    return digits(listed(grid)).replace("\n", "/")


def listed(grid: Grid) -> list[list[int]]:
    return [list(row) for row in grid]
