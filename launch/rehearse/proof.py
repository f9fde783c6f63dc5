"""Remembers that a recipe's rehearsal on GPUs has passed, for this code, recipe, image and driver.

An outcome is kept in the cache folder by its fingerprint, whether it passed or not; one that did not is made again. The
fingerprint is of the node that a run starts on. Not covered: the other nodes of a cluster, plug-ins of the user's own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

import slime_swe
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import cache_folder, keep_in_cache
from slime_swe.launch.doctor.versions import packages
from slime_swe.launch.rehearse.platforms import platform_of
from slime_swe.launch.rehearse.platforms.gpu import GpuPlatform, versions
from slime_swe.launch.rehearse.rehearsal import Outcome, document, figure, rehearse
from slime_swe.launch.rehearse.toy import scaled, shape_keys, toy_config
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.base import Recipe

SUFFIXES = (".py", ".sh", ".toml", ".json", ".jinja")
GO_ON = "to start the run all the same: --no-rehearsal"


def require_rehearsal(recipe: Recipe) -> None:
    """Rehearse the recipe on this node's GPUs unless that has passed before.

    Raises `UserError` where the node lacks what it needs or a check fails, and `InfrastructureError` where a part of it
    ends in an error. Each says how to go on without.
    """
    try:
        platform = platform_of("gpu")
        assert isinstance(platform, GpuPlatform)
        facts = fingerprint(recipe, platform, SLIME.checkouts())
    except UserError as error:
        raise UserError(f"{error}; {GO_ON}") from error
    require_passed(recipe, facts, partial(rehearse, recipe, platform))


def require_passed(recipe: Recipe, facts: Mapping[str, Any], play: Callable[[Path], Outcome]) -> None:
    """Play the rehearsal, unless it has passed with these facts before. play: makes it in a folder.

    Raises `UserError` where a check fails, and `InfrastructureError` where the rehearsal ends in an error.
    """
    kept = kept_at(recipe, facts)
    if passed(kept):
        return
    folder = Path(recipe.run.dir) / f"rehearsal-{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    print(f"rehearsing {recipe.name} on this machine's GPUs, once for this version, in {folder}", file=sys.stderr)
    try:
        outcome = play(folder)
    except InfrastructureError as error:
        raise InfrastructureError(f"the rehearsal of {recipe.name} ended in an error; {GO_ON}\n{error}") from error
    keep(outcome, facts, kept)
    if not outcome.ok:
        raise UserError(refusal(outcome, folder))


def fingerprint(recipe: Recipe, platform: GpuPlatform, checkouts: Checkouts) -> dict[str, Any]:
    """Return what a rehearsal's outcome depends on: a change of any of it asks for a new one.

    Only what is rehearsed of the recipe counts: its length, its tasks and its name do not.
    """
    config = shape_keys(toy_config(recipe.model, platform), recipe.model)
    small = scaled(recipe, platform, Path("toy"), config, Path("runs"))
    small = dataclasses.replace(small, name="", description="", hardware="")
    gpus = platform.gpus
    return {
        "code": digest(Path(slime_swe.__file__).parent),
        "recipe": hashlib.sha256(json.dumps(dataclasses.asdict(small), sort_keys=True).encode()).hexdigest(),
        "slime": digest(checkouts.loop),
        "megatron": digest(checkouts.megatron),
        "packages": versions(packages(SLIME)),
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "driver": gpus[0].driver,
        "gpus": [gpu.name for gpu in gpus],
    }


def digest(root: Path) -> str:
    """Hash the source files below a folder by content and place. In our checkout, packages are links beside it."""
    folders = [root, *(path for path in root.iterdir() if path.is_symlink() and path.is_dir())]
    found = hashlib.sha256()
    for folder in sorted(folders):
        for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()):
            found.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def kept_at(recipe: Recipe, facts: Mapping[str, Any]) -> Path:
    """Return the path at which the outcome of this fingerprint is kept."""
    short = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    return cache_folder("rehearsals") / f"{recipe.name}-{short}.json"


def passed(kept: Path) -> bool:
    return kept.is_file() and json.loads(kept.read_bytes())["ok"] is True


def keep(outcome: Outcome, facts: Mapping[str, Any], kept: Path) -> None:
    """Keep an outcome. Where the folder can't be written, the next start rehearses again."""
    content = json.dumps({**document(outcome), "fingerprint": facts}, indent=2).encode()
    keep_in_cache(kept, content, "the rehearsal's outcome", "the next start makes it again")


def refusal(outcome: Outcome, folder: Path) -> str:
    """Say what failed, for the person whose run is refused."""
    failed = [check for check in outcome.checks if check.ok is False]
    lines = "\n".join(
        f"  {one.name}: {figure(one.value)}, limit {figure(one.limit)}; look at {one.look_at}" for one in failed
    )
    return (
        f"the rehearsal of {outcome.recipe} on this machine's GPUs fails:\n{lines}\n{folder} keeps its logs. The next "
        f"start rehearses again; {GO_ON}"
    )
