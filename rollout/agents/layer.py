"""Install an agent once on this machine, into a read-only layer that all its sandboxes share.

A layer is a folder seen from `/`; everything in it is below `opt/agents/<name>`. npm and pip
ask the registries that they are configured for (`.npmrc`, `pip.conf`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.rollout.sandbox.cache import cache_folder, locked, made_once, remove_tree

NODE = "22.23.3"  # what qwen-code and its like need; images have an older one or none
INSTALL_SECONDS = 900.0
UNUSED_DAYS = 30.0
_LAST_LINES = 15
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}  # as npm calls them


def folder_of(name: str) -> str:
    """Where an agent is in its sandboxes."""
    return f"/opt/agents/{name}"


def layer_of(name: str, version: str, install: Callable[[Path], None], cache: Path | None = None) -> Path:
    """An agent's layer, installed if it isn't there yet. Blocks. Raises `UserError` where that fails.

    `install` puts the agent into a folder that sandboxes will see as `folder_of(name)`. Installing one removes the
    layers of any agent that no run has opened for `UNUSED_DAYS`.
    """
    layers = (cache or cache_folder()) / "agents"
    place = layers / f"{name}-{version}-{_made_by(name, install)}"

    def make(place: Path) -> None:
        folder = place / folder_of(name).strip("/")
        folder.mkdir(parents=True)
        print(f"installing {name} {version}, once for all sandboxes of this machine", file=sys.stderr, flush=True)
        install(folder)
        _sweep(layers)

    made_once(place, make)
    os.utime(place)  # its last use
    return place


def python_version() -> str:
    """The version of the interpreter that installs. Agents in Python need the same version in the sandbox."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def pip_install(name: str, folder: Path, python: Path | None = None) -> None:
    """The agent's locked packages into `folder/lib`, compiled; wheels only, so that nothing of theirs runs here.

    python: the interpreter that they are for, in place of the one that trains. It need not have pip.
    """
    pip = [sys.executable, "-m", "pip", *(["--python", str(python)] if python else [])]
    flags = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    with resources.as_file(_lock_of(name)) as lock:
        command = [*pip, "install", *flags, "--target", str(folder / "lib"), "-r", str(lock)]
        _run(command, "pip", "pip must be installed and reach a package index: python -m pip config list")


def npm_install(package: str, folder: Path) -> None:
    """An npm package, named with its version, into `folder`; no script of a package runs."""
    if shutil.which("npm") is None:
        raise UserError(f"installing {package} needs npm: apt-get install npm")
    flags = ["--ignore-scripts", "--omit=dev", "--no-save", "--no-package-lock", "--no-audit", "--no-fund"]
    command = ["npm", "install", "--prefix", str(folder), "--loglevel=error", *flags, package]
    _run(command, "npm", "npm must be able to reach a registry (npm config get registry)")


def node_install(folder: Path) -> None:
    """Node.js as `folder/bin/node`."""
    name = f"node-linux-{machine()}"
    npm_install(f"{name}@{NODE}", folder)
    (folder / "bin").mkdir()
    (folder / "node_modules" / name / "bin" / "node").rename(folder / "bin" / "node")
    shutil.rmtree(folder / "node_modules" / name)


def machine() -> str:
    """Raises `UserError` on a processor that the agents' packages are not made for."""
    here = platform.machine()
    if here not in _MACHINES:
        raise UserError(f"agents are installed on {' or '.join(_MACHINES)}, and this machine is {here}")
    return _MACHINES[here]


def _sweep(layers: Path) -> None:
    oldest = time.time() - UNUSED_DAYS * 86400
    for layer in layers.iterdir():
        if layer.is_dir() and layer.stat().st_mtime < oldest:
            with locked(layer):
                remove_tree(layer)


def _made_by(name: str, install: Callable[[Path], None]) -> str:
    """Changes with whatever an installation is made by."""
    shared = [Path(__file__), Path(__file__).with_name("own_python.py")]
    files = [*shared, *(Path(file) for file in [sys.modules[install.__module__].__file__] if file)]
    lock = _lock_of(name)
    texts = [file.read_text(encoding="utf-8") for file in files]
    if lock.is_file():
        texts += [lock.read_text(encoding="utf-8"), python_version()]
    return hashlib.sha256("\0".join([*texts, platform.machine()]).encode()).hexdigest()[:12]


def _lock_of(name: str) -> Traversable:
    """What pip installs for an agent: each package with its version."""
    return resources.files("slime_swe.rollout.agents") / "locks" / f"{name}.txt"


def _run(command: Sequence[str], tool: str, advice: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{tool} took more than {INSTALL_SECONDS:.0f} s: {shlex.join(command)}; {advice}") from error
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-_LAST_LINES:])
        raise UserError(f"{tool} failed (exit code {done.returncode}): {shlex.join(command)}\n{last}\n{advice}")
