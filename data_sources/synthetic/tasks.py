"""The synthetic task sets: `load("train" | "heldout" | "unseen")`.

A hash of (function, bug) decides which side a pair belongs to: no pair that is trained on is evaluated on. The names of
the held-out tasks are pairs of pieces that training never shows. `unseen` holds bug classes that are never trained on.
The statement names the failing tests and the files, and nothing of the fix.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import takewhile, zip_longest

from slime_swe.data_sources.diff import REWARDS, DiffOracle
from slime_swe.data_sources.synthetic.bugs import UNSEEN_CLASSES
from slime_swe.data_sources.synthetic.functions import (
    PLACEHOLDER,
    Call,
    FunctionTemplate,
    Mutant,
    corrupted,
    scrambled,
    sorted_calls,
    templates,
)
from slime_swe.data_sources.task import CallsOracle, Task, Workspace
from slime_swe.errors import UserError, unknown
from slime_swe.patches import make_patch

SCRAMBLED_SITES = (1, 3, 8, 64)
SIZES = {"train": 512, "heldout": 160, "unseen": 96}
TEST_COMMAND = "python3 -I -S -B runtests.py"
RUNNER_PATH = "runtests.py"


def load(split: str) -> list[Task]:
    """Return the tasks of one split, always the same. Raises `UserError` for an unknown split."""
    if split not in SIZES:
        raise UserError(f"unknown split {split!r} of the synthetic tasks; there are: {', '.join(SIZES)}")
    tasks: list[Task] = []
    attempt = 0
    while len(tasks) < SIZES[split]:
        rng = random.Random(f"embedded {split} {attempt}")  # the text fixes which tasks there are
        repository = draw_repository(rng, split)
        attempt += 1
        if _is_unique(repository.buggy_module.source, repository.modules[repository.bug.module].source):
            tasks.append(_make_task(f"synthetic-{split}-{len(tasks):04d}", split, repository, rng))
    return tasks


def load_without_tests(split: str) -> list[Task]:
    """Return the tasks of a split with their tests left out of the oracle: patches are compared with the gold patch.

    They are graded as `swe_rl`, and those of `train/code_repair_rl` and so on by that reward. Raises `UserError` for an
    unknown split or reward.
    """
    name, slash, reward = split.partition("/")
    if slash and reward not in REWARDS:
        raise UserError(unknown(f"reward of the tasks diff:{split}", reward, REWARDS))
    return [_without_tests(task, reward or REWARDS[0]) for task in load(name)]


def _without_tests(task: Task, reward: str) -> Task:
    known = task.oracle
    oracle = DiffOracle(protected=known.protected, command=known.command, gold_patch=known.gold_patch, reward=reward)  # type: ignore[arg-type]
    return replace(task, id=task.id.replace("synthetic", "diff", 1), oracle=oracle, source="diff")


def draw_repository(rng: random.Random, split: str) -> Repository:
    """Draw a repository with a bug from one side of the split: first the function, then the bug class, then the bug."""
    pools = _pools(split)
    template, by_class = rng.choice(pools)
    mutant = rng.choice(by_class[rng.choice(sorted(by_class))])
    return make_repository(rng, template, mutant, templates(), held_out=split != "train")


def draw_scrambled(rng: random.Random) -> Repository:
    """Draw a repository whose bug is up to `SCRAMBLED_SITES` corruptions of a function, under training names. No task
    has this bug.

    For demonstrations. If many places are wrong, copying the text requires reading it: knowing what is likely does not
    help.
    """
    template = rng.choice([template for template in templates() if corrupted(template)])
    mutant = scrambled(rng, template, rng.choice(SCRAMBLED_SITES))
    return make_repository(rng, template, mutant, templates(), held_out=False)


def _is_unique(before: str, after: str) -> bool:
    """Say whether the lines that differ, without the first one's indentation, are found once in `before`; where lines
    were only added or removed, with the line that follows or else precedes."""
    old, new = before.splitlines(), after.splitlines()
    start = _equal_heads(old, new)
    end = _equal_heads(old[start:][::-1], new[start:][::-1])
    if start in (len(old) - end, len(new) - end):
        start, end = (start, end - 1) if end else (start - 1, end)
    return before.count("\n".join(old[start : len(old) - end]).lstrip(" ")) == 1


def _equal_heads(first: list[str], second: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def statement(rng: random.Random, repository: Repository, failing: list[str]) -> str:
    """Write what the agent is asked: that tests fail, which, and which files there are."""
    opening = rng.choice(("Tests fail", "The build is red", "Please repair this", "A user reports wrong results"))
    paths = [module.path for module in repository.modules]
    return "\n".join([f"{opening}:", *failing[:2], "Files:", *paths])


def failing_tests(repository: Repository) -> tuple[list[str], list[str]]:
    """Return (FAIL_TO_PASS, PASS_TO_PASS), by which calls tell the repository's mutant from the right version."""
    mutant = repository.bug.mutant
    failing: list[str] = []
    passing: list[str] = []
    for number, module in enumerate(repository.modules):
        for position, function in enumerate(module.functions):
            buggy = (number, position) == (repository.bug.module, repository.bug.function)
            killing = {function.template.calls[index] for index in mutant.killed_by} if buggy else set()
            for test, calls in function.tests.items():
                (failing if killing & set(calls) else passing).append(f"{module.test_path}::{test}")
    return failing, passing


def _make_task(task_id: str, split: str, repository: Repository, rng: random.Random) -> Task:
    failing, passing = failing_tests(repository)
    files = repository.files() | {RUNNER_PATH: runner_source()}
    module, right = repository.buggy_module, repository.modules[repository.bug.module].source
    oracle = CallsOracle(
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(passing),
        protected=tuple(sorted({RUNNER_PATH, *(m.test_path for m in repository.modules)})),
        command=TEST_COMMAND,
        gold_patch=make_patch({module.path: module.source}, {module.path: right}),
        held_out_tests=repository.held_out_tests,
    )
    bug = repository.bug.mutant
    metadata = {
        "bug_class": bug.mutation.bug_class,
        "function": bug.key.partition("\n")[0],
        "pair": hashlib.sha256(bug.key.encode()).hexdigest()[:16],
    }
    return Task(task_id, statement(rng, repository, failing), Workspace(files), oracle, "synthetic", split, metadata)


# Small repositories made from function templates: layout, names, modules, tests, and one bug.
_CALL_SETS = 8
_HELD_OUT_CALLS = 16  # at most, on which the bug shows, and as many on which it does not
_DOCSTRING = re.compile(r'\A(def .*:\n)    """(.*)"""\n')
_LAYOUTS = ("{package}/{module}.py", "src/{package}/{module}.py", "{module}.py")


@dataclass(frozen=True)
class Function:
    """A template with names put in. `source` is the right version, `tests` its test functions by name."""

    template: FunctionTemplate
    names: dict[str, str]
    source: str
    tests: dict[str, tuple[Call, ...]]

    @property
    def name(self) -> str:
        return self.names["FN"]

    def render(self, source: str) -> str:
        """Write the template's source, or a mutant's, as it stands in a module: with names, and its docstring as a
        comment above, so that the code is one run of lines."""
        named = PLACEHOLDER.sub(lambda match: self.names[match.group()], source)
        return _DOCSTRING.sub(r"# \2\n\1", named)


@dataclass(frozen=True)
class Module:
    """One source file and its test file."""

    path: str
    dotted: str
    functions: tuple[Function, ...]

    @property
    def source(self) -> str:
        return "\n\n".join(function.source for function in self.functions)

    @property
    def test_path(self) -> str:
        return f"tests/test_{self.dotted.rpartition('.')[2]}.py"

    @property
    def test_source(self) -> str:
        names = ", ".join(sorted(function.name for function in self.functions))
        tests = [
            _test_source(test, function.name, calls)
            for function in self.functions
            for test, calls in function.tests.items()
        ]
        return "\n\n".join([f"from {self.dotted} import {names}\n", *tests])


@dataclass(frozen=True)
class Bug:
    """One mutant in one function of one module."""

    module: int
    function: int
    mutant: Mutant


@dataclass(frozen=True)
class Repository:
    """Two modules in their right version, and the bug that a task puts into one of them."""

    modules: tuple[Module, ...]
    bug: Bug

    @property
    def buggy_module(self) -> Module:
        """The module that holds the bug, with the bug in it."""
        module, number = self.modules[self.bug.module], self.bug.function
        functions = list(module.functions)
        wrong = functions[number].render(self.bug.mutant.mutation.source)
        functions[number] = replace(functions[number], source=wrong)
        return replace(module, functions=tuple(functions))

    @property
    def held_out_tests(self) -> str:
        """A test file with calls of the buggy function that its tests do not make; no repository holds it.

        On half of them the bug shows, in an order that does not say on which. Empty where the bug shows on calls of the
        tests alone: such calls would say nothing of a fix.
        """
        module = self.modules[self.bug.module]
        function = module.functions[self.bug.function]
        shown = {call.arguments for calls in function.tests.values() for call in calls}
        failing, passing = (
            _varied([call for call in calls if call.arguments not in shown])
            for calls in sorted_calls(function.template, self.bug.mutant)
        )
        chosen = failing + passing
        random.Random(self.bug.mutant.key).shuffle(chosen)
        test = _test_source(f"test_{function.name}_held_out", function.name, chosen)
        return f"from {module.dotted} import {function.name}\n\n\n{test}" if failing else ""

    def files(self) -> dict[str, str]:
        """Return every source and test file, by path, with the bug."""
        sources = {module.path: module.source for module in self.modules}
        tests = {module.test_path: module.test_source for module in self.modules}
        return sources | tests | {self.buggy_module.path: self.buggy_module.source}


def _varied(calls: Sequence[Call]) -> list[Call]:
    """Take the first call for each answer, then the second, and so on: one constant is right on as few as can be."""
    by_answer: dict[str, list[Call]] = {}
    for call in calls:
        by_answer.setdefault(call.expected, []).append(call)
    return [call for row in zip_longest(*by_answer.values()) for call in row if call is not None][:_HELD_OUT_CALLS]


def _test_source(test: str, function: str, calls: Sequence[Call]) -> str:
    return f"def {test}():\n" + "".join(
        f"    assert {function}({call.arguments}) == {call.expected}\n" for call in calls
    )


def make_repository(
    rng: random.Random,
    template: FunctionTemplate,
    mutant: Mutant,
    others: Sequence[FunctionTemplate],
    *,
    held_out: bool,
) -> Repository:
    """Make a repository around one buggy function, filled up with `others`. `held_out` picks the side of the names."""
    namer = Namer(rng, held_out=held_out)
    layout = rng.choice(_LAYOUTS)
    package = namer.piece()
    sizes = (rng.choice((1, 2)), rng.choice((1, 2)))
    companions = rng.sample(others, sum(sizes) - 1)
    first = companions[: sizes[0] - 1]
    position = rng.randint(0, len(first))
    first.insert(position, template)
    modules = [_make_module(rng, namer, layout, package, chosen) for chosen in (first, companions[sizes[0] - 1 :])]
    bug_module = rng.randint(0, 1)
    if bug_module:
        modules.reverse()
    return Repository(tuple(modules), Bug(bug_module, position, mutant))


def _make_module(
    rng: random.Random, namer: Namer, layout: str, package: str, chosen: Sequence[FunctionTemplate]
) -> Module:
    path = layout.format(package=package, module=namer.pair())
    dotted = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    return Module(path, dotted, tuple(_make_function(rng, namer, template) for template in chosen))


def _make_function(rng: random.Random, namer: Namer, template: FunctionTemplate) -> Function:
    names = {
        placeholder: namer.pair() if placeholder == "FN" else namer.piece() for placeholder in template.placeholders
    }
    function = Function(template, names, "", {})
    return replace(function, source=function.render(template.source), tests=_make_tests(rng, template, names["FN"]))


# Names for procedurally generated code: pairs of short word pieces, one fifth of the pairs held out by hash.
#
# A model memorises a fixed list of names. It has to copy pairs drawn from 310 pieces (~96,000 names). No piece is the
# name of a module of the standard library, since a package of that name could not be imported.
PIECES: tuple[str, ...] = tuple(
    """
    account actor agent album alert amount anchor answer apple archive arrow asset audit author bag balance band
    barrel base batch beacon bean bench bike bird blade board boat bond bonus book border bottle box branch brick
    bridge broker bucket budget button cabin cake camera camp candle card carrot cart castle cell chair charge chart
    chef chip city claim clerk clip cloud coach coast color column comet copper corner couch counter course court
    cover crate credit crop crown curve cycle dealer deck deer depot desk dish dock door drawer dress editor effort
    entry envelope error expert fabric farm feed ferry field figure fish flag fleet flight flower folder forest form
    forum freight fruit fund game garden gauge gear glass globe grade grain grant graph grid guard guest habit hall
    hammer heart hill hook horse house image income invoice island jacket jar job joint judge key kite ladder lake
    lane layer leaf lemon lens letter level link loan lock lodge lot lunch magnet mail margin mask meal member menu
    metal meter mill mirror model motor museum nest network night note novel oak ocean office onion orbit organ
    owner pack page panel paper parcel party payment peak permit phone photo pilot pipe plant plate pocket poem
    point pond pool post pot prize profit pump quest quota rack rail rain ranch record region reply report ribbon
    rice ring road robot roof room rope route sail salt sample school score seat section seed server shade shed
    sheet shell shift ship shoe shop silver slot smoke snow sofa song spice spoon stable staff stage star station
    steel stock store storm street sugar suit switch symbol tank target task team temple term theme ticket tide tile
    title torch tower toy track trade train tray tree trip tube tunnel unit value vault vendor video village visa
    visit vote voucher wagon wall wheel wind wing winter wood worker zone
    """.split()
)


def is_held_out(first: str, second: str) -> bool:
    """Say whether the name `first_second` belongs to the held-out fifth."""
    return hashlib.sha256(f"{first}_{second}".encode()).digest()[0] % 5 == 0


class Namer:
    """Draws names without repeats from one side of the split."""

    def __init__(self, rng: random.Random, *, held_out: bool) -> None:
        self._rng = rng
        self._held_out = held_out
        self._pieces: set[str] = set()

    def pair(self) -> str:
        """Draw a name of two pieces, such as `order_total`."""
        while True:
            first, second = self._rng.sample(PIECES, 2)
            if is_held_out(first, second) is self._held_out and not {first, second} & self._pieces:
                self._pieces |= {first, second}
                return f"{first}_{second}"

    def piece(self) -> str:
        """Draw a name of one piece, for short-lived variables."""
        while True:
            name = self._rng.choice(PIECES)
            if name not in self._pieces:
                self._pieces.add(name)
                return name


def _make_tests(rng: random.Random, template: FunctionTemplate, name: str) -> dict[str, tuple[Call, ...]]:
    calls = rng.choice(_call_sets(template))
    return {f"test_{name}": calls[:2], f"test_{name}_more": calls[2:]}


@cache
def _call_sets(template: FunctionTemplate) -> tuple[tuple[Call, ...], ...]:
    """Choose sets of calls that each tell every mutant from the right version; none depends on the bug of a task."""
    rng = random.Random(f"tests of {template.name}")
    return tuple(_killing_calls(rng, template) for _ in range(_CALL_SETS))


def _killing_calls(rng: random.Random, template: FunctionTemplate) -> tuple[Call, ...]:
    alive = [mutant.killed_by for mutant in template.mutants]
    order = rng.sample(range(len(template.calls)), len(template.calls))
    chosen: list[int] = []
    while alive or len(chosen) < 3:
        candidates = [index for index in order if index not in chosen]
        best = max(candidates, key=lambda index: sum(index in killed_by for killed_by in alive))
        chosen.append(best)
        alive = [killed_by for killed_by in alive if best not in killed_by]
    return tuple(template.calls[index] for index in chosen)


def runner_source() -> str:
    return (resources.files("slime_swe.data_sources.synthetic") / RUNNER_PATH).read_text(encoding="utf-8")


@cache
def _pools(split: str) -> tuple[tuple[FunctionTemplate, dict[str, list[Mutant]]], ...]:
    """Return templates with the mutants that a split may use, by bug class."""
    pools = []
    for template in templates():
        by_class: dict[str, list[Mutant]] = {}
        for mutant in template.mutants:
            if _belongs(mutant, split):
                by_class.setdefault(mutant.mutation.bug_class, []).append(mutant)
        if by_class:
            pools.append((template, by_class))
    return tuple(pools)


def _belongs(mutant: Mutant, split: str) -> bool:
    if mutant.mutation.bug_class in UNSEEN_CLASSES:
        return split == "unseen"
    return split == ("heldout" if mutant.is_held_out else "train")
