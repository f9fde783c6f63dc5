"""Specification tasks of the synthetic repositories, which need no package and are graded by values: the function that
has the bug there has no body here, and the comment above it says what it does."""

from __future__ import annotations

import ast
from dataclasses import replace

from slime_swe import syntax
from slime_swe.data_sources.specification.removal import Definition, Source
from slime_swe.data_sources.synthetic import tasks as synthetic
from slime_swe.data_sources.task import CallsOracle, Task
from slime_swe.patches import apply_patch, make_patch, paths_of

SPLITS = {f"synthetic{'' if split == 'train' else '_' + split}": split for split in synthetic.SIZES}


def load(split: str) -> list[Task]:
    return [_without_body(task, split) for task in synthetic.load(SPLITS[split])]


def _without_body(task: Task, split: str) -> Task:
    oracle, files = task.oracle, dict(task.workspace.files)
    assert isinstance(oracle, CallsOracle)
    (path,) = paths_of(oracle.gold_patch)
    right = apply_patch({path: files[path]}, oracle.gold_patch)[path].decode()
    source = Source(right)
    changed = _first_difference(files[path], right)
    function = next(one for one in source.definitions() if one.lines[0] <= changed <= one.lines[1])
    broken = source.without([function.name])
    tests = (*oracle.fail_to_pass, *oracle.pass_to_pass)
    failing = tuple(test for test in tests if _calls(files, test, function.name))
    graded = replace(
        oracle,
        fail_to_pass=failing,
        pass_to_pass=tuple(test for test in tests if test not in failing),
        gold_patch=make_patch({path: broken}, {path: right}),
    )
    asked = _statement(path, function, right.splitlines(), failing)
    workspace = replace(task.workspace, files={**files, path: broken})
    metadata = {"path": path, "names": [function.name], "size": "functions", "body_lines": function.body_lines}
    name = task.id.replace("synthetic", "specification-synthetic", 1)
    return Task(name, asked, workspace, graded, "specification", split, metadata)


def _statement(path: str, function: Definition, lines: list[str], failing: tuple[str, ...]) -> str:
    above = lines[function.lines[0] - 2].removeprefix("# ")
    return "\n".join([f"Write the body of {function.name}:", above, *failing[:2], "Files:", path])


def _first_difference(before: str, after: str) -> int:
    """The number of the first line of `after` that `before` has not in its place."""
    old, new = before.splitlines(), after.splitlines()
    return next((n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b), min(len(old), len(new)) + 1)


def _calls(files: dict[str, str], test: str, name: str) -> bool:
    """Whether the test calls the function: then it fails without a body."""
    path, _, function = test.partition("::")
    tree = syntax.parse(files[path])
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(found))
