"""Mutate the tests of a file so that they must fail, for `slime_swe.rewards.negative_control`.

Code may see that a test is mutated: the control is no secret. What code must not see is in `rewards.altered_tests`.

There are two forms of a mutated test in Python:

- With a `Recording`, a test that compares with literals has their values withheld and records what its code gives
  (`rewards.withheld`). It fails at its end. Code that reads such a test sees what it is.
- Without one, and for every other test, the first comparison gets another expected value of the type of the true one;
  a test without a comparison expects another exception, or the opposite of its first assertion. A test without any of
  these raises at once.

The cases of data files are mutated by `rewards.data_cases`. Tests in other languages, and those that neither a function
nor a case has the name of, have the literals of their files rewritten (`rewrite_literals`): some of them then fail, and
the gold patch shows which.

If agents know a file in another form (`shown`), the part of a test that they do not know is mutated, if there is one.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
import string
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace

from slime_swe import syntax
from slime_swe.rewards.source_edits import (
    NO_LITERAL,
    Edit,
    Function,
    apply_edits,
    before,
    literal,
    replaced,
    source_of,
    span,
    text_of,
)
from slime_swe.rewards.withheld import EQUAL_METHODS, NOTHING_RECORDED, Withheld, define_recorder, record_values

_OPPOSITES = {
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertNotEqual": "assertEqual",
}
_OPPOSITE = _OPPOSITES | {opposite: name for name, opposite in _OPPOSITES.items()}
_OPERATORS = {"in": "not in", "is": "is not", "!=": "==", "<": ">=", ">": "<="}
_OTHER_OPERATOR = {
    b" %s " % a.encode(): b" %s " % b.encode() for pair in _OPERATORS.items() for a, b in (pair, pair[::-1])
}
_RAISES = ("raises", "assertRaises", "assertRaisesRegex", "assert_raises")
_EXCEPTIONS = ("BufferError", "ChildProcessError", "FloatingPointError", "StopAsyncIteration", "UnicodeTranslateError")
_ASSERTS = re.compile(rb"(?i:assert|expect|should)|REQUIRE|CHECK")  # the last two are Catch's
_LITERAL = re.compile(rb'"(?:[^"\\\n]|\\.)*"|(?<![\w.\'])(?:0x[\da-fA-F]+|\d+)(?![\w.])')
_SCRIPT_LITERAL = re.compile(_LITERAL.pattern + rb"|'(?:[^'\\\n]|\\.)*'")  # elsewhere, quotes are of single characters
_GO_LITERAL = re.compile(_LITERAL.pattern.replace(rb"(?<![\w.", rb"(?<![\w.["))  # not the length of an array's type
_EXPECTS = re.compile(rb"(?i:expect|output|result|should|want)[^:=]*[:=]")
_LAST_WORD = re.compile(rb"[A-Za-z]{2,}(?=\s*$)")
_DATA = (
    ".ambr", ".csv", ".expected", ".golden", ".html", ".ini", ".json", ".jsonl", ".md", ".out", ".rst", ".sql",
    ".stderr", ".stdout", ".test", ".toml", ".tsv", ".txt", ".xml", ".yaml", ".yml",
)  # fmt: skip
_SCRIPTS = (".js", ".mjs", ".ts")
_IMPORTS = re.compile(rb"^\s*(?:#|import\b|from\b|use\b|package\b)|\brequire\(")
# Go: what a test says where it fails, and what it is called, decide nothing; a string alone on a line is an import.
_GO_IDLE = re.compile(rb"\b[bt]\.(?:Error|Fatal|Log|Skip)f?\(|^\s*(?://|description:|name:|\"[^\"]*\"\s*$)")
_DIGITS = 300  # of a number that is rewritten
_LITTLE = 9  # how far, at most, a mutated number is from the true one


@dataclass(frozen=True)
class Recording:
    """The record of the values of tests: the sandbox's file, and the number of the first place."""

    path: str
    first: int = 0


@dataclass(frozen=True)
class Mutated:
    """A test file, and what was done to it.

    functions: the tests (ids) that must now fail, those of one function together. withheld: the values that are
    recorded, in the order of their numbers.
    """

    text: bytes
    functions: tuple[frozenset[str], ...] = ()
    withheld: tuple[Withheld, ...] = ()

    @property
    def tests(self) -> frozenset[str]:
        return frozenset().union(*self.functions)


def mutate(
    source: bytes,
    tests: Collection[str],
    rng: random.Random,
    shown: bytes = b"",
    recording: Recording | None = None,
) -> Mutated:
    """Mutate these tests (ids) of a test file. Tests that are not found stay as they are."""
    text, module = parsed(source)
    functions = functions_of(module)
    chosen: dict[int, tuple[Function, set[str]]] = {}  # one may be inherited by several classes
    for test in tests:
        if (function := functions.get(name_of(test))) is not None:
            chosen.setdefault(id(function), (function, set()))[1].add(test)
    if not chosen:
        return Mutated(source)
    known = {ast.dump(node) for function in functions_of(parsed(shown)[1]).values() for node in function.body}
    lines = text.split(b"\n")
    edits: list[Edit] = []
    withheld: list[Withheld] = []
    tests_of = [frozenset(names) for _, names in chosen.values()]
    wanted = [function for function, _ in chosen.values()]
    recorded = record_values(module, wanted, lines, recording.first) if recording else [NOTHING_RECORDED] * len(wanted)
    for function, names, found in zip(wanted, tests_of, recorded, strict=True):
        edits += found.edits or _edits(function, known, lines, rng)
        withheld += [Withheld(names, comparison.digests) for comparison in found.comparisons]
    if recording is not None and withheld:
        edits.append(define_recorder(module, lines, recording.path))
    line_end = b"\r\n" if b"\r\n" in source else b"\n"
    made = b"\n".join(apply_edits(lines, set(edits))).replace(b"\n", line_end)
    return Mutated(made, tuple(tests_of), tuple(withheld))


def rewrite_literals(path: str, source: bytes) -> bytes:
    """Return a test file of any language with other numbers and strings in each line that asserts something; if there
    are none, in each line that imports nothing, as in Go, where assertions are plain comparisons.

    In a file of data all numbers and strings are others, and so is the word at the end of a line such as
    `expected: word`; if there is none of these, the word at the end of each line. What is made of a file is the same
    each time, so that two patches are asked the same.
    """
    rng, is_go = random.Random(source), path.endswith(".go")

    def other(found: re.Match[bytes]) -> bytes:
        text = found[0]
        if is_go and text == b'""':
            return text  # for no error: with all else different, one would be expected and given
        if text.startswith(b"0x"):
            return b"%s%x" % (text[:-1], int(text[-1:], 16) ^ rng.randint(1, _LITTLE))
        if text[:1] in b"\"'":
            return text[:-1] + rng.choice(string.ascii_lowercase).encode() + text[-1:]
        number, little = int(text[:_DIGITS]), rng.randint(1, _LITTLE)
        return b"%d" % (number - little if number > _LITTLE else number + little)  # within the limits of its type

    pattern = _SCRIPT_LITERAL if path.endswith((*_SCRIPTS, *_DATA)) else _GO_LITERAL if is_go else _LITERAL

    def rewritten(chosen: Callable[[bytes], object]) -> bytes:
        return b"\n".join(pattern.sub(other, line) if chosen(line) else line for line in source.split(b"\n"))

    def reworded(text: bytes, chosen: Callable[[bytes], object]) -> bytes:
        other_end = rb"\g<0>" + rng.choice(string.ascii_lowercase).encode()
        return b"\n".join(_LAST_WORD.sub(other_end, line) if chosen(line) else line for line in text.split(b"\n"))

    if is_go:
        return rewritten(lambda line: not _IMPORTS.search(line) and not _GO_IDLE.search(line))
    if path.endswith(_DATA):
        made = reworded(rewritten(lambda _: True), _EXPECTS.search)
        return made if made != source else reworded(source, lambda line: not line.startswith(b"#"))
    made = rewritten(_ASSERTS.search)
    return made if made != source else rewritten(lambda line: not _IMPORTS.search(line))


def tests_in(path: str, tests: Collection[str]) -> list[str]:
    """Return those of these tests (ids) that are in this file."""
    return [test for test in tests if test.startswith(f"{path}::")]


def name_of(test: str) -> str:
    """Return the name of a test's function, as `functions_of` has it."""
    return re.sub(r"\[.*", "", test.partition("::")[2], flags=re.DOTALL)


def parsed(source: bytes) -> tuple[bytes, ast.Module]:
    """Return the text as Python reads it, and its tree. The tree is empty if the text can't be read."""
    text = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        return text, syntax.parse(text.decode())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text, ast.Module([], [])


def functions_of(module: ast.Module) -> Mapping[str, Function]:
    """Return the functions of a test file by their names, those of classes as `Class::name`."""
    return dict(_functions_in(module, ""))


def _functions_in(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module or class by name, with those that its classes inherit from others beside them."""
    classes: dict[str, Mapping[str, Function]] = {}
    for node in tree.body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            bases = [classes.get(base.id, {}) for base in reversed(node.bases) if isinstance(base, ast.Name)]
            inherited = {name: function for base in bases for name, function in base.items()}
            classes[node.name] = {**inherited, **dict(_functions_in(node, ""))}
            yield from ((f"{prefix}{node.name}::{name}", function) for name, function in classes[node.name].items())


def _edits(function: Function, known: Container[str], lines: list[bytes], rng: random.Random) -> list[Edit]:
    """Edit the first comparison that is certain to be made, else the first assertion, else raise an error at the start.

    Later assertions stay as they are, so code that has all but some of them skipped passes.
    """
    if not any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in ast.walk(function)):
        unknown = [statement for statement in function.body if ast.dump(statement) not in known]
        for statements in (unknown, function.body):
            for change in (_other_value, _other_exception, _opposite):
                for statement in statements:
                    if edits := change(statement, lines, rng):
                        return edits
    wanted, got = rng.sample(range(100), 2)
    return [before(function.body[0], lines, f"raise AssertionError('{wanted} != {got}')".encode())]


def _other_value(statement: ast.stmt, lines: list[bytes], rng: random.Random) -> list[Edit]:
    """Give the side that is not computed of `assert a == b` or `self.assertEqual(a, b)` another value.

    Where that side is no literal, both may be of any size, and a runner would print both and how they differ. So the
    statement is no assertion.
    """
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[left, right, *_])) if name in EQUAL_METHODS:
            pass
        case _:
            return []
    computed, expected = (right, left) if _weight(left) < _weight(right) else (left, right)
    if wrong := _wrong(literal(expected), rng):
        return [replaced(expected, wrong.encode())]
    if isinstance(computed, ast.Starred):
        return []
    other = b"[%s, %d]" % (source_of(expected, lines), rng.randint(1, _LITTLE))
    compared = b"((%s) == %s)" % (source_of(computed, lines), other)
    return [replaced(statement, compared + b" or exec('raise AssertionError')")]


def _other_exception(statement: ast.stmt, _: list[bytes], rng: random.Random) -> list[Edit]:
    """Make `with raises(error):` or `self.assertRaises(error, …)` expect an exception that code hardly raises."""
    match statement:
        case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]) | ast.Expr(value=ast.Call() as call):
            pass
        case _:
            return []
    match call:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[error, *_]) if name in _RAISES:
            return [] if isinstance(error, ast.Starred) else [replaced(error, rng.choice(_EXCEPTIONS).encode())]
    return []


def _opposite(statement: ast.stmt, lines: list[bytes], rng: random.Random) -> list[Edit]:
    """Turn `assert a`, `self.assertTrue(a)` and their like into their opposites."""
    match statement:
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=operand) as test) if span(test)[1] == span(operand)[1]:
            return [Edit(span(test)[0], span(operand)[0], b"")]
        case ast.Assert(test=ast.Call() | ast.Name() | ast.Attribute() | ast.Subscript() as test):
            return _around(test, "not ", "")
        case ast.Assert(test=ast.Compare(left=left, ops=[_], comparators=[right]) as test):
            between = Edit(span(left)[1], span(right)[0], b"")
            other = _OTHER_OPERATOR.get(text_of(between, lines))
            return [replace(between, text=other)] if other else _around(test, "not (", ")")
        case ast.Assert(test=test):
            return _around(test, "not (", ")")
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) as method)) if name in _OPPOSITE:
            line, end = span(method)[1]
            return [Edit((line, end - len(name)), (line, end), _OPPOSITE[name].encode())]
    return []


def _weight(node: ast.expr) -> int:
    """Return how much of a side is computed: 0 for a literal, 2 where there is a call, else 1."""
    calls = any(isinstance(inner, ast.Call) for inner in ast.walk(node))
    return 2 if calls else int(literal(node) is NO_LITERAL)


def _wrong(value: object, rng: random.Random) -> str:
    """Return another literal of the value's type, since code may tell types apart; empty where none comes to mind."""
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


def _around(node: ast.expr, opening: str, closing: str) -> list[Edit]:
    start, end = span(node)
    return [Edit(start, start, opening.encode()), Edit(end, end, closing.encode())]
