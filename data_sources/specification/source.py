"""Remove the bodies of functions from Python source by libcst: signatures, decorators and docstrings stay, and so does
all else, byte for byte.

The same operation serves every size: a function, a class (the bodies of its methods), a whole module (all its bodies).
"""

from __future__ import annotations

import ast
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from slime_swe import syntax

STUB = "raise NotImplementedError"


class UnreadableError(Exception):
    """The source is no Python that libcst can read."""


@dataclass(frozen=True)
class Definition:
    """A function, method or class of a module. name: `function`, `Class`, `Class.method`. lines: the first, with its
    decorators, and the last. head: its text down to the end of the docstring, without the rest. body_lines: how many
    lines its body has, without the docstring. trivial: the body does nothing that could be asked for."""

    name: str
    lines: tuple[int, int]
    head: str
    docstring: str
    body_lines: int
    is_class: bool = False
    trivial: bool = False


def lines_of(text: str) -> list[str]:
    """Split a text into lines with their ends, as Python counts them: a form feed ends none."""
    return io.StringIO(text, newline="").readlines()


class Source:
    """A module's source, read once."""

    def __init__(self, text: str) -> None:
        """Parse the text. Raises `UnreadableError`."""
        self.text = text
        self._end = (
            "" if text.endswith("\n") else "\r\n" if "\r\n" in text else "\n"
        )  # libcst leaves it out of the last statement alone
        try:
            self._tree = syntax.parse(text)
            self._module = cst.parse_module(text + self._end)
        except (SyntaxError, ValueError, RecursionError, MemoryError, cst.ParserSyntaxError) as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from error
        # To write a module takes as long as it is large: so each statement is written once, and again if it changes.
        self._written = [self._module.code_for_node(statement) for statement in self._module.body]
        body = "".join(self._written)
        self._head, self._found, self._tail = (text + self._end).partition(body) if body else ("", "", "")
        if self._found != body:
            raise UnreadableError("it does not come back as it was read")

    def definitions(self) -> list[Definition]:
        """Return the definitions at the module's level and in classes there, in order, whose names are given once."""
        found = list(_definitions(self._tree, "", lines_of(self.text)))
        names = [definition.name for definition in found]
        return [definition for definition in found if names.count(definition.name) == 1]

    def without(self, names: Collection[str]) -> str:
        """Return the text without the bodies of these definitions; of a class, of all its methods. Every definition of
        a name counts, such as a property's getter and setter. Raises `KeyError` for a name that is not there."""
        missing, chosen = set(names), frozenset(names)
        after = _removed(self._module.body, "", chosen, missing, False)
        if missing:
            raise KeyError(min(missing))
        pairs = zip(self._module.body, after, self._written, strict=True)
        written = [known if old is new else self._module.code_for_node(new) for old, new, known in pairs]
        text = "".join([self._head, *written, self._tail])
        return text[: len(text) - len(self._end)]


def _removed(
    body: Collection[cst.BaseStatement | cst.BaseSmallStatement],
    prefix: str,
    names: frozenset[str],
    missing: set[str],
    inside: bool,
) -> list[cst.BaseStatement | cst.BaseSmallStatement]:
    """Remove the bodies of these names. inside: of something whose bodies are all removed."""
    changed: list[cst.BaseStatement | cst.BaseSmallStatement] = []
    for statement in body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            name = f"{prefix}{statement.name.value}"
            chosen = inside or name in names
            if name in names:
                missing.discard(name)
            if isinstance(statement, cst.ClassDef):
                block = _removed(statement.body.body, f"{name}.", names, missing, chosen)
                if any(old is not new for old, new in zip(statement.body.body, block, strict=True)):
                    statement = statement.with_changes(body=statement.body.with_changes(body=block))
            elif chosen:
                statement = statement.with_changes(body=_stubbed(statement.body))
        changed.append(statement)
    return changed


def _stubbed(suite: cst.BaseSuite) -> cst.BaseSuite:
    stub = cst.parse_statement(STUB).with_changes(leading_lines=[])
    assert isinstance(stub, cst.SimpleStatementLine)
    if not isinstance(suite, cst.IndentedBlock):
        return suite.with_changes(body=stub.body)
    first = suite.body[0]
    if not _is_docstring(first):
        return suite.with_changes(body=[stub], footer=[])
    assert isinstance(first, cst.SimpleStatementLine)
    docstring = first if len(first.body) == 1 else first.with_changes(body=[_last(first.body[0])])
    return suite.with_changes(body=[docstring, stub], footer=[])


def _last(statement: cst.BaseSmallStatement) -> cst.BaseSmallStatement:
    return statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)


def _is_docstring(statement: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Expr):
        return False
    value = statement.body[0].value
    return isinstance(value, cst.SimpleString | cst.ConcatenatedString) and isinstance(value.evaluated_value, str)


def _definitions(node: ast.Module | ast.ClassDef, prefix: str, lines: list[str]) -> Iterator[Definition]:
    for child in node.body:
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        name, docstring = f"{prefix}{child.name}", ast.get_docstring(child)
        body = child.body if docstring is None else child.body[1:]
        first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
        # The text ends before the first statement of the body, or behind the docstring.
        last = child.body[0].end_lineno if docstring is not None else child.body[0].lineno - 1
        is_class = isinstance(child, ast.ClassDef)
        yield Definition(
            name,
            (first, child.end_lineno or first),
            "".join(lines[first - 1 : max(last or first, child.lineno)]),
            docstring or "",
            sum((statement.end_lineno or 0) - statement.lineno + 1 for statement in body),
            is_class,
            not is_class and all(map(_does_nothing, body)),
        )
        if isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{name}.", lines)


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return "NotImplementedError" in ast.dump(statement)
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
