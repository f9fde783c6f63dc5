"""What a program's text says of it: whether it is Python, which attempts it has, what it assigns and never reads, and
what it uses beyond what it may."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Iterator
from typing import Any

ATTEMPTS = ("transform", "transform2")
MODULES = tuple(
    """
    bisect collections copy dataclasses enum fractions functools heapq itertools math operator random re string typing
    """.split()
)
_BUILTINS = frozenset(
    "__import__ breakpoint compile eval exec exit globals input locals open quit vars __builtins__ __loader__".split()
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def examine(source: str, modules: Collection[str] = MODULES, functions: Collection[str] = ()) -> dict[str, Any]:
    """Return `attempts`, `unused` and `outside`, each a list of names.

    modules: those that may be imported. functions: those that may be called by name, beside what the program itself
    defines; none for all. Raises what the compiler does where it is no Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
        compile(tree, "solution.py", "exec")
    return {
        "attempts": [name for name in ATTEMPTS if name in _defined(tree)],
        "unused": sorted(set(_unused(tree))),
        "outside": sorted({*_imports(tree, modules), *_names(tree), *_calls(tree, functions)}),
    }


def _defined(tree: ast.Module) -> set[str]:
    """Return the names that the program binds at its top, by `def` or by `=`."""
    found = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return found | {target.id for target in assigned if isinstance(target, ast.Name)}


def _unused(tree: ast.Module) -> Iterator[str]:
    """Yield local variables that are assigned by `=` or `:=` and never read, but for names that begin with `_`."""
    for function in ast.walk(tree):
        if isinstance(function, _FUNCTIONS):
            read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _is_read(node)}
            yield from (name for name in _assigned(function) if name not in read and not name.startswith("_"))


def _is_read(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Store)


def _assigned(function: ast.AST) -> set[str]:
    """Return the variables that are assigned in the function itself, not in functions and classes inside of it."""
    found: set[str] = set()
    outer: set[str] = set()
    pending = [*ast.iter_child_nodes(function)]
    while pending:
        node = pending.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            outer |= {*node.names}
    return found - outer


def _imports(tree: ast.Module, modules: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{'.' * node.level}{node.module or ''}"]
        else:
            continue
        yield from (f"import {name}" for name in names if name.partition(".")[0] not in modules)


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _BUILTINS:
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr.endswith("__"):
            yield f".{node.attr}"


def _calls(tree: ast.Module, functions: Collection[str]) -> Iterator[str]:
    if not functions:
        return
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called and called not in own and called not in functions:
            yield f"{called}()"
