"""Checks of the training stack's versions against the matrix that this project supports, `supported.toml`."""

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

from slime_swe.errors import UserError
from slime_swe.launch.doctor import Finding, Machine, MachineError, failure, ok, skipped, warning
from slime_swe.launch.engines import engine_of
from slime_swe.launch.extras import EMBEDDED, require
from slime_swe.launch.slime.checkouts import Checkout
from slime_swe.launch.slime.render import PYTHON
from slime_swe.launch.slime.upstream import SLIME, Upstream
from slime_swe.recipes.base import Recipe

_SCRIPT = """
import json, importlib.metadata as m
try:
    from sglang_router import __version__ as router
except ImportError:
    router = ""
print(json.dumps([{d.metadata["Name"]: d.version for d in reversed([*m.distributions()])}, router]))
"""
ROUTER, OF_SLIME = "sglang-router", "slime"  # what the `__version__` of SLiME's build holds, by its Dockerfile


def upstream_of(recipe: Recipe) -> Upstream:
    """Return the train loop of the recipe's engine. Raises `UserError` where it has none."""
    found = engine_of(recipe).upstream
    if found is None:
        raise UserError(f"engine={recipe.engine} names no train loop whose checkouts could be looked at")
    return found


def check_sources(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the checkouts that the job's PYTHONPATH names."""
    if _elsewhere(recipe):
        yield skipped("sources", _elsewhere(recipe))
        return
    upstream = upstream_of(recipe)
    for name, checkout in ((upstream.package, upstream.loop), ("megatron", upstream.megatron)):
        yield _source(name, checkout, _inside(upstream), machine)


def check_versions(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the packages of the Python that the job starts."""
    if _elsewhere(recipe):
        yield skipped("versions", _elsewhere(recipe))
        return
    upstream = upstream_of(recipe)
    supported, inside = packages(upstream), _inside(upstream)
    try:
        listed, router = json.loads(machine.ask(PYTHON, "-c", _SCRIPT))
    except (MachineError, ValueError) as error:
        yield failure("versions", f"{PYTHON} does not list its packages: {error}", inside)
        return
    found = {canonicalize_name(name): version for name, version in listed.items()}
    missing = [name for name in supported if canonicalize_name(name) not in found]
    if missing:
        yield failure("versions", f"{', '.join(missing)} not installed in {PYTHON}", inside)
    for name, support in supported.items():
        if name not in missing:
            finding = judged(
                name, found[canonicalize_name(name)], support, f"install {name}{support.tested}, or {inside}"
            )
            yield _fork(recipe, upstream, finding, router) if name == ROUTER else finding


def _fork(recipe: Recipe, upstream: Upstream, finding: Finding, version: str) -> Finding:
    """Return the router's finding, or a failure where the recipe needs the router of SLiME's build and this is another.
    What marks the build of another train loop is not known."""
    if upstream is not SLIME or OF_SLIME in version:
        return finding
    flags, replay = recipe.slime.flags, recipe.algorithm.routing_replay
    needed = [
        f"slime.flags.{key}={flags[key]}" for key in flags if flags[key] in SLIME.of_the_image.get(f"--{key}", ())
    ]
    needed += ["algorithm.routing_replay=rollout"] * (replay == "rollout")
    if not needed:
        return finding
    return failure(
        ROUTER,
        f"{version or finding.message} is not the build of SLiME's image, needed for {' and '.join(needed)}",
        f"install the wheel that SLiME's docker/Dockerfile names, change what needs it, or {_inside(SLIME)}",
    )


def check_packages(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the packages of the extra that the embedded engine wants."""
    require(*EMBEDDED)
    yield ok("packages", ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers")))


def _elsewhere(recipe: Recipe) -> str:
    """Say why the stack may be missing here; empty where it may not."""
    address, upstream = recipe.cluster.ray_address, upstream_of(recipe)
    if address and not upstream.loop.find(os.environ).is_dir():
        return f"no {upstream.title} here; the job goes to the cluster at {address}: run this on its nodes too"
    return ""


def _inside(upstream: Upstream) -> str:
    return f"run this inside {upstream.image}, which holds the whole stack"


def _source(name: str, checkout: Checkout, inside: str, machine: Machine) -> Finding:
    """Check a checkout and its commit. The image patches its Megatron, so changed files are no reason to warn."""
    folder, tested = checkout.find(os.environ), checkout.commit
    if not os.path.exists(folder / checkout.mark):  # `Path.exists` raises where a folder may not be searched
        fix = f"let {checkout.variable} name a checkout, or {inside}"
        return failure(name, f"{folder / checkout.mark} is missing", fix)
    try:
        head = machine.ask("git", "-c", f"safe.directory={folder}", "-C", str(folder), "rev-parse", "HEAD").strip()
    except MachineError as error:
        return warning(name, f"{folder}, commit unknown: {error}", f"tested with {tested}: check that out, or {inside}")
    if not head.startswith(tested):
        return warning(name, f"{folder} at {head[:9]}; tested at {tested[:9]}", f"check that out, or {inside}")
    return ok(name, f"{folder} at {head[:9]}")


def judged(name: str, found: str, support: Support, fix: str) -> Finding:
    """Compare a version with what is supported."""
    if not support.allows(found):
        return failure(name, f"{found}; it must be {support.required}", fix)
    return ok(name, found) if support.knows(found) else warning(name, f"{found}; tested with {support.tested}", fix)


@dataclass(frozen=True)
class Support:
    """The versions of a package or a driver that are required and tested: specifiers of PEP 440; empty allows any."""

    required: str
    tested: str

    def allows(self, version: str) -> bool:
        return _matches(version, self.required)

    def knows(self, version: str) -> bool:
        return _matches(version, self.tested)


def driver() -> Support:
    return Support(**_document()["driver"])


def packages(upstream: Upstream) -> dict[str, Support]:
    """Return the names of distributions, each with what is supported of it under this train loop."""
    return {name: Support(**entry) for name, entry in _document()["packages"][upstream.package].items()}


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(files("slime_swe.launch.doctor").joinpath("supported.toml").read_text(encoding="utf-8"))


def _matches(version: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
