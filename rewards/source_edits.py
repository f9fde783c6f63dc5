"""Edits of Python source by the places of its syntax tree: what they leave alone stays as it is, byte for byte."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[int, int]  # line from 1, column in bytes
NO_LITERAL = object()


@dataclass(frozen=True)
class Edit:
    """The replacement of what is between two places by other text."""

    start: Place
    end: Place
    text: bytes


def apply_edits(lines: list[bytes], edits: Iterable[Edit]) -> list[bytes]:
    """Return the lines with these edits, which must not overlap."""
    changed = list(lines)
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        (first, start), (last, end) = edit.start, edit.end
        changed[first - 1 : last] = [changed[first - 1][:start] + edit.text + changed[last - 1][end:]]
    return changed


def span(node: ast.expr | ast.stmt) -> tuple[Place, Place]:
    assert node.end_lineno is not None and node.end_col_offset is not None, ast.dump(node)
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def replaced(node: ast.expr | ast.stmt, text: bytes) -> Edit:
    return Edit(*span(node), text)


def source_of(node: ast.expr, lines: list[bytes]) -> bytes:
    return text_of(replaced(node, b""), lines)


def text_of(edit: Edit, lines: list[bytes]) -> bytes:
    """Return the text that an edit replaces."""
    (first, start), (last, end) = edit.start, edit.end
    if first == last:
        return lines[first - 1][start:end]
    return b"\n".join([lines[first - 1][start:], *lines[first : last - 1], lines[last - 1][:end]])


def before(statement: ast.stmt, lines: list[bytes], code: bytes) -> Edit:
    """Put code before a statement, on a line of its own unless something precedes the statement on its line."""
    decorators = statement.decorator_list if isinstance(statement, Function | ast.ClassDef) else []
    line = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    column = len(lines[line - 1]) - len(lines[line - 1].lstrip()) if decorators else statement.col_offset
    return Edit((line, column), (line, column), code + _separator(lines[line - 1][:column]))


def after(statement: ast.stmt, lines: list[bytes], code: bytes) -> Edit:
    """Put code after a statement, in the same block."""
    start, end = span(statement)
    return Edit(end, end, _separator(lines[start[0] - 1][: start[1]]) + code)


def _separator(preceding: bytes) -> bytes:
    return b"; " if preceding.strip() else b"\n" + preceding


def literal(node: ast.expr) -> object:
    """Return the value of a literal; `NO_LITERAL` where the node is none."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NO_LITERAL


# The tables of a test: `@pytest.mark.parametrize("x, expected", [(1, "one"), (2, "two")])`, or the same in a loop, `for
# x, expected in [(1, "one"), (2, "two")]:`.
#
# A table may be written in the decorator or the loop, be a constant of the module, or a sum of both. That of a loop may
# also be assigned in the test.
Columns = Mapping[str, Sequence[ast.expr]]  # what each parameter is given, one after the other


@dataclass(frozen=True)
class _Table:
    """The table of one decorator or loop. constants: the names in the place of rows."""

    columns: Columns
    constants: Sequence[str]


class Tables:
    """The tables of some tests of a module, as far as they are literals that nothing else in the module reads."""

    def __init__(self, module: ast.Module, functions: Sequence[Function]) -> None:
        displays = _displays(module)
        found = {id(function): [*_tables(function, displays), *_loops(function, displays)] for function in functions}
        read = Counter(name for tables in found.values() for table in tables for name in table.constants)
        everywhere = Counter(
            node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        )
        self._tables = {
            function: [table for table in tables if all(everywhere[name] == read[name] for name in table.constants)]
            for function, tables in found.items()
        }

    def columns(self, function: Function) -> Columns:
        """Return the parameters of a test, and the names in its loops, whose values are all literals."""
        return {
            name: column
            for table in self._tables[id(function)]
            for name, column in table.columns.items()
            if all(literal(value) is not NO_LITERAL for value in column)
        }


def _displays(module: ast.Module) -> Mapping[str, ast.List | ast.Tuple]:
    """Return the module's names that are bound once, to a list or a tuple."""
    bound = Counter(
        node.id for node in ast.walk(module) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    )
    return {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name) and bound[target.id] == len(node.targets) == 1
    }


def _tables(function: Function, displays: Mapping[str, ast.List | ast.Tuple]) -> Iterator[_Table]:
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[named, given], keywords=keywords) if not any(
                keyword.arg in (None, "indirect") for keyword in keywords
            ):
                rows, constants = _rows(given, displays)
                if columns := _columns(literal(named), rows):
                    yield _Table(columns, constants)


def _loops(function: Function, displays: Mapping[str, ast.List | ast.Tuple]) -> Iterator[_Table]:
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    uses = Counter(node.id for node in names)
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    own = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple)
        if isinstance(node.targets[0], ast.Name) and uses[node.targets[0].id] == 1 + len(node.targets)
    }
    for node in ast.walk(function):
        match node:
            case ast.For(target=ast.Tuple(elts=targets), iter=given):
                rows, constants = _rows(given, {**{name: displays[name] for name in displays.keys() - bound}, **own})
                named = [target.id if isinstance(target, ast.Name) else "" for target in targets]
                if columns := _columns(named, rows):
                    yield _Table(columns, [name for name in constants if name not in own])


def _rows(node: ast.expr, displays: Mapping[str, ast.List | ast.Tuple]) -> tuple[list[ast.expr], list[str]]:
    """Return the rows of a table, none where they are not written out, and the constants that hold some."""
    match node:
        case ast.List(elts=rows) | ast.Tuple(elts=rows) if not any(isinstance(row, ast.Starred) for row in rows):
            return rows, []
        case ast.Name(id=name) if name in displays:
            return _rows(displays[name], displays)[0], [name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            (above, first), (below, second) = _rows(left, displays), _rows(right, displays)
            return (above + below if above and below else []), first + second
    return [], []


def _columns(named: object, rows: Sequence[ast.expr]) -> Columns:
    """Return the columns of a table by their parameters' names; none where a row is not written out."""
    if isinstance(named, str):
        names = [name for name in map(str.strip, named.split(",")) if name]
    elif isinstance(named, list | tuple):
        names = [str(name) for name in named]
    else:
        return {}
    alone = isinstance(named, str) and len(names) == 1
    table = [_cells(row, alone) for row in rows]
    if not table or any(len(cells) != len(names) for cells in table):
        return {}
    return {name: [cells[number] for cells in table] for number, name in enumerate(names)}


def _cells(row: ast.expr, alone: bool) -> Sequence[ast.expr]:
    """Return the values that a row gives. alone: to one parameter, so that the row is no list of values."""
    match row:
        case ast.Call(func=ast.Attribute(attr="param"), args=cells):
            return cells
        case ast.List(elts=cells) | ast.Tuple(elts=cells) if not alone:
            return cells
    return [row] if alone else []
