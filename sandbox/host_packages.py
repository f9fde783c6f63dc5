"""The Python packages that a sandbox of this machine's own system sees: pytest and what it needs.

Such a sandbox has /usr and the interpreter's installation. What else is installed there, this project before all, holds
the right patches of the tasks or knows where they are. So each folder of packages shows `SHOWN` alone, and folders of
code that this process runs show nothing. An interpreter whose installation has no pytest, as of most virtual
environments, gets that of the environment, which is made for the same interpreter.

It does not cover task files and copies of the project that lie elsewhere in /usr or in the interpreter's installation.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

# Modules by the name of their distribution: pytest, and what it needs on any Python from 3.11 on.
SHOWN = {
    "pytest": ("pytest", "_pytest", "py.py"),
    "pluggy": ("pluggy",),
    "iniconfig": ("iniconfig",),
    "packaging": ("packaging",),
    "pygments": ("pygments",),
}
_SOURCES = ("/usr/src", "/usr/local/src")
_PACKAGES = ("site-packages", "dist-packages")
_CONDA = ("envs", "pkgs")  # of an installation of conda: other environments
_SEARCHED = "import json, site; print(json.dumps(site.getsitepackages()))"


def hidden_folders(trees: Sequence[str], python: str) -> Iterator[tuple[Path, dict[Path, Path]]]:
    """Yield the folders below `trees` to be hidden, and of each what is to be shown in it all the same: a place in it,
    and what is shown there. python: the interpreter of the sandbox.
    """
    packages = {place.resolve() for tree in trees for place in _package_folders(Path(tree))}
    found = packages | {place.resolve() for place in _own_code()} | {Path(source) for source in _SOURCES}
    found |= {Path(tree, name) for tree in trees for name in _CONDA if Path(tree, "conda-meta").is_dir()}
    shown = {folder: {path: path for path in _shown(folder)} for folder in packages}
    searched = [folder for folder in map(Path, _searched(python)) if folder in shown]
    if searched and not any(path.name == "pytest" for folder in searched for path in shown[folder]):
        shown[searched[0]] = {searched[0] / path.name: path for path in _of_environment()}
    for folder in sorted(found):
        outer = set(folder.parents)
        if folder.is_dir() and outer & set(map(Path, trees)) and not outer & found:
            yield folder, shown.get(folder, {})


def _package_folders(tree: Path) -> Iterator[Path]:
    for name in _PACKAGES:
        yield from tree.glob(f"lib*/*/{name}")
        yield from tree.glob(f"local/lib*/*/{name}")


@cache
def _searched(python: str) -> list[str]:
    """List the folders of packages in which an interpreter looks, in its order."""
    found = subprocess.run([python, "-I", "-c", _SEARCHED], check=True, capture_output=True)
    return [os.path.realpath(place) for place in json.loads(found.stdout)]


def _of_environment() -> list[Path]:
    """List the files of pytest and what it needs in this process's environment; none where that has no pytest."""
    found = importlib.util.find_spec("pytest")
    return _shown(Path(found.origin).parents[1]) if found and found.origin else []


def _own_code() -> Iterator[Path]:
    """Yield the folders that this process imports from, but for the standard library."""
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    standard |= {folder / "lib-dynload" for folder in standard}
    yield from {Path(place).resolve() for place in sys.path if place} - standard
    yield Path(__file__).resolve().parents[1]  # the checkout, or the installed package
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)


def _shown(folder: Path) -> list[Path]:
    """List what is shown of a folder of packages: of each distribution of `SHOWN` its modules and what it says about
    itself, as far as they are there.
    """
    shown: list[Path] = []
    entries = os.listdir(folder)
    for distribution, modules in SHOWN.items():
        about = [name for name in entries if name.lower().startswith(f"{distribution}-") and name.endswith("-info")]
        shown += [folder / name for name in sorted([*about, *(set(modules) & set(entries))])]
    return shown
