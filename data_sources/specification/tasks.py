"""`specification:PACKAGE`: tasks made from the code of an installed package by removing bodies.

    specification:toolz             a task for each function and method
    specification:toolz/classes     for each class; /modules: for each module; /steps: one definition after the other
    specification:toolz/untested    for each function that neither tests nor doctests run, graded by similarity
    specification:toolz-1.2.0.tar.gz    of a source distribution, by its path
    specification:synthetic         the generated repositories' functions (also synthetic_heldout, synthetic_unseen)

The same package in the same version gives the same tasks. What its tests run is found once, and kept in the cache.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import msgspec
import orjson

from slime_swe import files as kept
from slime_swe.data_sources.diff.oracle import DiffOracle
from slime_swe.data_sources.factory.commands import command_of
from slime_swe.data_sources.factory.packages import ARCHIVES, Package
from slime_swe.data_sources.specification import generated
from slime_swe.data_sources.specification.details import is_enough
from slime_swe.data_sources.specification.projects import named
from slime_swe.data_sources.specification.removal import Definition, lines_of
from slime_swe.data_sources.specification.removed import SIZES, Proved, proved, sources_of
from slime_swe.data_sources.task import Oracle, Task, TestsOracle, Workspace
from slime_swe.errors import UserError, unknown
from slime_swe.patches import make_patch

SECONDS = 60.0  # of one run of a task's tests
SHOWN_TESTS = 5
UNTESTED = "No test runs it: what you write is compared with what was there. Change nothing else."
_FORMAT = 1  # of what is kept; another number makes it anew

Describe = Callable[[str], str]


def load(split: str) -> list[Task]:
    """split: PACKAGE or the path of its source distribution, with /SIZE or without; or generated repositories. Raises
    `UserError`."""
    if split in generated.SPLITS:
        return generated.load(split)
    return make_tasks(*of_package(split))


def of_package(split: str) -> tuple[Package, str]:
    """The package and the size that a split names. Raises `UserError`."""
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
    """The tasks of one size. describe: what a model says of a source text; it is asked of what its docstring says too
    little, which is left out without one. limit: of tasks, the first ones. Raises `UserError`, `InfrastructureError`,
    and what `describe` does.
    """
    found = _known(project, size) if describe is None else proved(project, size, lambda definition: True)
    return [_task(project, size, one, describe) for one in found[:limit]]


def _known(project: Package, size: str) -> list[Proved]:
    """From the cache, if this has been found before."""
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
    """Of the tests; where there are none, of the likeness to the body that was removed."""
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
    """What the agent is asked: which bodies to write, what they must do, and which tests say so, if any."""
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
