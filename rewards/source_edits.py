"""Edits of Python source by the places of its syntax tree: what they leave alone stays as it is, byte for byte."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[int, int]  # line from 1, column in bytes
NO_LITERAL = object()


@dataclass(frozen=True)
class Edit:
    """Replace what is between these places by other text."""

    start: Place
    end: Place
    text: bytes


def apply_edits(lines: list[bytes], edits: Iterable[Edit]) -> list[bytes]:
    """The lines with these edits, which must not overlap."""
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
    """What is replaced."""
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
    """The value of a literal; `NO_LITERAL` where it is none."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NO_LITERAL
