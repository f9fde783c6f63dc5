"""CPython as part of an agent's layer, for an agent that needs another version than the one that trains.

It is a copy of this machine's own, so that nothing is downloaded but what pip brings.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from slime_swe.errors import UserError

# Every image with glibc has these, and they must fit each other.
_GLIBC = re.compile(r"(ld-linux[^/]*|lib(c|m|dl|rt|util|pthread|resolv|nsl))\.so")
# Of the standard library: what other packages bring, and what no agent imports.
_LEFT_OUT = (
    *("site-packages", "dist-packages", "config-*", "test", "idlelib", "turtledemo", "ensurepip", "lib2to3"),
    *("tkinter", "_tkinter*"),
)
_DESCRIBE = (
    "import json, os, sys, sysconfig; "
    "print(json.dumps([os.path.realpath(sys.executable), sys.base_prefix, sysconfig.get_path('stdlib')]))"
)


def copy_python(version: str, folder: Path) -> Path:
    """This machine's CPython (version: "3.12") as `folder/bin/python`, with its standard library and the shared
    libraries that it needs, which lie in `folder/lib`. What was copied, for pip to install with. Raises `UserError`
    where there is none.
    """
    program, prefix, library = find_python(version)
    copied = folder / library.relative_to(prefix)
    shutil.copytree(library, copied, ignore=shutil.ignore_patterns(*_LEFT_OUT), ignore_dangling_symlinks=True)
    (folder / "bin").mkdir()
    shutil.copy2(program, folder / "bin" / "python")
    (folder / "lib").mkdir(exist_ok=True)
    for needed in _needed([program, *copied.glob("lib-dynload/*.so")]):
        shutil.copy2(needed, folder / "lib" / needed.name)
    return program


def own_python_command(folder: str, arguments: str) -> str:
    """Run the copy that sandboxes have in `folder`. Its program should restore `LD_LIBRARY_PATH` for what it starts."""
    paths = f"IMAGE_LIBRARY_PATH=$LD_LIBRARY_PATH LD_LIBRARY_PATH={folder}/lib"
    return f"{paths} {folder}/bin/python -I {arguments}"


def find_python(version: str) -> tuple[Path, Path, Path]:
    """The first `python<version>` on the path that runs: its program, its prefix, its standard library."""
    for place in os.get_exec_path():
        program = shutil.which(f"python{version}", path=place)
        if program is None:
            continue
        done = _run([program, "-I", "-c", _DESCRIBE])
        if done.returncode == 0:  # else it is a shim of pyenv's for a version that is not chosen
            found = [Path(path) for path in json.loads(done.stdout)]
            return found[0], found[1], found[2]
    raise UserError(
        f"there is no python{version} on the path: install it (uv python install {version}), "
        f"or put the folder that has it on PATH"
    )


def _needed(files: Sequence[Path]) -> Iterator[Path]:
    """The shared libraries that these files are linked with, but for glibc's."""
    said = _run(["ldd", *map(str, files)]).stdout  # it fails if one of them is linked with none
    for path in sorted({*re.findall(r"=> (/\S+) \(0x", said)}):
        if not _GLIBC.match(Path(path).name):
            yield Path(path)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
