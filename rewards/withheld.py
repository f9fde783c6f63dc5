"""Withhold the values that a test expects, and record what its code gives instead.

`assert f(1) == "one"` becomes `assert _record_value(7, (f(1)))`: the test goes on, fails at its end, and what `f(1)`
gave is in a file of the sandbox (`rewards.value_recorder`). The expected value is nowhere in the test, so only code
that is right can give it.

Withheld is one side of what is compared by `==`, or by a method such as `assertEqual`: the literal, else the smaller
one. Names that stand for it are withheld too, if the test does nothing with them but compare: names that it assigns a
literal to, and parameters whose table is written out in the file (`rewards.parameters`; the cases then have other
names). What a literal is, is known. What else must be given there, the gold patch's own record shows.

Not withheld: what a test uses besides, or has from a fixture, from a loop or from its module; what is compared in a
function that the test calls; and values in comments, docstrings and other tests.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from slime_swe.rewards.canonical import digest
from slime_swe.rewards.parameters import Tables
from slime_swe.rewards.sandbox_source import sandbox_source
from slime_swe.rewards.source_edits import (
    NO_LITERAL,
    Edit,
    Function,
    Place,
    after,
    before,
    literal,
    replaced,
    source_of,
)

EQUAL_METHODS = frozenset(
    "assertEqual assertEquals assertListEqual assertDictEqual assertTupleEqual assertSetEqual assertMultiLineEqual "
    "assertIs".split()
)
_EQUAL_FUNCTIONS = frozenset({"assert_equal", "assert_equals", "eq_"})
_RECORD = "_record_value"
_FAILURE = "_withheld_failure"
_END = f"raise {_FAILURE}()".encode()
_LINE = re.compile(r"^(\d{1,9}) (\S+)$", re.MULTILINE)
_Scope = Function | ast.ClassDef | ast.Lambda

Records = Mapping[int, frozenset[str]]  # the digests of what each place gave
Values = Mapping[str, Sequence[ast.expr]]  # what a name may stand for

GUESSABLE = frozenset(map(digest, (None, 0, 1, -1, "", b"", (), [], {}, set())))  # and so of what is equal to them


@dataclass(frozen=True)
class Withheld:
    """A place in tests (ids) that compares. digests: of the values that are expected there, if they are literals."""

    tests: frozenset[str]
    digests: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Comparison:
    """What a test computes, and what it must equal. place: what is replaced by the record of it."""

    place: ast.expr | ast.stmt
    computed: ast.expr
    expected: ast.expr
    digests: frozenset[str]


@dataclass(frozen=True)
class Recorded:
    """What a test compares, and edits that record and withhold all of it."""

    comparisons: Sequence[Comparison] = ()
    edits: Sequence[Edit] = ()


NOTHING_RECORDED = Recorded()


def read_records(text: str) -> Records:
    found: dict[int, set[str]] = {}
    for number, given in _LINE.findall(text):
        found.setdefault(int(number), set()).add(given)
    return {number: frozenset(digests) for number, digests in found.items()}


def record_values(module: ast.Module, functions: Sequence[Function], lines: list[bytes], first: int) -> list[Recorded]:
    """For each test of a module, the places numbered from `first`. Nothing for one that compares with nothing that can
    be withheld, or is a generator."""
    tests = _tests(module, functions)
    values = _withheld(tests)
    found = []
    for test, names in zip(tests, values, strict=True):
        comparisons = sorted(test.comparisons(names), key=lambda comparison: _start(comparison.place))
        found.append(Recorded(comparisons, _edits(test, comparisons, names, lines, first)))
        first += len(comparisons)
    return found


def define_recorder(module: ast.Module, lines: list[bytes], path: str) -> Edit:
    """What `record_values` calls, as one line of a module. path: of the file that the records are written to."""
    source = sandbox_source("value_recorder.py")
    made = f"(lambda names: (exec({source!r}, names), (names['recorder']({path!r}), names['failure']))[1])({{}})"
    statement = next(statement for statement in module.body if not _comes_first(statement, module))
    return before(statement, lines, f"{_RECORD}, {_FAILURE} = {made}".encode())


def _comes_first(statement: ast.stmt, module: ast.Module) -> bool:
    """A docstring, or an import from the future."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return statement is module.body[0] and ast.get_docstring(module, clean=False) is not None


@dataclass(frozen=True)
class _Test:
    """A test, what its module binds, and its parameters that stand for literals."""

    function: Function
    module_names: frozenset[str]
    parameters: Values

    @cached_property
    def own(self) -> Sequence[ast.AST]:
        """The nodes of its body, but for what is in functions and classes in it."""
        return list(_own_nodes(self.function))

    @cached_property
    def bound(self) -> frozenset[str]:
        return frozenset(_bound(self.function))

    @cached_property
    def read(self) -> Counter[str]:
        return Counter(name for statement in self.function.body for name in _read(statement))

    @cached_property
    def values(self) -> Values:
        """What may be withheld of its names: parameters, and what is bound once and for all to plain data."""
        times = Counter(_bound(self.function))
        assigned = {
            node.targets[0].id: [node.value]
            for node in self.own
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
            if not _calls(node.value)
        }
        return {name: values for name, values in {**self.parameters, **assigned}.items() if times[name] == 1}

    def comparisons(self, withheld: Values) -> Iterator[Comparison]:
        """withheld: the names that need not be in the test."""
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in self.own):
            return
        for place, left, right, by_value in _equalities(self.own):
            constant = [_is_literal(side, withheld) for side in (left, right)]
            if all(constant) or not (by_value or any(constant)):
                continue
            first = constant[0] if any(constant) else _amount(left) < _amount(right)
            expected, computed = (left, right) if first else (right, left)
            digests = _digests(expected, withheld)
            if "?" not in digests and self._not_left(expected) <= withheld.keys():
                yield Comparison(place, computed, expected, digests)

    def _not_left(self, expected: ast.expr) -> set[str]:
        """The names that it must not find in the file."""
        called = {id(node) for call in ast.walk(expected) if isinstance(call, ast.Call) for node in ast.walk(call.func)}
        names = {node.id for node in ast.walk(expected) if isinstance(node, ast.Name) and id(node) not in called}
        return names & (self.bound | self.module_names)


def _tests(module: ast.Module, functions: Sequence[Function]) -> list[_Test]:
    tables, names = Tables(module, functions), frozenset(_bound(module, inner=False))
    return [_Test(function, names, tables.columns(function)) for function in functions]


def _withheld(tests: Sequence[_Test]) -> list[Values]:
    """The names of each test that nothing reads but what is withheld of it, and that no other test needs."""
    found = [test.values for test in tests]
    while True:
        kept: list[Values] = []
        for test, values in zip(tests, found, strict=True):
            unread = Counter(name for comparison in test.comparisons(values) for name in _read(comparison.expected))
            kept.append({name: nodes for name, nodes in values.items() if 0 < unread[name] == test.read[name]})
        needed = {
            id(node)
            for test, values in zip(tests, kept, strict=True)
            for name, nodes in test.values.items()
            if name not in values
            for node in nodes
        }
        kept = [{name: nodes for name, nodes in values.items() if needed.isdisjoint(map(id, nodes))} for values in kept]
        if kept == found:
            return found
        found = kept


def _edits(
    test: _Test, comparisons: Sequence[Comparison], withheld: Values, lines: list[bytes], first: int
) -> list[Edit]:
    if not comparisons:
        return []
    edits = [
        replaced(found.place, b"%s(%d, (%s))" % (_RECORD.encode(), number, source_of(found.computed, lines)))
        for number, found in enumerate(comparisons, first)
    ]
    edits += [replaced(node.msg, b"None") for node in test.own if isinstance(node, ast.Assert) and node.msg is not None]
    edits += [replaced(node, b"None") for nodes in withheld.values() for node in nodes]
    edits += [replaced(node, _END) for node in test.own if isinstance(node, ast.Return)]
    return [*edits, after(test.function.body[-1], lines, _END)]


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _Scope):
            waiting += ast.iter_child_nodes(node)


def _equalities(own: Sequence[ast.AST]) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr, ast.expr, bool]]:
    """What may be replaced, the two sides that are compared there, and whether by value."""
    for node in own:
        match node:
            case ast.Assert(test=test):
                yield from _asserted(test)
            case ast.Expr(value=ast.Call(func=function, args=[left, right, *_])) if _is_equality(function):
                if not any(isinstance(side, ast.Starred) for side in (left, right)):
                    yield node, left, right, True


def _asserted(test: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, ast.expr, bool]]:
    match test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as operator], comparators=[right]):
            yield test, left, right, isinstance(operator, ast.Eq)
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from _asserted(value)


def _is_equality(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(attr=name):
            return name in EQUAL_METHODS
        case ast.Name(id=name):
            return name in _EQUAL_FUNCTIONS
    return False


def _is_literal(node: ast.expr, withheld: Values) -> bool:
    return _digests(node, withheld) != frozenset()


def _digests(node: ast.expr, withheld: Values) -> frozenset[str]:
    """Of the literals that a node stands for; none where one is no literal."""
    nodes = withheld.get(node.id, [node]) if isinstance(node, ast.Name) else [node]
    values = [literal(node) for node in nodes]
    return frozenset() if NO_LITERAL in values else frozenset(map(digest, values))


def _amount(node: ast.expr) -> tuple[bool, int]:
    """How much is done there."""
    return _calls(node), sum(1 for _ in ast.walk(node))


def _calls(node: ast.expr) -> bool:
    """Whether anything is called but what Python has built in."""
    called = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    return any(not (isinstance(function, ast.Name) and hasattr(builtins, function.id)) for function in called)


def _read(tree: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _bound(tree: ast.AST, inner: bool = True) -> Iterator[str]:
    """The names that are bound in a function or module, as often as they are. inner: or in functions in it."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names * 2
        if inner or not isinstance(node, _Scope):
            yield from _bound(node, inner)


def _start(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset
