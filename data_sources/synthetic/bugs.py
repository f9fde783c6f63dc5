"""Bug injection: every single mutation of a function's source, by bug class, found on its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

from slime_swe import syntax

TRAINED_CLASSES = (
    "operator",
    "off_by_one",
    "wrong_variable",
    "wrong_constant",
    "dropped_guard",
    "swapped_arguments",
    "wrong_default",
    "missing_return",
)
UNSEEN_CLASSES = ("wrong_call", "negated_condition", "wrong_update")

_OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//"}
_UPDATES = {ast.Add: "-=", ast.Sub: "+=", ast.Mult: "+="}
_COMPARISONS = {ast.Gt: "<", ast.Lt: ">", ast.GtE: "<=", ast.LtE: ">=", ast.Eq: "!=", ast.NotEq: "=="}
_BOUNDARIES = {ast.Gt: ">=", ast.Lt: "<=", ast.GtE: ">", ast.LtE: "<"}
_CALLS = {"max": "min", "min": "max", "sum": "len", "len": "sum", "upper": "lower", "sorted": "list"}
_SWAPPABLE = (ast.Sub, ast.FloorDiv, ast.Mod)

Edit = tuple[int, int, str]  # what `source[start:end]` becomes
Slip = tuple[str, Edit]  # of a bug class


@dataclass(frozen=True)
class Mutation:
    """One wrong version of a function: its bug class and its whole source."""

    bug_class: str
    source: str


def mutations(source: str) -> list[Mutation]:
    """Return every mutation of one function, in source order, without repeats."""
    function = _function(source)
    found = _programs(source, _slips(function, _Editor(source)))
    return [Mutation(bug_class, mutant) for mutant, (bug_class, _) in found.items()]


def corruptions(source: str) -> dict[str, Edit]:
    """Map programs to edits: every exchange of one name, number or operator for another of its kind, likely bug or not.

    A superset of most trained classes, for demonstrations. A model that has repaired a place in many ways learns what
    is right there, and not only the bugs that were shown.
    """
    function, editor = _function(source), _Editor(source)
    variables, fixed = _variables(function), _loop_names(function)
    nodes = (node for statement in function.body[1:] for node in ast.walk(statement))
    edits = (("corruption", edit) for node in nodes for edit in _exchanges(node, editor, variables, fixed))
    return {mutant: edit for mutant, (_, edit) in _programs(source, edits).items()}


def edited(source: str, edits: Iterable[Edit]) -> str:
    """Apply edits that don't overlap to the source."""
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _function(source: str) -> ast.FunctionDef:
    function = syntax.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef), source
    return function


def _programs(source: str, slips: Iterable[Slip]) -> dict[str, Slip]:
    """Return the programs that single slips make, without repeats; to drop a block's only statement makes none."""
    found: dict[str, Slip] = {}
    for slip in slips:
        mutant = edited(source, [slip[1]])
        with suppress(SyntaxError):
            syntax.parse(mutant)
            found.setdefault(mutant, slip)
    found.pop(source, None)
    return found


def _exchanges(node: ast.AST, editor: _Editor, variables: list[str], fixed: set[int]) -> Iterator[Edit]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in variables and id(node) not in fixed:
        yield from (editor.put(node, other) for other in variables)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield from (editor.put(node, str(value)) for value in (0, 1, 2, 3, 5, 10, node.value + 1, node.value * 2))
    elif isinstance(node, ast.BinOp):
        yield from (editor.between(node.left, node.right, sign) for sign in ("+", "-", "*", "//", "%"))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        right = node.comparators[0]
        yield from (editor.between(node.left, right, sign) for sign in ("<", ">", "<=", ">=", "==", "!="))


class _Editor:
    """Edits of a source that replace the text of a syntax node and keep everything around it as it is."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end

    def text(self, node: ast.AST) -> str:
        return self.source[slice(*self.span(node))]

    def put(self, node: ast.AST, text: str) -> Edit:
        return *self.span(node), text

    def between(self, left: ast.AST, right: ast.AST, text: str) -> Edit:
        """Replace what stands between two nodes: an operator."""
        return self.span(left)[1], self.span(right)[0], f" {text} "

    def swap(self, left: ast.AST, right: ast.AST) -> Edit:
        (start, middle), (other, end) = self.span(left), self.span(right)
        return start, end, self.source[other:end] + self.source[middle:other] + self.source[start:middle]

    def without_lines(self, node: ast.stmt) -> Edit:
        assert node.end_lineno is not None
        return self._starts[node.lineno - 1], self._starts[node.end_lineno], ""


def _slips(function: ast.FunctionDef, editor: _Editor) -> Iterator[Slip]:
    variables = _variables(function)
    for default in function.args.defaults:
        yield from _constant(default, editor, "wrong_default", "wrong_default")
    fixed = _loop_names(function)
    for statement in function.body[1:]:
        for node in ast.walk(statement):
            yield from _operator(node, editor)
            yield from _constant(node, editor, "wrong_constant", "off_by_one")
            yield from _statement(node, editor)
            yield from _call(node, editor)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in fixed:
                yield from _variable(node, editor, variables)


def _loop_names(function: ast.FunctionDef) -> set[int]:
    """Return names (`id` of the node) never exchanged: a loop over a list that its own body fills would never end."""
    loops = {id(node.iter) for node in ast.walk(function) if isinstance(node, ast.For)}
    owners = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    return loops | owners


def _variables(function: ast.FunctionDef) -> list[str]:
    """Return the names bound in the function, arguments first."""
    names = [argument.arg for argument in function.args.args]
    stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return list(dict.fromkeys(names + [n.id for n in sorted(stores, key=lambda n: (n.lineno, n.col_offset))]))


def _operator(node: ast.AST, editor: _Editor) -> Iterator[Slip]:
    if isinstance(node, ast.BinOp):
        if type(node.op) in _OPERATORS:
            yield "operator", editor.between(node.left, node.right, _OPERATORS[type(node.op)])
        if isinstance(node.op, _SWAPPABLE) and isinstance(node.left, ast.Name) and isinstance(node.right, ast.Name):
            yield "swapped_arguments", editor.swap(node.left, node.right)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        operator, right = type(node.ops[0]), node.comparators[0]
        if operator in _COMPARISONS:
            yield "operator", editor.between(node.left, right, _COMPARISONS[operator])
        if operator in _BOUNDARIES:
            yield "off_by_one", editor.between(node.left, right, _BOUNDARIES[operator])
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            yield "negated_condition", editor.between(node.left, right, "not in" if operator is ast.In else "in")
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        left, right = node.values
        yield "operator", editor.between(left, right, "or" if isinstance(node.op, ast.And) else "and")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negated_condition", editor.put(node, editor.text(node.operand))


def _constant(node: ast.AST, editor: _Editor, far: str, near: str) -> Iterator[Slip]:
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return
    value = node.value
    yield near, editor.put(node, str(value + 1))
    if value > 1:
        yield near, editor.put(node, str(value - 1))
    if value >= 10:
        yield far, editor.put(node, str(value * 10))
        yield far, editor.put(node, str(value // 10))


def _statement(node: ast.AST, editor: _Editor) -> Iterator[Slip]:
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return | ast.Continue):
        yield "dropped_guard", editor.without_lines(node)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "missing_return", editor.put(node, editor.text(node.value))
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value == 0:
        yield "wrong_constant", editor.put(node.value, "1")
    elif isinstance(node, ast.AugAssign):
        target, value = editor.text(node.target), editor.text(node.value)
        yield "wrong_update", editor.put(node, f"{target} = {value}")
        if type(node.op) in _UPDATES:
            yield "operator", editor.put(node, f"{target} {_UPDATES[type(node.op)]} {value}")


def _call(node: ast.AST, editor: _Editor) -> Iterator[Slip]:
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        yield "wrong_call", editor.put(node.func, _CALLS[node.func.id])
    elif isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS:
        yield "wrong_call", editor.put(node.func, f"{editor.text(node.func.value)}.{_CALLS[node.func.attr]}")
    if len(node.args) >= 2:
        yield "swapped_arguments", editor.swap(node.args[0], node.args[1])


def _variable(node: ast.Name, editor: _Editor, variables: list[str]) -> Iterator[Slip]:
    """Yield the names that stand next to the right one in order of binding: the slips that people make."""
    if node.id in variables:
        at = variables.index(node.id)
        for other in (at - 1, at + 1):
            if 0 <= other < len(variables):
                yield "wrong_variable", editor.put(node, variables[other])
