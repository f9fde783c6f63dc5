"""Withhold the values that a test expects, and record what its code gives instead.

`assert f(1) == "one"` becomes `assert _record_value(7, (f(1)))`: the test goes on, fails at its end, and what `f(1)`
gave is in a file of the sandbox (`rewards.value_recorder`). The expected value is nowhere in the test, so only code
that is right can give it.

Withheld is one side of what is compared by `==`, by a method such as `assertEqual`, by `if f(1) != "one": raise …`, or
by a function of the module that does nothing else, such as `check(f(1), "one")`: the literal, else the smaller one.
So is whether something is asserted to be true or false, if the test asserts both: `assert f(1)` and `assert not f(2)`.
Names that stand for it are withheld too, if tests do nothing with them but compare: names that a test assigns a literal
to, constants of the module, and parameters and names in loops whose table is written out in the file
(`Tables`; the cases then have other names). What a literal is, is known. What else must be given there, and
what only comes near a literal (`approx`), the gold patch's own record shows.

Not withheld: what a test uses besides, or has from a fixture; what is compared in a longer function that the test
calls; and values in comments, docstrings and other tests.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from slime_swe.rewards.canonical import digest
from slime_swe.rewards.source_edits import (
    NO_LITERAL,
    Edit,
    Function,
    Place,
    Tables,
    after,
    before,
    literal,
    replaced,
    source_of,
    span,
)

EQUAL_METHODS = frozenset(
    "assertEqual assertEquals assertListEqual assertDictEqual assertTupleEqual assertSetEqual assertMultiLineEqual "
    "assertIs".split()
)
_EQUAL_FUNCTIONS = frozenset({"assert_equal", "assert_equals", "eq_"})
_NEAR_METHODS = frozenset({"assertAlmostEqual", "assertAlmostEquals", "assert_almost_equal", "assert_allclose"})
_COMPARING = EQUAL_METHODS | _EQUAL_FUNCTIONS | _NEAR_METHODS
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
    """A value that a test computes, and the one that it must equal. place: what is replaced by the record of it.
    negated: that is false where the two are equal."""

    place: ast.expr | ast.stmt
    computed: ast.expr
    expected: ast.expr
    digests: frozenset[str]
    negated: bool = False


@dataclass(frozen=True)
class Recorded:
    """The comparisons of a test, and the edits that record and withhold all of them."""

    comparisons: Sequence[Comparison] = ()
    edits: Sequence[Edit] = ()


NOTHING_RECORDED = Recorded()


def read_records(text: str) -> Records:
    found: dict[int, set[str]] = {}
    for number, given in _LINE.findall(text):
        found.setdefault(int(number), set()).add(given)
    return {number: frozenset(digests) for number, digests in found.items()}


def record_values(module: ast.Module, functions: Sequence[Function], lines: list[bytes], first: int) -> list[Recorded]:
    """Return the comparisons and the edits of each test of a module, the places numbered from `first`; nothing for one
    that compares with nothing that can be withheld, or is a generator."""
    tests = _tests(module, functions)
    values = _withheld(tests)
    found = []
    for test, names in zip(tests, values, strict=True):
        comparisons = sorted(test.comparisons(names), key=lambda comparison: _start(comparison.place))
        found.append(Recorded(comparisons, _edits(test, comparisons, names, lines, first)))
        first += len(comparisons)
    return found


def define_recorder(module: ast.Module, lines: list[bytes], path: str) -> Edit:
    """Define what `record_values` calls, in one line of a module. path: of the file that the records are written to."""
    source = sandbox_source("value_recorder.py")
    made = f"(lambda names: (exec({source!r}, names), (names['recorder']({path!r}), names['failure']))[1])({{}})"
    statement = next(statement for statement in module.body if not _comes_first(statement, module))
    return before(statement, lines, f"{_RECORD}, {_FAILURE} = {made}".encode())


# The text of a program that runs in sandboxes, behind that of `rewards.canonical`, which it uses.
@cache
def sandbox_source(name: str) -> str:
    """Return that text. name: of a file of this folder. Every grading needs it, so it is read from disk once."""
    folder = resources.files("slime_swe.rewards")
    return "".join((folder / file).read_text(encoding="utf-8") for file in ("canonical.py", name))


def _comes_first(statement: ast.stmt, module: ast.Module) -> bool:
    """Say whether a statement is a docstring, or an import from the future."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return statement is module.body[0] and ast.get_docstring(module, clean=False) is not None


@dataclass(frozen=True)
class _Test:
    """A test, what its module binds, and the names that stand for literals: its parameters, the names in its loops, and
    constants of the module. helpers: functions of the module that compare."""

    function: Function
    module_names: frozenset[str]
    parameters: Values
    constants: Values
    helpers: Mapping[str, _Helper]

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
        """The names that it reads and that may be withheld: parameters, and what is bound once and for all to plain
        data."""
        times = Counter(_bound(self.function))
        assigned = {
            node.targets[0].id: [node.value]
            for node in self.own
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
            if not _calls(node.value)
        }
        own = {name: values for name, values in {**self.parameters, **assigned}.items() if times[name] == 1}
        return {
            **own,
            **{name: values for name, values in self.constants.items() if name in self.read and not times[name]},
        }

    def comparisons(self, withheld: Values) -> Iterator[Comparison]:
        """Yield the comparisons whose values can be withheld. withheld: the names that need not be in the test."""
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in self.own):
            return
        for found in (*_equalities(self.own), *self._by_helpers(), *_truths(self.own)):
            left, right = found.sides
            constant = [_is_literal(side, withheld) or _is_near(side) for side in found.sides]
            if all(constant) or not (found.by_value or any(constant)):
                continue
            first = constant[0] if any(constant) else _amount(left) < _amount(right)
            expected, computed = (left, right) if first else (right, left)
            digests = _digests(expected, withheld) if found.exact else frozenset[str]()
            if "?" not in digests and self._not_left(expected) <= withheld.keys():
                yield Comparison(found.place, computed, expected, digests, found.negated)

    def _by_helpers(self) -> Iterator[_Equality]:
        for node in self.own:
            match node:
                case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=given, keywords=[])) if name in self.helpers:
                    sides = self.helpers[name].sides_of(given)
                    if sides and name not in self.bound and self.helpers[name].free.isdisjoint(self.bound):
                        yield _Equality(node, sides)

    def _not_left(self, expected: ast.expr) -> set[str]:
        """Return the names in an expected value that must be withheld too, since the test or its module binds them."""
        called = {id(node) for call in ast.walk(expected) if isinstance(call, ast.Call) for node in ast.walk(call.func)}
        names = {node.id for node in ast.walk(expected) if isinstance(node, ast.Name) and id(node) not in called}
        return names & (self.bound | self.module_names)


def _tests(module: ast.Module, functions: Sequence[Function]) -> list[_Test]:
    tables, times = Tables(module, functions), Counter(_bound(module, inner=False))
    helpers = {
        node.name: found
        for node in module.body
        if isinstance(node, ast.FunctionDef) and times[node.name] == 1 and node.name not in _COMPARING
        if (found := _helper(node))
    }
    plain = {
        node.targets[0].id: [node.value]
        for node in module.body
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        if not _calls(node.value)
    }
    everywhere = Counter(_read(module))
    read = Counter(name for function in functions for statement in function.body for name in _read(statement))
    rebound = {name for node in ast.walk(module) if isinstance(node, ast.Global) for name in node.names}
    constants = {
        name: values
        for name, values in plain.items()
        if times[name] == 1 and name not in rebound and everywhere[name] == read[name]
    }
    return [_Test(function, frozenset(times), tables.columns(function), constants, helpers) for function in functions]


def _withheld(tests: Sequence[_Test]) -> list[Values]:
    """Return the names of each test that nothing reads but what is withheld of it, and that no other test needs."""
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
        replaced(
            found.place, b"%s%s(%d, (%s))" % (b"not " * found.negated, _RECORD.encode(), number, _source(found, lines))
        )
        for number, found in enumerate(comparisons, first)
    ]
    edits += [replaced(node.msg, b"None") for node in test.own if isinstance(node, ast.Assert) and node.msg is not None]
    places = {id(found.place) for found in comparisons}
    edits += [
        replaced(node.body[0], b"pass") for node in test.own if isinstance(node, ast.If) and id(node.test) in places
    ]
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


@dataclass(frozen=True)
class _Equality:
    """Two sides that are compared. place: what may be replaced. by_value: and not by identity. exact: and not about."""

    place: ast.expr | ast.stmt
    sides: tuple[ast.expr, ast.expr]
    by_value: bool = True
    exact: bool = True
    negated: bool = False


@dataclass(frozen=True)
class _Helper:
    """A function that does nothing but compare. free: the names in it that are none of its parameters."""

    parameters: Sequence[str]
    sides: tuple[ast.expr, ast.expr]
    free: frozenset[str]

    def sides_of(self, given: Sequence[ast.expr]) -> tuple[ast.expr, ast.expr] | None:
        """Return what a call with these arguments compares; None where it can't be written in place of the call."""
        if len(given) != len(self.parameters) or any(isinstance(argument, ast.Starred) for argument in given):
            return None
        arguments = _Arguments(dict(zip(self.parameters, given, strict=True)))
        left, right = (arguments.visit(copy.deepcopy(side)) for side in self.sides)
        return left, right


class _Arguments(ast.NodeTransformer):
    """A transformer that puts arguments in the place of parameters. An argument stays the node that is in the file."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> Any:
        return self._given.get(node.id, node)


def _helper(function: ast.FunctionDef) -> _Helper | None:
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    found = list(_equalities(body)) if len(body) == 1 else []
    parameters = [argument.arg for argument in function.args.args]
    others = function.args.vararg, function.args.kwarg, *function.args.kwonlyargs, *function.args.posonlyargs
    if len(found) != 1 or function.decorator_list or any(others) or not (found[0].by_value and found[0].exact):
        return None
    if isinstance(body[0], ast.Assert) and found[0].place is not body[0].test:
        return None  # of several comparisons
    names = [name for side in found[0].sides for name in _read(side)]
    if any(isinstance(node, ast.Lambda | ast.comprehension) for side in found[0].sides for node in ast.walk(side)):
        return None
    return _Helper(parameters, found[0].sides, frozenset(names).difference(parameters))


def _equalities(own: Sequence[ast.AST]) -> Iterator[_Equality]:
    for node in own:
        match node:
            case ast.Assert(test=test):
                yield from _asserted(test)
            case ast.Expr(value=ast.Call(func=function, args=[left, right, *_])) if _named(function) in _COMPARING:
                if not any(isinstance(side, ast.Starred) for side in (left, right)):
                    yield _Equality(node, (left, right), exact=_named(function) not in _NEAR_METHODS)
            case ast.If(test=ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]), body=[end], orelse=[]):
                if _fails(end):
                    yield _Equality(
                        node.test, (left, right), exact=not (_is_near(left) or _is_near(right)), negated=True
                    )


def _asserted(test: ast.expr) -> Iterator[_Equality]:
    match test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as operator], comparators=[right]):
            exact = not (_is_near(left) or _is_near(right))
            yield _Equality(test, (left, right), isinstance(operator, ast.Eq), exact)
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from _asserted(value)


def _truths(own: Sequence[ast.AST]) -> list[_Equality]:
    """Return what a test asserts to be true or false; nothing if all of it is the same, which could be guessed."""
    found = [truth for node in own for truth in _asserted_truth(node)]
    if len({true for _, _, true in found}) < 2:
        return []
    truth_of = ast.Name("bool", ast.Load())
    return [_Equality(place, (ast.Call(truth_of, [given], []), ast.Constant(true))) for place, given, true in found]


def _asserted_truth(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr, bool]]:
    """Yield what may be replaced, what is judged there, and as what."""
    match node:
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call() | ast.Name() | ast.Attribute() as given)):
            yield node.test, given, False
        case ast.Assert(test=ast.Call() | ast.Name() | ast.Attribute() as given):
            yield given, given, True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertTrue" | "assertFalse" as name), args=[given, *_])):
            if not isinstance(given, ast.Starred):
                yield node, given, name == "assertTrue"


def _fails(statement: ast.stmt) -> bool:
    match statement:
        case ast.Raise():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="fail"))):
            return True
    return False


def _is_near(node: ast.expr) -> bool:
    """Say whether a node is equal to what comes near it."""
    return isinstance(node, ast.Call) and _named(node.func) == "approx"


def _named(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _source(found: Comparison, lines: list[bytes]) -> bytes:
    """Return what is computed, as the file has it, or as a helper's body says it of the arguments."""
    start, end = span(found.place)
    inside = hasattr(found.computed, "lineno") and start <= span(found.computed)[0] and span(found.computed)[1] <= end
    return source_of(found.computed, lines) if inside else ast.unparse(found.computed).encode()


def _is_literal(node: ast.expr, withheld: Values) -> bool:
    return _digests(node, withheld) != frozenset()


def _digests(node: ast.expr, withheld: Values) -> frozenset[str]:
    """Return the digests of the literals that a node stands for; none where one is no literal."""
    nodes = withheld.get(node.id, [node]) if isinstance(node, ast.Name) else [node]
    values = [literal(node) for node in nodes]
    return frozenset() if NO_LITERAL in values else frozenset(map(digest, values))


def _amount(node: ast.expr) -> tuple[bool, int]:
    """Return how much a node does: whether it calls what is not built in, and how many nodes it has."""
    return _calls(node), sum(1 for _ in ast.walk(node))


def _calls(node: ast.expr) -> bool:
    """Say whether anything is called but what Python has built in."""
    called = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    return any(not (isinstance(function, ast.Name) and hasattr(builtins, function.id)) for function in called)


def _read(tree: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _bound(tree: ast.AST, inner: bool = True) -> Iterator[str]:
    """Yield the names that are bound in a function or module, as often as they are. inner: or in functions in it."""
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
