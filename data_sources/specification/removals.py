"""What is removed from a project for one task, and which tests then fail: functions, classes, modules, and steps.

A step is one definition of a module of which everything that comes later is not there yet: definitions are ordered so
that each comes after those that it uses (as SWE-Flow and Commit0 do), and its tests are those that run none of the
later ones.
"""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from slime_swe import syntax
from slime_swe.data_sources.factory import runs as coverage_map
from slime_swe.data_sources.factory.packages import Package
from slime_swe.data_sources.factory.runs import CoverageMap, Job, found_from, outcomes
from slime_swe.data_sources.specification.source import Definition, Source, UnreadableError, lines_of

MOST_TESTS = 40
_SECONDS, _TEST_SECONDS = 60.0, 5.0  # of all tests of a removal, and of one
# The sizes of a removal, and what one of each is called.
SIZES = {"functions": "function", "classes": "class", "modules": "module", "steps": "step", "untested": "untested"}


@dataclass(frozen=True)
class Removal:
    """A part of a module that is removed for one task. asked: what is to be written. later: what is not there either,
    and stays so. tests: those that run some of `asked` and none of `later`. documented: a test file made of doctests,
    by its path, where no test of the project runs it."""

    path: str
    asked: tuple[Definition, ...]
    later: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    documented: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Proved:
    """A removal with the tests that it fails, and those that run what is removed and pass all the same; of size
    `untested` without any."""

    removal: Removal
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


@dataclass(frozen=True)
class _Module:
    """One module. runs: name of a definition → the tests that run it. early: those that run at import, which stay."""

    path: str
    source: Source
    definitions: tuple[Definition, ...]
    runs: Mapping[str, tuple[str, ...]]
    early: frozenset[str]

    def free(self) -> list[Definition]:
        """Return what can be removed: functions and methods that do something, and not when the module is imported."""
        return [d for d in self.definitions if not (d.is_class or d.trivial or d.name in self.early)]


def proved(project: Package, size: str, is_wanted: Callable[[Definition], bool]) -> list[Proved]:
    """Return each removal of this size that makes some of its tests fail, in the order of the sources; of `untested`
    each.

    is_wanted: of a function or class, whether it says enough of what it does. Raises as `coverage_map.measure` does,
    but for a project without tests.
    """
    removals = [
        (module, removal)
        for module in _modules(project)
        for removal in _MAKERS[size](module)
        if size == "modules" or all(map(is_wanted, removal.asked))
    ]
    if size == "untested":
        return [Proved(removal, (), ()) for _, removal in removals]
    jobs = [job for module, removal in removals for job in _jobs(module, removal)]
    found = iter(outcomes(project.files, jobs, found_from(project.root)) if jobs else ())
    judged = (_judged(removal, next(found), next(found) if _is_new(removal) else {}) for _, removal in removals)
    return [one for one in judged if one is not None]


def _is_new(removal: Removal) -> bool:
    """Say whether the right version is one whose tests have not run: else they passed in the project as it is."""
    return bool(removal.later or removal.documented)


def sources_of(project: Package, removal: Removal) -> tuple[str, str]:
    """Return the file without what is asked for, and with it; both without what comes later."""
    return _texts(_read(project.files[removal.path]), removal)


@lru_cache(maxsize=32)  # modules: each has many definitions, and takes long to be read
def _read(text: str) -> Source:
    return Source(text)


def _texts(source: Source, removal: Removal) -> tuple[str, str]:
    asked = [definition.name for definition in removal.asked]
    right = source.without(removal.later) if removal.later else source.text
    return source.without([*asked, *removal.later]), right


def _jobs(module: _Module, removal: Removal) -> Iterator[Job]:
    tests = removal.tests or tuple(f"{path}::{_test_in(text)}" for path, text in removal.documented)
    broken, right = _texts(module.source, removal)
    for text in (broken, right) if _is_new(removal) else (broken,):
        files = {module.path: text, **dict(removal.documented)}
        yield Job(files, tests[:MOST_TESTS], _SECONDS, wall=_SECONDS, test_seconds=_TEST_SECONDS)


def _test_in(text: str) -> str:
    return text.rpartition("\ndef ")[2].partition("(")[0]


def _judged(removal: Removal, broken: Mapping[str, bool], right: Mapping[str, bool]) -> Proved | None:
    """Return what is proved, None if no test fails. right: outcomes with what is asked for; empty where all pass."""
    passing = [test for test in broken if right.get(test, not right)]
    failing = tuple(test for test in passing if not broken[test])
    return Proved(removal, failing, tuple(test for test in passing if broken[test])) if failing else None


def _modules(project: Package) -> Iterator[_Module]:
    arguments = [*found_from(project.root), *project.tests]
    coverage = coverage_map.measure(project.files, arguments) if project.tests else CoverageMap({}, {}, {}, {})
    code = {path: project.files[path] for path in project.code}
    runs: dict[str, dict[str, tuple[str, ...]]] = {path: {} for path in code}
    early: dict[str, set[str]] = {path: set() for path in code}
    for function, tests in coverage_map.tests_by_function(code, coverage).items():
        runs[function.path][function.name] = tests
        if coverage.runs_at_import(function):
            early[function.path].add(function.name)
    for path, text in code.items():
        try:
            source = _read(text)
        except UnreadableError:
            continue
        yield _Module(path, source, tuple(source.definitions()), runs[path], frozenset(early[path]))


def _functions(module: _Module) -> Iterator[Removal]:
    for definition in module.free():
        if tests := module.runs.get(definition.name):
            yield Removal(module.path, (definition,), tests=tests)
        elif text := _documented(module, definition):
            path = f"{test_name(definition.name)}.py"
            yield Removal(module.path, (definition,), documented=((path, text),))


def _untested(module: _Module) -> Iterator[Removal]:
    """Yield functions and methods that neither tests nor doctests run; a body on the line of its `def` may be run."""
    for definition in module.free():
        if module.runs.get(definition.name) == () and not _documented(module, definition):
            yield Removal(module.path, (definition,))


def _documented(module: _Module, definition: Definition) -> str | None:
    return test_file(dotted(module.path), definition.name, definition.docstring)


# A function's doctests as a test file of its own: what grades a function that no test of its project runs.
#
# The docstring is in the file that the agent edits, so it decides nothing. The file has the examples as they were, each
# with a comparison: `assert repr(EXAMPLE) == 'WHAT IT SHOWS'`.
_NAMES = "globals().update({{name: value for name, value in vars({module}).items() if not name.startswith('__')}})"
_DIRECTIVE = re.compile(r"#\s*doctest:")


def test_file(module: str, name: str, docstring: str) -> str | None:
    """Write a test of `name` in this module; None where an example can't be compared by its `repr`: one with options,
    with `...` in what it shows, or that prints or raises; or where none shows anything."""
    try:
        examples = doctest.DocTestParser().get_examples(docstring)
    except ValueError:
        return None
    written = [_lines(example) for example in examples]
    lines = [line for found in written for line in found or ()]
    if None in written or not any(line.startswith("assert") for line in lines):
        return None
    body = "".join(f"    {line}\n" for line in lines)
    return f"import {module}\n\n{_NAMES.format(module=module)}\n\n\ndef {test_name(name)}():\n{body}"


def test_name(name: str) -> str:
    return f"test_{name.replace('.', '_')}_as_documented"


def _lines(example: doctest.Example) -> list[str] | None:
    if example.exc_msg is not None or _DIRECTIVE.search(example.source) or "..." in example.want:
        return None
    try:
        tree = syntax.parse(example.source)
    except (SyntaxError, ValueError):
        return None
    source = ast.unparse(tree)
    if not example.want:
        return source.splitlines()
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr) or _prints(tree):
        return None
    return [f"assert repr({source}) == {example.want.rstrip()!r}"]


def _prints(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id in ("print", "pprint") for node in ast.walk(tree))


def _classes(module: _Module) -> Iterator[Removal]:
    """Yield classes of which nothing runs at import; their name stands for all their methods."""
    for definition in module.definitions:
        tests = module.runs.get(definition.name)
        if definition.is_class and tests and definition.name not in module.early:
            yield Removal(module.path, (definition,), tests=tests)


def _whole(module: _Module) -> Iterator[Removal]:
    asked = module.free()
    tests = dict.fromkeys(test for definition in asked for test in module.runs.get(definition.name, ()))
    if tests:
        yield Removal(module.path, tuple(asked), tests=tuple(tests))


def _steps(module: _Module) -> Iterator[Removal]:
    ordered = _by_dependency(module)
    for number, definition in enumerate(ordered):
        later = [one.name for one in ordered[number + 1 :]]
        run_later = {test for name in later for test in module.runs.get(name, ())}
        tests = tuple(test for test in module.runs.get(definition.name, ()) if test not in run_later)
        if tests:
            yield Removal(module.path, (definition,), tuple(later), tests)


_MAKERS: dict[str, Callable[[_Module], Iterator[Removal]]] = {
    "functions": _functions,
    "classes": _classes,
    "modules": _whole,
    "steps": _steps,
    "untested": _untested,
}


def _by_dependency(module: _Module) -> list[Definition]:
    """Put each definition after those that its text names; where some name each other, in the order of the source."""
    free = {definition.name: definition for definition in module.free()}
    lines = lines_of(module.source.text)
    by_last = {name.rpartition(".")[2]: name for name in free}
    ordered: dict[str, Definition] = {}
    begun: set[str] = set()
    for first in free:
        pending = [first]  # the last one is looked at; what it uses comes on top of it
        while pending:
            name = pending[-1]
            uses = [] if name in begun else [by_last[word] for word in _words(lines, free[name]) if word in by_last]
            begun.add(name)
            if left := [used for used in uses if used not in begun]:
                pending += reversed(left)
            else:
                pending.pop()
                ordered.setdefault(name, free[name])
    return list(ordered.values())


def _words(lines: Sequence[str], definition: Definition) -> list[str]:
    """Return the names and attributes in a definition's text, sorted."""
    first, last = definition.lines
    text = "".join(lines[first - 1 : last])
    indent = len(text) - len(text.lstrip())
    tree = syntax.parse(("if 1:\n" if indent else "") + text)
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return sorted(found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)})


def dotted(path: str) -> str:
    """Return the module of a path from the project's root: `pkg/__init__.py` is `pkg`."""
    return path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").replace("/", ".")
