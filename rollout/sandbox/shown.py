"""Which Python packages a sandbox of this machine's own system sees: pytest and what it needs.

Such a sandbox has /usr and the interpreter's installation. What else is installed there, this project before all, holds
the right patches of the tasks or knows where they are. So each folder of packages shows `SHOWN` alone, and folders of
code that this process runs show nothing.

It does not cover task files and copies of the project that lie elsewhere in /usr or in the interpreter's installation.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

# By name of a distribution: its modules. Of those that pytest needs on any Python from 3.11 on.
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


def hidden_folders(trees: Sequence[str]) -> Iterator[tuple[Path, list[Path]]]:
    """The folders below `trees` to be hidden, and of each what is to be shown in it all the same."""
    packages = {place.resolve() for tree in trees for place in _package_folders(Path(tree))}
    found = packages | {place.resolve() for place in _own_code()} | {Path(source) for source in _SOURCES}
    found |= {Path(tree, name) for tree in trees for name in _CONDA if Path(tree, "conda-meta").is_dir()}
    for folder in sorted(found):
        outer = set(folder.parents)
        if folder.is_dir() and outer & set(map(Path, trees)) and not outer & found:
            yield folder, _shown(folder) if folder in packages else []


def _package_folders(tree: Path) -> Iterator[Path]:
    for name in _PACKAGES:
        yield from tree.glob(f"lib*/*/{name}")
        yield from tree.glob(f"local/lib*/*/{name}")


def _own_code() -> Iterator[Path]:
    """Where this process imports from, but for the standard library."""
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    standard |= {folder / "lib-dynload" for folder in standard}
    yield from {Path(place).resolve() for place in sys.path if place} - standard
    yield Path(__file__).resolve().parents[2]  # the checkout, or the installed package
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)


def _shown(folder: Path) -> list[Path]:
    """A distribution's modules and what it says about itself, where it has both."""
    shown: list[Path] = []
    entries = os.listdir(folder)
    for distribution, modules in SHOWN.items():
        about = [name for name in entries if name.lower().startswith(f"{distribution}-") and name.endswith("-info")]
        shown += [folder / name for name in sorted([*about, *(set(modules) & set(entries))])]
    return shown
