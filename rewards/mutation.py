"""Mutate the tests of a file so that they must fail, for `slime_swe.rewards.negative_control`.

Of each test, the first comparison gets another expected value. A test without a comparison gets the opposite of its
first assertion, and a test without an assertion raises.

The new values are drawn anew each time and have the type of the true ones. So code under test can recognise a mutated
test only if it knows the true value. If agents know a file in another form (`shown`), the part of a test that they do
not know is mutated, if there is one.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
import string
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass

_EQUAL_METHODS = ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual")
_OPPOSITES = {
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertNotEqual": "assertEqual",
}
_OPPOSITE = _OPPOSITES | {opposite: name for name, opposite in _OPPOSITES.items()}
_LITTLE = 9  # how far, at most, a mutated number is from the true one
_NONE = object()

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Edit:
    """Replace what is at these places, lines from 1 and columns in bytes, by other text."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: bytes


def mutate(
    source: bytes, tests: Collection[str], rng: random.Random, shown: bytes = b""
) -> tuple[bytes, frozenset[str]]:
    """The test file with these tests (ids) mutated, and the ids that must now fail. Tests that are not found stay as
    they are.
    """
    if not tests:
        return source, frozenset()
    text, functions = _parsed(source)
    found = frozenset(test for test in tests if _name(test) in functions)
    if not found:
        return source, found
    known = {ast.dump(node) for function in _parsed(shown)[1].values() for node in function.body}
    lines = text.split(b"\n")
    chosen = {id(function): function for function in (functions[_name(test)] for test in found)}  # one may be inherited
    edits = [edit for function in chosen.values() for edit in _edits(function, known, lines, rng)]
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        _apply(lines, edit)
    return (b"\r\n" if b"\r\n" in source else b"\n").join(lines), found


def tests_in(path: str, tests: Collection[str]) -> list[str]:
    """Those of these tests (ids) that are in this file."""
    return [test for test in tests if test.startswith(f"{path}::")]


def hidden(source: bytes, tests: Collection[str], shown: bytes) -> frozenset[str]:
    """Those of these tests (ids) that the shown file lacks or has in another form."""
    now, then = ({name: ast.dump(node) for name, node in _parsed(text)[1].items()} for text in (source, shown))
    return frozenset(test for test in tests if (name := _name(test)) in now and now[name] != then.get(name))


def _name(test: str) -> str:
    return re.sub(r"\[.*", "", test.partition("::")[2], flags=re.DOTALL)


def _parsed(source: bytes) -> tuple[bytes, Mapping[str, _Function]]:
    """The text as Python reads it, and its functions by name; none where it can't be read."""
    text = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        return text, dict(_functions(ast.parse(text.decode()), ""))
    except (SyntaxError, ValueError):
        return text, {}


def _functions(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, _Function]]:
    """Those of a module or a class by name, with those that its classes have from others in the same place."""
    classes: dict[str, Mapping[str, _Function]] = {}
    for node in tree.body:
        if isinstance(node, _Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            bases = [classes.get(base.id, {}) for base in reversed(node.bases) if isinstance(base, ast.Name)]
            inherited = {name: function for base in bases for name, function in base.items()}
            classes[node.name] = {**inherited, **dict(_functions(node, ""))}
            yield from ((f"{prefix}{node.name}::{name}", function) for name, function in classes[node.name].items())


def _edits(function: _Function, known: Container[str], lines: list[bytes], rng: random.Random) -> list[_Edit]:
    """Of the first comparison that is certain to be made, else of the first assertion, else an error at the start.

    Later assertions stay as they are, so code that has all but some of them skipped passes.
    """
    if not any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in ast.walk(function)):
        unknown = [statement for statement in function.body if ast.dump(statement) not in known]
        for statements in (unknown, function.body):
            for change in (_other_value, _opposite):
                for statement in statements:
                    if edits := change(statement, rng):
                        return edits
    return [_raise_at(function.body[0], lines, rng)]


def _other_value(statement: ast.stmt, rng: random.Random) -> list[_Edit]:
    """Of `assert a == b` or `self.assertEqual(a, b)`: another value for the side that is not computed."""
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[left, right, *_])) if name in _EQUAL_METHODS:
            pass
        case _:
            return []
    side = left if _weight(left) < _weight(right) else right
    literal = _wrong(_literal(side), rng)
    if not literal:
        return _around(side, "[", f", {rng.randint(1, _LITTLE)}]")
    start, end = _span(side)
    return [_Edit(start, end, literal.encode())]


def _opposite(statement: ast.stmt, _: random.Random) -> list[_Edit]:
    """Of `assert a` or `self.assertTrue(a)` and their like."""
    match statement:
        case ast.Assert(test=test):
            return _around(test, "not (", ")")
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) as method)) if name in _OPPOSITE:
            line, end = _span(method)[1]
            return [_Edit((line, end - len(name)), (line, end), _OPPOSITE[name].encode())]
    return []


def _weight(node: ast.expr) -> int:
    """How much of a side is computed: nothing of a literal, more where there is a call."""
    calls = any(isinstance(inner, ast.Call) for inner in ast.walk(node))
    return 2 if calls else int(_literal(node) is _NONE)


def _wrong(value: object, rng: random.Random) -> str:
    """Of a literal, another one of its type, since code may tell types apart; empty where none comes to mind."""
    little = rng.randint(1, _LITTLE)
    match value:
        case bool():
            return str(not value)
        case int() | float() | complex() if value + little != value:
            return ascii(value + little)
        case str():
            at = rng.randint(0, len(value))
            return ascii(value[:at] + rng.choice(string.ascii_lowercase) + value[at:])
        case bytes():
            return ascii(value + bytes([rng.choice(string.ascii_lowercase.encode())]))
        case list() | tuple():
            return ascii(type(value)((*value, little)))
        case dict():
            return ascii({**value, _absent(value, little): little})
        case set():
            return ascii({*value, _absent(value, little)})
    return ""


def _absent(values: Collection[object], least: int) -> int:
    return next(number for number in itertools.count(least) if number not in values)


def _span(node: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    assert node.end_lineno is not None and node.end_col_offset is not None, ast.dump(node)
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _around(node: ast.expr, before: str, after: str) -> list[_Edit]:
    start, end = _span(node)
    return [_Edit(start, start, before.encode()), _Edit(end, end, after.encode())]


def _literal(node: ast.expr) -> object:
    """The value of a literal; `_NONE` where it is none."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return _NONE


def _raise_at(statement: ast.stmt, lines: list[bytes], rng: random.Random) -> _Edit:
    """Before a function's first statement, on a line of its own unless the function has but one line."""
    decorators = statement.decorator_list if isinstance(statement, _Function | ast.ClassDef) else []
    line = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    column = len(lines[line - 1]) - len(lines[line - 1].lstrip()) if decorators else statement.col_offset
    before = lines[line - 1][:column]
    separator = b"; " if before.strip() else b"\n" + before
    wanted, got = rng.sample(range(100), 2)
    return _Edit((line, column), (line, column), f"raise AssertionError('{wanted} != {got}')".encode() + separator)


def _apply(lines: list[bytes], edit: _Edit) -> None:
    """Put an edit in place; the lines before it stay where they are."""
    (first, start), (last, end) = edit.start, edit.end
    lines[first - 1 : last] = [lines[first - 1][:start] + edit.text + lines[last - 1][end:]]
