"""Small repositories made from function templates: layout, names, modules, tests, and one bug."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest

from slime_swe.data_sources.synthetic.functions import PLACEHOLDER, Call, FunctionTemplate, Mutant, sorted_calls
from slime_swe.data_sources.synthetic.names import Namer

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
        """The template's source, or a mutant's, as it stands in a module: with names, and its docstring as a comment
        above, so that the code is one run of lines."""
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
        """Every source and test file, by path, with the bug."""
        sources = {module.path: module.source for module in self.modules}
        tests = {module.test_path: module.test_source for module in self.modules}
        return sources | tests | {self.buggy_module.path: self.buggy_module.source}


def _varied(calls: Sequence[Call]) -> list[Call]:
    """The first of the calls for each answer, then the second, and so on: one constant is right on as few as can be."""
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
    """A repository around one buggy function; `others` fill up the rest. `held_out` picks the side of the names."""
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


def _make_tests(rng: random.Random, template: FunctionTemplate, name: str) -> dict[str, tuple[Call, ...]]:
    calls = rng.choice(_call_sets(template))
    return {f"test_{name}": calls[:2], f"test_{name}_more": calls[2:]}


@cache
def _call_sets(template: FunctionTemplate) -> tuple[tuple[Call, ...], ...]:
    """Sets of calls that each tell every mutant from the right version; none depends on the bug of a task."""
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
