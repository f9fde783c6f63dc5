"""Withhold the values that a test expects, and record what its code gives instead.

`assert f(1) == "one"` becomes `assert _record_value(7, (f(1)))`: the test goes on, fails at its end, and what `f(1)`
gave is in a file of the sandbox (`rewards.value_recorder`). The expected value is nowhere in the test, so only code
that is right can give it.

Withheld are literals that are compared by `==`, `is`, or a method such as `assertEqual`, and names that a test assigns
a literal to and does nothing with but compare. Not withheld: parameters of a test, since they name its cases; what is
compared in a function that the test calls; and values in comments, docstrings and other tests.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slime_swe.rewards.canonical import digest
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


@dataclass(frozen=True)
class Withheld:
    """The value that tests (ids) expect in one place. guessable: code may hit it by chance (`True`, `0`, `[]`)."""

    digest: str
    guessable: bool
    tests: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Comparison:
    """What a test computes, and the literal that it must equal. place: what is replaced by the record of it."""

    place: ast.expr | ast.stmt
    computed: ast.expr
    expected: object


def read_records(text: str) -> Records:
    found: dict[int, set[str]] = {}
    for number, given in _LINE.findall(text):
        found.setdefault(int(number), set()).add(given)
    return {number: frozenset(digests) for number, digests in found.items()}


def record_values(function: Function, lines: list[bytes], first: int) -> tuple[list[Edit], list[Withheld]]:
    """Edits that record and withhold every value of a test, the places numbered from `first`; none where the test
    compares with no literal, or is a generator."""
    own = list(_own_nodes(function))
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own):
        return [], []
    constants = _constants(function, own)
    comparisons = sorted(_comparisons(own, constants), key=lambda found: _start(found.place))
    if not comparisons:
        return [], []
    edits = [
        replaced(found.place, b"%s(%d, (%s))" % (_RECORD.encode(), number, source_of(found.computed, lines)))
        for number, found in enumerate(comparisons, first)
    ]
    edits += [replaced(node.msg, b"None") for node in own if isinstance(node, ast.Assert) and node.msg is not None]
    edits += [replaced(assign.value, b"None") for assign in constants.values()]
    edits += [replaced(node, _END) for node in own if isinstance(node, ast.Return)]
    edits.append(after(function.body[-1], lines, _END))
    return edits, [Withheld(digest(found.expected), _guessable(found.expected)) for found in comparisons]


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


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Those of a function's body, but for what is in functions and classes in it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _Scope):
            waiting += ast.iter_child_nodes(node)


def _comparisons(own: list[ast.AST], constants: Mapping[str, ast.Assign]) -> Iterator[Comparison]:
    for place, left, right in _equalities(own):
        sides = [(left, _expected(right, constants)), (right, _expected(left, constants))]
        known = [(computed, expected) for computed, expected in sides if expected is not NO_LITERAL]
        if len(known) == 1 and digest(known[0][1]) != "?":
            yield Comparison(place, *known[0])


def _equalities(own: list[ast.AST]) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr, ast.expr]]:
    """What may be replaced, and the two sides that are compared there."""
    for node in own:
        match node:
            case ast.Assert(test=test):
                yield from _asserted(test)
            case ast.Expr(value=ast.Call(func=function, args=[left, right, *_])) if _is_equality(function):
                if not any(isinstance(side, ast.Starred) for side in (left, right)):
                    yield node, left, right


def _asserted(test: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    match test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            yield test, left, right
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


def _expected(node: ast.expr, constants: Mapping[str, ast.Assign]) -> object:
    if isinstance(node, ast.Name) and node.id in constants:
        return literal(constants[node.id].value)
    return literal(node)


def _constants(function: Function, own: list[ast.AST]) -> dict[str, ast.Assign]:
    """The names that are assigned a literal once, and otherwise only compared."""
    assigned = {
        node.targets[0].id: node
        for node in own
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        if literal(node.value) is not NO_LITERAL
    }
    names = Counter(node.id for node in ast.walk(function) if isinstance(node, ast.Name))
    compared = Counter(
        node.id
        for _, left, right in _equalities(own)
        for node, other in ((left, right), (right, left))
        if isinstance(node, ast.Name) and literal(other) is NO_LITERAL
        if not (isinstance(other, ast.Name) and other.id in assigned)
    )
    declared = {name for node in own if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    return {
        name: assign
        for name, assign in assigned.items()
        if name not in declared and names[name] == compared[name] + 1 > 1
    }


def _start(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset


def _guessable(value: object) -> bool:
    return value in (None, 0, 1, -1) or (hasattr(value, "__len__") and not len(value))
