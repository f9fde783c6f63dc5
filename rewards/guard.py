"""Where a patch counts for nothing: what decides the verdict is the oracle's.

That is: the oracle's protected files; every new file in a folder (but the root) that holds a protected one; what Python
or pytest load by themselves (`conftest.py`, `sitecustomize.py`, …); and a new module that would be imported in place of
a protected file or of the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import PurePosixPath

# Files that Python or pytest load without being asked, from wherever they are found.
_AUTO_LOADED = frozenset(
    {"conftest.py", "sitecustomize.py", "usercustomize.py", "tox.ini", "setup.cfg", "pyproject.toml"}
    | {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"}
    | {"entry_points.txt"}  # of a `….dist-info` beside the tests: pytest loads the plug-ins that it names
)


class Guard:
    """Whether a change to this path is undone before grading."""

    def __init__(self, names: Collection[str], protected: Collection[str]) -> None:
        """`names`: the repository's files; `protected`: those that the oracle puts back."""
        self._known = frozenset(names)
        self._protected = frozenset(protected)
        beside = {str(PurePosixPath(path).parent) for path in self._protected}
        self._folders = tuple(f"{folder}/" for folder in beside if folder != ".")
        self._modules = {_module(path) for path in self._protected}
        self._roots = _import_roots(self._known)

    def __call__(self, path: str) -> bool:
        if path in self._protected or PurePosixPath(path).name in _AUTO_LOADED or path.endswith(".pth"):
            return True
        if path in self._known:
            return False
        return path.startswith(self._folders) or any(map(self._shadows, _as_imported(path, self._roots)))

    def _shadows(self, path: str) -> bool:
        """A new file below a folder of `sys.path`: `queue.py` or `queue/…` comes before the standard library's."""
        names = {path.partition("/")[0].partition(".")[0], _module(path)}
        return bool(names & self._modules) or not names.isdisjoint(sys.stdlib_module_names)


def _import_roots(files: Collection[str]) -> frozenset[str]:
    """The folders that a test runner may have on `sys.path`: those that are in no package, and `src` in any case."""
    every = {folder for path in files for folder in folders(path)}
    packages = {folder for folder in every if f"{folder}/__init__.py" in files}
    outside = {folder for folder in every if packages.isdisjoint({folder, *folders(folder)})}
    return frozenset({"src", *outside})


def _as_imported(path: str, roots: Collection[str]) -> list[str]:
    """The path from the repository's root, and from each of these folders that it is in."""
    return [path, *(path[len(folder) + 1 :] for folder in folders(path) if folder in roots)]


def folders(path: str) -> set[str]:
    """The folders that the path is in, but for the repository's own."""
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def _module(path: str) -> str:
    """What the file is imported as: `pkg/test_a.py` and `pkg/test_a/__init__.py` are both `pkg/test_a`."""
    parent, name = PurePosixPath(path).parent, PurePosixPath(path).name.partition(".")[0]
    return str(parent) if name == "__init__" else str(parent / name)
