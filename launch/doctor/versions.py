"""Versions of the training stack against the matrix that this project supports, `supported.toml`."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.resources import files
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from slime_swe.launch.doctor.finding import Finding, failure, ok, skipped, warning
from slime_swe.launch.doctor.machine import Machine, MachineError
from slime_swe.launch.extras import EMBEDDED, require
from slime_swe.launch.slime.checkouts import MEGATRON, SLIME, Checkout
from slime_swe.launch.slime.render import PYTHON
from slime_swe.recipes.base import Recipe

IMAGE = "run this inside the training image (docker/, launch/apptainer/), which holds the whole stack"
_SCRIPT = """
import json, importlib.metadata as m
print(json.dumps({d.metadata["Name"]: d.version for d in reversed([*m.distributions()])}))
"""


def check_sources(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """The checkouts that the job's PYTHONPATH names."""
    if _elsewhere(recipe):
        yield skipped("sources", _elsewhere(recipe))
        return
    yield _source("slime", SLIME, machine)
    yield _source("megatron", MEGATRON, machine)


def check_versions(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """The packages of the Python that the job starts."""
    if _elsewhere(recipe):
        yield skipped("versions", _elsewhere(recipe))
        return
    supported = packages()
    try:
        listed: dict[str, str] = json.loads(machine.ask(PYTHON, "-c", _SCRIPT))
    except (MachineError, ValueError) as error:
        yield failure("versions", f"{PYTHON} does not list its packages: {error}", IMAGE)
        return
    found = {canonicalize_name(name): version for name, version in listed.items()}
    missing = [name for name in supported if canonicalize_name(name) not in found]
    if missing:
        yield failure("versions", f"{', '.join(missing)} not installed in {PYTHON}", IMAGE)
    for name, support in supported.items():
        if name not in missing:
            fix = f"install {name}{support.tested}, or {IMAGE}"
            yield judged(name, found[canonicalize_name(name)], support, fix)


def check_packages(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """The packages of the extra that the embedded engine wants."""
    require(*EMBEDDED)
    yield ok("packages", ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers")))


def _elsewhere(recipe: Recipe) -> str:
    """Why the stack may be missing here; empty where it may not."""
    address = recipe.cluster.ray_address
    if address and not SLIME.find(os.environ).is_dir():
        return f"no SLiME here; the job goes to the cluster at {address}: run this on its nodes too"
    return ""


def _source(name: str, checkout: Checkout, machine: Machine) -> Finding:
    """SLiME's image patches its Megatron, so changed files are no reason to warn."""
    folder, tested = checkout.find(os.environ), checkout.commit
    if not (folder / checkout.mark).exists():
        fix = f"let {checkout.variable} name a checkout, or {IMAGE}"
        return failure(name, f"{folder / checkout.mark} is missing", fix)
    try:
        head = machine.ask("git", "-c", f"safe.directory={folder}", "-C", str(folder), "rev-parse", "HEAD").strip()
    except MachineError as error:
        return warning(name, f"{folder}, commit unknown: {error}", f"tested with {tested}: check that out, or {IMAGE}")
    if not head.startswith(tested):
        return warning(name, f"{folder} at {head[:9]}; tested at {tested[:9]}", f"check that out, or {IMAGE}")
    return ok(name, f"{folder} at {head[:9]}")


def judged(name: str, found: str, support: Support, fix: str) -> Finding:
    """A version against what is supported."""
    if not support.allows(found):
        return failure(name, f"{found}; it must be {support.required}", fix)
    return ok(name, found) if support.knows(found) else warning(name, f"{found}; tested with {support.tested}", fix)


@dataclass(frozen=True)
class Support:
    """required, tested: specifiers of PEP 440; empty allows any."""

    required: str
    tested: str

    def allows(self, version: str) -> bool:
        return _matches(version, self.required)

    def knows(self, version: str) -> bool:
        return _matches(version, self.tested)


def driver() -> Support:
    return Support(**_document()["driver"])


def packages() -> dict[str, Support]:
    """Name of a distribution -> what is supported of it."""
    return {name: Support(**entry) for name, entry in _document()["packages"].items()}


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(files("slime_swe.launch.doctor").joinpath("supported.toml").read_text(encoding="utf-8"))


def _matches(version: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
