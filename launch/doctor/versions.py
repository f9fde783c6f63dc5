"""Versions of the training stack against the supported matrix."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from launch.doctor.finding import Finding, failure, ok, skipped, warning
from launch.doctor.machine import Machine, MachineError
from launch.doctor.supported import Support, commit, packages
from launch.extras import EMBEDDED
from launch.slime.environment import Homes
from launch.slime.render import PYTHON
from recipes.base import Recipe

IMAGE = "run this inside the training image (docker/, launch/apptainer/), which holds the whole stack"
_EXTRA = "pip install 'slime-swe[embedded]', or use launch/run_qwen_swe.sh, which does"
_SCRIPT = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({name: of(name) for name in sys.argv[1:]}))
"""


def check_sources(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """The checkouts that the job's PYTHONPATH names."""
    homes = Homes.find()
    if _elsewhere(recipe):
        yield skipped("sources", _elsewhere(recipe))
        return
    yield _source("slime", homes.slime, "train.py", "SLIME_HOME", machine)
    yield _source("megatron", homes.megatron, "megatron/training", "MEGATRON_HOME", machine)


def check_versions(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """The packages of the Python that the job starts."""
    if _elsewhere(recipe):
        yield skipped("versions", _elsewhere(recipe))
        return
    supported = packages()
    try:
        found: dict[str, str | None] = json.loads(machine.ask(PYTHON, "-c", _SCRIPT, *supported))
    except (MachineError, ValueError) as error:
        yield failure("versions", f"{PYTHON} does not tell its packages: {error}", IMAGE)
        return
    missing = [name for name in supported if not found.get(name)]
    if missing:
        yield failure("versions", f"{', '.join(missing)} not installed in {PYTHON}", IMAGE)
    for name, version in found.items():
        if version:
            yield _package(name, version, supported[name])


def check_embedded_versions(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """The packages of the extra that the embedded engine wants."""
    missing = [name for name in EMBEDDED if find_spec(name) is None]
    if missing:
        yield failure("versions", f"{', '.join(missing)} not installed in {sys.prefix}", _EXTRA)
    else:
        yield ok("versions", ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers")))


def _elsewhere(recipe: Recipe) -> str:
    """Why the stack may be missing here; empty where it may not."""
    address = recipe.cluster.ray_address
    if address and not Homes.find().slime.is_dir():
        return f"no SLiME here; the job goes to the cluster at {address}: run this on its nodes too"
    return ""


def _source(name: str, folder: Path, inside: str, variable: str, machine: Machine) -> Finding:
    """SLiME's image patches its Megatron, so changed files are no reason to warn."""
    tested = commit(name)
    if not (folder / inside).exists():
        return failure(name, f"{folder / inside} is missing", f"let {variable} name a checkout, or {IMAGE}")
    try:
        head = machine.ask("git", "-c", f"safe.directory={folder}", "-C", str(folder), "rev-parse", "HEAD").strip()
    except MachineError as error:
        return warning(name, f"{folder}, commit unknown: {error}", f"tested with {tested}: check that out, or {IMAGE}")
    if not head.startswith(tested):
        return warning(name, f"{folder} at {head[:9]}; tested at {tested[:9]}", f"check that out, or {IMAGE}")
    return ok(name, f"{folder} at {head[:9]}")


def _package(name: str, found: str, support: Support) -> Finding:
    if not support.allows(found):
        return failure(name, f"{found}; it must be {support.required}", f"install {support.tested}, or {IMAGE}")
    if not support.knows(found):
        return warning(name, f"{found}; tested with {support.tested}", f"install that, or {IMAGE}")
    return ok(name, found)
