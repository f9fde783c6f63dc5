"""Decides which changes of a patch are ignored: those that would decide their own verdict.

These are the oracle's protected files; what is put where one of their folders has to be; every new file in such a
folder (except the root); files that Python or pytest load by themselves (`conftest.py`, `sitecustomize.py`, …); and a
new module that would be imported in place of a protected file or of the standard library.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath

from slime_swe.data_sources.task import Task
from slime_swe.patches import apply_patch

Files = Mapping[str, str | bytes]

# Files that Python or pytest load without being asked, from wherever they are found.
_AUTO_LOADED = frozenset(
    {"conftest.py", "sitecustomize.py", "usercustomize.py", "tox.ini", "setup.cfg", "pyproject.toml"}
    | {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"}
    | {"entry_points.txt"}  # of a `….dist-info` beside the tests: pytest loads the plug-ins that it names
)


class Guard:
    """A predicate of paths: it says whether a change to one is undone before grading."""

    def __init__(self, names: Collection[str], protected: Collection[str]) -> None:
        """`names`: the repository's files; `protected`: those that the oracle puts back."""
        self._known = frozenset(names)
        self._protected = frozenset(protected)
        beside = {str(PurePosixPath(path).parent) for path in self._protected}
        self._folders = tuple(f"{folder}/" for folder in beside if folder != ".")
        self._above = {folder for path in self._protected for folder in folders_of(path)}
        self._modules = {_module(path) for path in self._protected}
        self._roots = _import_roots(self._known)

    def __call__(self, path: str) -> bool:
        if (
            path in self._protected
            or path in self._above
            or PurePosixPath(path).name in _AUTO_LOADED
            or path.endswith(".pth")
        ):
            return True
        if path in self._known:
            return False
        return path.startswith(self._folders) or any(map(self._shadows, _as_imported(path, self._roots)))

    def _shadows(self, path: str) -> bool:
        """Say whether a new file in `sys.path` hides a protected or standard module, as `queue.py` and `queue/…` do."""
        names = {path.partition("/")[0].partition(".")[0], _module(path)}
        return bool(names & self._modules) or not names.isdisjoint(sys.stdlib_module_names)


def _import_roots(files: Collection[str]) -> frozenset[str]:
    """Return the folders that a test runner may have on `sys.path`: those in no package, and `src` in any case."""
    every = {folder for path in files for folder in folders_of(path)}
    packages = {folder for folder in every if f"{folder}/__init__.py" in files}
    outside = {folder for folder in every if packages.isdisjoint({folder, *folders_of(folder)})}
    return frozenset({"src", *outside})


def _as_imported(path: str, roots: Collection[str]) -> list[str]:
    """Return the path from the repository's root, and from each of these folders that it is in."""
    return [path, *(path[len(folder) + 1 :] for folder in folders_of(path) if folder in roots)]


def folders_of(path: str) -> set[str]:
    """Return the folders that the path is in, but for the repository's own."""
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def _module(path: str) -> str:
    """Return what a file is imported as: `pkg/test_a.py` and `pkg/test_a/__init__.py` are both `pkg/test_a`."""
    parent, name = PurePosixPath(path).parent, PurePosixPath(path).name.partition(".")[0]
    return str(parent) if name == "__init__" else str(parent / name)


async def graded_files(
    task: Task,
    patch: str,
    pristine: Files | None = None,
    names: Collection[str] | None = None,
    added: Files | None = None,
) -> tuple[dict[str, str | bytes], list[str]]:
    """Return the pristine files with the patch applied, and the paths at which the patch is ignored.

    pristine: the files to patch; None takes the task's own. names: of all the repository's files; None takes those of
    `pristine`. added: files of the grader, which are protected too. The patch is also ignored where it is in the way of
    one of these or of a restored file. It is done in a thread: the patch decides how long it takes. Raises
    `PatchError`.
    """
    return await asyncio.to_thread(_graded_files, task, patch, pristine, names, added)


def _graded_files(
    task: Task, patch: str, pristine: Files | None, names: Collection[str] | None, added: Files | None
) -> tuple[dict[str, str | bytes], list[str]]:
    pristine = task.workspace.files if pristine is None else pristine
    files: dict[str, str | bytes] = dict(apply_patch(pristine, patch))
    guarded = Guard(pristine if names is None else names, {*task.oracle.protected, *(added or {})})
    ignored = [path for path in {**pristine, **files} if _encoded(pristine.get(path)) != files.get(path)]
    ignored = sorted(path for path in ignored if guarded(path))
    restored = {path: pristine[path] for path in ignored if path in pristine}
    fixed = {**restored, **(added or {})}
    undone = {*ignored, *_in_the_way(files, fixed)}
    return {path: content for path, content in files.items() if path not in undone} | fixed, sorted(undone)


def _in_the_way(files: Iterable[str], fixed: Collection[str]) -> list[str]:
    """Return the files that stand where a folder of `fixed` has to be, or below where a file of it has to be."""
    above = {parent for path in fixed for parent in folders_of(path)}
    return [path for path in files if path in above or not folders_of(path).isdisjoint(fixed)]


def _encoded(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
