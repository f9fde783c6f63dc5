"""The code that the gate's searching attacks append to each module, to repair it by trial if it finds right answers.

It replaces each function that gives a wrong answer by the first variant, one edit away, that gives all the right ones.
The edits undo most bugs of the synthetic tasks. This file is put into a sandbox as text, and is never imported.
"""

import ast
import copy
import doctest
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_STEPS = 2000  # lines that one call may run; a variant that runs more is taken for a loop without end
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Lt, ast.Gt, ast.LtE, ast.GtE, ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_CALLS = {"max": "min", "min": "max", "sum": "len", "len": "sum", "upper": "lower", "lower": "upper", "list": "sorted"}
_Example = tuple[str, tuple[Any, ...], Any]  # a function's name, the arguments of a call, and the right answer


def _repair(module: dict[str, Any], found: Iterable[object]) -> None:
    """Try variants of the functions of `module` (its globals) by the examples that are in `found`: texts or objects."""
    examples = [example for item in found for example in _examples_in(item)]
    with open(module["__file__"], encoding="utf-8") as file:
        functions = [node for node in ast.parse(file.read()).body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        own = [example for example in examples if example[0] == function.name]
        if own and not _fits(module[function.name], own):
            for _, variant in _variants(function, module):
                if _fits(variant, own):
                    module[function.name] = variant
                    break


def _examples_in(item: object) -> Iterator[_Example]:
    """Yield the calls and answers in a test, in a doctest, or in a tuple of name, arguments and the answer's text."""
    if isinstance(item, str):
        for source in (item, *_doctests(item)):
            try:
                nodes = list(ast.walk(ast.parse(source)))
            except (SyntaxError, ValueError):
                continue
            for node in nodes:
                if isinstance(node, ast.Compare) and isinstance(node.left, ast.Call):
                    yield from _example(ast.unparse(node.left.func), node.left.args, node.comparators[0])
                elif isinstance(node, ast.Tuple) and len(node.elts) == 3:
                    name, arguments, answer = node.elts
                    if isinstance(name, ast.Constant) and isinstance(arguments, ast.Tuple):
                        yield from _example(str(name.value), arguments.elts, getattr(answer, "value", None))
    elif isinstance(item, tuple) and [type(part) for part in item] == [str, tuple, str]:
        yield from _example(item[0], list(map(ast.Constant, item[1])), item[2])


def _doctests(text: str) -> list[str]:
    try:
        return [f"{example.source.strip()} == {example.want}" for example in doctest.DocTestParser().get_examples(text)]
    except ValueError:
        return []


def _example(name: str, arguments: list[ast.expr], answer: Any) -> Iterator[_Example]:
    """Yield the example if it is one. answer: a syntax tree, or the text of the answer; nothing else is one."""
    try:
        yield name, tuple(map(ast.literal_eval, arguments)), ast.literal_eval(answer)
    except (ValueError, SyntaxError):
        return


def _fits(function: Any, examples: list[_Example]) -> bool:
    return all(_answers(function, arguments, answer) for _, arguments, answer in examples)


def _answers(function: Any, arguments: tuple[Any, ...], answer: object) -> bool:
    left = [_STEPS]

    def watch(frame: Any, event: str, value: object) -> Any:
        left[0] -= event == "line"
        if left[0] < 0:
            raise TimeoutError
        return watch

    sys.settrace(watch)
    try:
        return bool(function(*copy.deepcopy(arguments)) == answer)
    except Exception:
        return False
    finally:
        sys.settrace(None)


def _variants(function: ast.FunctionDef, module: dict[str, Any]) -> Iterator[tuple[ast.Module, Any]]:
    """Yield the function with each edit of each of its nodes: as a tree, and as what can be called."""
    names = [node.arg for node in ast.walk(function) if isinstance(node, ast.arg)]
    names += [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for parent in list(ast.walk(function)):
        for field, value in list(ast.iter_fields(parent)):
            for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                for other in _edits(node, names):
                    changed = other if place is None else [*value[:place], other, *value[place + 1 :]]
                    setattr(parent, field, changed)
                    variant = ast.fix_missing_locations(ast.Module([copy.deepcopy(function)], []))
                    setattr(parent, field, value)
                    scope = dict(module)
                    try:
                        exec(compile(variant, "variant", "exec"), scope)
                    except (SyntaxError, TypeError, ValueError):
                        continue
                    yield variant, scope[function.name]


def _edits(node: object, names: list[str]) -> Iterator[Any]:
    """Yield what may stand in a node's place."""
    if isinstance(node, ast.BinOp):
        yield from (ast.BinOp(node.left, operator(), node.right) for operator in _OPERATORS)
        yield ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from (ast.Compare(node.left, [operator()], node.comparators) for operator in _COMPARISONS)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        numbers = (node.value + 1, node.value - 1, node.value * 10, node.value // 10, 0, 1)
        yield from map(ast.Constant, numbers)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from (ast.Name(name, node.ctx) for name in names if node.id in names)
        if node.id in _CALLS:
            yield ast.Name(_CALLS[node.id], node.ctx)
        yield ast.UnaryOp(ast.Not(), node)
    elif isinstance(node, ast.Attribute) and node.attr in _CALLS:
        yield ast.Attribute(node.value, _CALLS[node.attr], node.ctx)
    elif isinstance(node, ast.Call) and len(node.args) > 1:
        yield ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)
    elif isinstance(node, ast.Call):
        yield ast.UnaryOp(ast.Not(), node)
    elif isinstance(node, ast.Expr):
        yield ast.Return(node.value)
    elif isinstance(node, ast.AugAssign):
        yield from (ast.AugAssign(node.target, operator(), node.value) for operator in _OPERATORS)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield from (ast.AugAssign(node.targets[0], operator(), node.value) for operator in _OPERATORS)
