"""A function's doctests as a test file of its own: what grades a function that no test of its project runs.

The docstring is in the file that the agent edits, so it decides nothing. The file has the examples as they were, each
with a comparison: `assert repr(EXAMPLE) == 'WHAT IT SHOWS'`.
"""

from __future__ import annotations

import ast
import doctest
import re

from slime_swe import syntax

_NAMES = "globals().update({{name: value for name, value in vars({module}).items() if not name.startswith('__')}})"
_DIRECTIVE = re.compile(r"#\s*doctest:")


def test_file(module: str, name: str, docstring: str) -> str | None:
    """The source of a test of `name` in this module; None where an example can't be compared by its `repr`: one with
    options, with `...` in what it shows, or that prints or raises; or where none shows anything."""
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
