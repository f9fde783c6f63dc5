"""Identifiers are the field's words (CONTRIBUTING.md, Names): none of these, which only this project would use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = "data_sources sandbox rollout rewards embedded recipes launch benchmarks src tests".split()
PRIVATE = frozenset(
    """
    nursery haunted lure disbelief told untold falsify falsified stranger strangers spares keeper burden teller glance
    lay story earns neighbour neighbours
    """.split()
)
# A docstring that begins so is no sentence: it leans on the name of what it stands in.
FRAGMENT = re.compile(r"(?:What|Whether|Of|Those|How|Which|That|Its|The same|None of)\b")
PHRASES = frozenset(
    """
    brings_tests Door _Door Flight _Flight Places Homes _meet binds given_back give_back set_aside remembered hopeless
    goes_on never_stops
    """.split()
)


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.Attribute(attr=name) | ast.Name(id=name):
                yield name


def words(identifier: str) -> set[str]:
    """`SparesOf_host` -> spares, of, host."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def test_no_identifier_is_in_a_private_vocabulary():
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for name in identifiers(ast.parse(path.read_text(encoding="utf-8")))
        if words(name) & PRIVATE or name in PHRASES
    }
    assert sorted(found) == []


def test_docstrings_are_sentences():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in set(FOLDERS) - {"benchmarks", "tests"}
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds) and FRAGMENT.match(ast.get_docstring(node) or "")
    ]
    assert found == [], "begin with a verb (Return, Read, …), or with a subject"
