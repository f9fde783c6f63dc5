"""`specification:PACKAGE`: tasks made from the code of an installed package by removing bodies.

    specification:toolz             a task for each function and method
    specification:toolz/classes     for each class; /modules: for each module; /steps: one definition after the other
    specification:toolz/untested    for each function that neither tests nor doctests run, graded by similarity
    specification:toolz-1.2.0.tar.gz    of a source distribution, by its path
    specification:synthetic         the generated repositories' functions (also synthetic_heldout, synthetic_unseen)

The same package in the same version gives the same tasks. What its tests run is found once, and kept in the cache.
"""

from __future__ import annotations

import ast
import doctest
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

import msgspec
import orjson

from slime_swe import files as kept
from slime_swe import syntax
from slime_swe.data_sources.diff import DiffOracle
from slime_swe.data_sources.factory.packages import ARCHIVES, MAX_FILE_BYTES, MAX_PACKAGE_BYTES, Package, read_package
from slime_swe.data_sources.factory.runs import command_of
from slime_swe.data_sources.specification.removals import SIZES, Proved, proved, sources_of
from slime_swe.data_sources.specification.source import Definition, Source, lines_of
from slime_swe.data_sources.synthetic import tasks as synthetic
from slime_swe.data_sources.task import CallsOracle, Oracle, Task, TestsOracle, Workspace
from slime_swe.errors import UserError, unknown
from slime_swe.patches import apply_patch, make_patch, paths_of

SECONDS = 60.0  # of one run of a task's tests
SHOWN_TESTS = 5
UNTESTED = "No test runs it: what you write is compared with what was there. Change nothing else."
_FORMAT = 1  # of what is kept; another number makes it anew
GENERATED = {f"synthetic{'' if split == 'train' else '_' + split}": split for split in synthetic.SIZES}

Describe = Callable[[str], str]


def load(split: str) -> list[Task]:
    """Return the tasks of a split: PACKAGE or the path of its source distribution, with /SIZE or without; or generated
    repositories. Raises `UserError`."""
    if split in GENERATED:
        return [_without_body(task, split) for task in synthetic.load(GENERATED[split])]
    return make_tasks(*of_package(split))


def of_package(split: str) -> tuple[Package, str]:
    """Return the package and the size that a split names. Raises `UserError`."""
    package, slash, size = split.rpartition("/")
    if split.endswith(ARCHIVES):
        package, size = split, ""
    elif not slash:
        package, size = size, ""
    elif size not in SIZES:
        raise UserError(unknown(f"size of specification:{split}", size, SIZES))
    return named(package), size or "functions"


def make_tasks(
    project: Package, size: str = "functions", describe: Describe | None = None, limit: int | None = None
) -> list[Task]:
    """Make the tasks of one size. describe: what a model says of a source text; it is asked of what its docstring says
    too little, which is left out without one. limit: of tasks, the first ones. Raises `UserError`,
    `InfrastructureError`, and what `describe` does."""
    found = _known(project, size) if describe is None else proved(project, size, lambda definition: True)
    return [_task(project, size, one, describe) for one in found[:limit]]


def _known(project: Package, size: str) -> list[Proved]:
    """Find the proved removals, from the cache if this has been done before."""
    way = [_FORMAT, sys.version, size, project.version, list(project.tests), dict(project.files)]
    digest = hashlib.sha256(orjson.dumps(way, option=orjson.OPT_SORT_KEYS)).hexdigest()
    file = kept.cache_folder("specification") / f"{project.name}-{digest[:32]}.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Proved])
    except (OSError, msgspec.DecodeError):
        found = proved(project, size, is_enough)
        kept.keep_in_cache(file, msgspec.json.encode(found), "what the tests run", "it is found again each time")
        return found


def _task(project: Package, size: str, one: Proved, describe: Describe | None) -> Task:
    removal = one.removal
    broken, right = sources_of(project, removal)
    documented = dict(removal.documented)
    names = [definition.name for definition in removal.asked]
    oracle = _oracle(project, one, make_patch({removal.path: broken}, {removal.path: right}))
    description = "" if describe is None else _described(project, removal.path, removal.asked, describe)
    metadata = {
        "package": project.name,
        "version": project.version,
        "licence": project.licence,
        "path": removal.path,
        "names": names,
        "size": size,
        "body_lines": sum(definition.body_lines for definition in removal.asked),
        "tests": "doctests" if documented else "project" if one.fail_to_pass else "none",
    }
    workspace = Workspace({**project.files, removal.path: broken, **documented})
    text = statement(removal.path, removal.asked, description, one.fail_to_pass, oracle.command)
    place = removal.path.removesuffix(".py").replace("/", ".")
    parts = [f"{project.name}-{project.version}", SIZES[size], place, *(names if size != "modules" else ())]
    return Task("-".join(parts), text, workspace, oracle, "specification", project.name, metadata)


def _oracle(project: Package, one: Proved, gold_patch: str) -> Oracle:
    """Make the oracle: of the tests; where there are none, of the likeness to the body that was removed."""
    protected = (*project.protected, *(path for path, _ in one.removal.documented))
    if not one.fail_to_pass:
        return DiffOracle(protected=protected, gold_patch=gold_patch, reward="tokens")
    return TestsOracle(
        one.fail_to_pass,
        one.pass_to_pass,
        protected=protected,
        command=command_of((*one.fail_to_pass, *one.pass_to_pass), project.root),
        gold_patch=gold_patch,
        timeout_seconds=SECONDS,
    )


def statement(
    path: str, asked: tuple[Definition, ...], description: str, failing: tuple[str, ...], command: str
) -> str:
    """Write what the agent is asked: which bodies to write, what they must do, and which tests say so, if any."""
    if len(asked) == 1:
        opening = f"Write the body of `{asked[0].name}` in `{path}`. Signature and docstring say what it must do:"
        what = f"```python\n{asked[0].head.rstrip()}\n```"
    else:
        opening = f"Write the bodies of these functions in `{path}`. Signatures and docstrings say what they must do:"
        what = "\n".join(f"- `{definition.name}`" for definition in asked)
    if not failing:
        return "\n\n".join(filter(None, [opening, what, description, UNTESTED])) + "\n"
    tests = [f"    {test}" for test in failing[:SHOWN_TESTS]]
    if len(failing) > SHOWN_TESTS:
        tests.append(f"    and {len(failing) - SHOWN_TESTS} more")
    passing = "\n".join(["These tests must pass, and others that pass must go on passing:\n", *tests])
    return "\n\n".join(filter(None, [opening, what, description, passing, f"They are run by\n\n    {command}"])) + "\n"


def _described(project: Package, path: str, asked: tuple[Definition, ...], describe: Describe) -> str:
    lines = lines_of(project.files[path])
    said = []
    for definition in asked:
        if not is_enough(definition):
            first, last = definition.lines
            said.append(f"`{definition.name}`: {describe(''.join(lines[first - 1 : last])).strip()}")
    return "\n\n".join(said)


# Packages that specification tasks are made of: those that are installed here, and source distributions.
_TEST_FOLDERS = {"test", "tests", "testing"}
_TEST_FILE = re.compile(r"test_.*\.py|.*_tests?\.py|conftest\.py")


def project(name: str, version: str, files: Mapping[str, str], licence: str = "") -> Package:
    """Tell the files apart: a test is what is named so, or lies in a folder of tests. Raises `UserError` where there is
    no code."""
    modules = sorted(path for path in files if path.endswith(".py"))
    protected = tuple(sorted(path for path in files if _of_tests(path)))
    tests = tuple(path for path in protected if path.endswith(".py") and PurePosixPath(path).name.startswith("test"))
    code = tuple(path for path in modules if path not in protected)
    if not code:
        raise UserError(f"{name} has no Python code of its own: give a package that is written in Python")
    return Package(name, version, dict(files), licence, "", code, tests, protected)


def named(name: str) -> Package:
    """Read a source distribution by its path, which ends as its archive does, or else an installed package. Raises
    `UserError`."""
    return read_package(Path(name).expanduser()) if name.endswith(ARCHIVES) else installed(name)


def installed(name: str) -> Package:
    """Read the package of that name, as it is installed for this Python. Raises `UserError` where it is not, or where
    its text has more than `MAX_PACKAGE_BYTES`."""
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError) as error:
        raise UserError(f"the package {name!r} is not installed for this Python: pip install {name}") from error
    files: dict[str, str] = {}
    for entry in found.files or ():
        path = PurePosixPath(entry)
        if ".." in path.parts or "__pycache__" in path.parts or path.parts[0].endswith((".dist-info", ".egg-info")):
            continue
        text = _text(found, str(path))
        if text is not None:
            files[str(path)] = text
    if sum(map(len, files.values())) > MAX_PACKAGE_BYTES:
        raise UserError(
            f"the package {name} has more than {MAX_PACKAGE_BYTES >> 20} MiB of text, which each task would hold"
        )
    licences = [*(found.metadata.get_all("License-Expression") or []), *(found.metadata.get_all("License") or [])]
    return project(found.name, found.version, dict(sorted(files.items())), next(iter(licences), "").partition("\n")[0])


def _text(found: Distribution, path: str) -> str | None:
    """Read a file's text; None for what is too large, or is no UTF-8."""
    try:
        content = found.locate_file(path).read_bytes()  # type: ignore[attr-defined]
        text = str(content.decode("utf-8")) if len(content) <= MAX_FILE_BYTES else None
    except (OSError, UnicodeDecodeError):
        return None
    return None if text is None or "\0" in text or path.endswith(".pth") else text


def _of_tests(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return not _TEST_FOLDERS.isdisjoint(parts[:-1]) or bool(_TEST_FILE.fullmatch(parts[-1]))


# A docstring must say enough of what a function does for someone to write it.
LEAST_WORDS = 5
_WORD = re.compile(r"[A-Za-z]{2,}")


def is_enough(definition: Definition) -> bool:
    """Say whether a docstring has at least `LEAST_WORDS` words beside examples, or an example that shows a result and
    some word. What a class does is said by its own docstring."""
    text = definition.docstring
    prose = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(">>>"))
    words = len(set(_WORD.findall(prose)))
    return words >= LEAST_WORDS or (words > 0 and _shows_results(text))


def _shows_results(text: str) -> bool:
    try:
        return any(example.want for example in doctest.DocTestParser().get_examples(text))
    except ValueError:
        return False


# The tasks of the synthetic repositories, which need no package and are graded by values: the function that has the bug
# there has no body here, and the comment above it says what it does.
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
    """Return the number of the first line of `after` that `before` has not in its place."""
    old, new = before.splitlines(), after.splitlines()
    return next((n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b), min(len(old), len(new)) + 1)


def _calls(files: dict[str, str], test: str, name: str) -> bool:
    """Say whether the test calls the function: then it fails without a body."""
    path, _, function = test.partition("::")
    tree = syntax.parse(files[path])
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(found))
