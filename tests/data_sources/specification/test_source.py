"""Removal of bodies: what stays is the same byte for byte, on the code of the standard library."""

from __future__ import annotations

import ast
import sysconfig
from itertools import accumulate
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from slime_swe.data_sources.specification.source import STUB, Source, UnreadableError

STANDARD = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
EXAMPLE = '''\
import os  # kept


def first(a, *, b: int = 2) -> int:  # why
    """Doc of first."""
    # a comment of the body
    if a:
        return b
    return a
    # and the last one

# of second
@staticmethod
def second():
    # nothing but a comment
    return 1


class Third:
    "Doc."; kept = 1

    def one(self): return 1

    def two(self):
        r"""Doc."""; x = 1
        return x

    @property
    def three(self):
        return 3

    @three.setter
    def three(self, value):
        pass'''
REMOVED = '''\
import os  # kept


def first(a, *, b: int = 2) -> int:  # why
    """Doc of first."""
    raise NotImplementedError

# of second
@staticmethod
def second():
    raise NotImplementedError


class Third:
    "Doc."; kept = 1

    def one(self): raise NotImplementedError

    def two(self):
        r"""Doc."""
        raise NotImplementedError

    @property
    def three(self):
        raise NotImplementedError

    @three.setter
    def three(self, value):
        raise NotImplementedError'''


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n# end\n"])
def test_signatures_decorators_and_docstrings_stay(newline, end):
    text, after = (part.replace("\n", newline) + end.replace("\n", newline) for part in (EXAMPLE, REMOVED))
    source = Source(text)
    assert source.without(["first", "second", "Third"]) == after
    assert source.without([]) == text
    with pytest.raises(KeyError, match="fourth"):
        source.without(["first", "fourth"])


def test_definitions_say_what_there_is():
    found = {definition.name: definition for definition in Source(EXAMPLE).definitions()}
    assert list(found) == ["first", "second", "Third", "Third.one", "Third.two"]  # a name given twice is left out
    first = found["first"]
    assert (first.lines, first.docstring, first.body_lines) == ((4, 9), "Doc of first.", 3)
    assert first.head == 'def first(a, *, b: int = 2) -> int:  # why\n    """Doc of first."""\n'
    assert found["second"].head.startswith("@staticmethod\ndef second():\n")
    trivial = Source(
        "def f():\n    '''Doc.'''\ndef g():\n    raise NotImplementedError('x')\ndef h(): ...\ndef i(): return 1\n"
    )
    assert [definition.trivial for definition in trivial.definitions()] == [True, True, True, False]


def test_lines_are_those_that_python_counts():
    (found,) = Source("x = 1\n\x0c\ndef f():\n    '''Doc.'''\n    return '\u2028'\n").definitions()
    assert found.head == "def f():\n    '''Doc.'''\n"


@pytest.mark.parametrize("text", ["def f(:\n", "x = '\0'\n", pytest.param("(" * 5000, id="deep")])
def test_what_is_no_python_is_refused(text):
    with pytest.raises(UnreadableError):
        Source(text)


def nodes_of(tree, prefix=""):
    """Name -> its nodes, found without the code under test."""
    found = {}
    for node in tree.body:
        name = f"{prefix}{getattr(node, 'name', '')}"
        if isinstance(node, ast.ClassDef):
            for inner, nodes in nodes_of(node, f"{name}.").items():
                found.setdefault(inner, []).extend(nodes)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(name, []).append(node)
    return found


def allowed(node, lines, starts):
    """Where bytes may change: behind the signature or the docstring, up to the end of the body and the comments that
    are indented behind it."""
    first = node.body[0]
    documented = ast.get_docstring(node, clean=False) is not None
    begin = starts[first.end_lineno - 1] + first.end_col_offset if documented else starts[node.lineno - 1]
    end = node.end_lineno
    while end < len(lines) and (not lines[end].strip() or lines[end].lstrip().startswith(b"#")):
        end += 1
    return begin, starts[end]


def check_files(paths, every):
    checked = 0
    for path in paths:
        try:
            source = Source(path.read_bytes().decode())
        except (UnreadableError, UnicodeDecodeError):
            continue
        before, lines = source.text.encode(), source.text.encode().splitlines(keepends=True)
        starts = [0, *accumulate(map(len, lines))]
        assert source.without([]) == source.text
        single = {name: nodes[0] for name, nodes in nodes_of(ast.parse(source.text)).items() if len(nodes) == 1}
        for name, node in single.items():
            after = source.without([name]).encode()
            begin, end = allowed(node, lines, starts)
            assert after.startswith(before[:begin]) and after.endswith(before[end:]), name
            assert STUB.encode() in after[begin : len(after) - len(before) + end]
            checked += 1
            if checked % every == 0:  # to parse takes longest
                (left,) = nodes_of(ast.parse(after))[name]
                assert ast.unparse(left.body[-1]).startswith("raise NotImplementedError") and len(left.body) <= 2
                assert ast.get_docstring(left) == ast.get_docstring(node)
                assert ast.unparse(left.args) == ast.unparse(node.args)
    return checked


def test_the_rest_of_the_standard_librarys_functions_stays_byte_for_byte():
    assert check_files(STANDARD[:6], every=20) > 50


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.extended(
    "tests/data_sources/specification/test_source.py::test_the_rest_of_the_standard_librarys_functions_stays_byte_for_byte"
)
def test_the_rest_of_thousands_of_functions_stays_byte_for_byte():
    assert check_files(STANDARD, every=50) > 3000
