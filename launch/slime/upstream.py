"""`Upstream`: the train loop that a job runs, SLiME or its fork, and what differs between the two."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from slime_swe.errors import UserError
from slime_swe.launch.slime import checkouts
from slime_swe.launch.slime.checkouts import Checkout, Checkouts
from slime_swe.launch.slime.manifest import Attributes, Flag, Manifest, load_manifest
from slime_swe.recipes.base import Recipe


class Adapted(Protocol):
    def __call__(
        self, found: dict[str, Attributes], recipe: Recipe, folder: Path, *, resume: bool
    ) -> dict[str, Attributes]:
        """Turn SLiME's sections of a run in `folder` into those of this train loop."""
        ...


def as_they_are(found: dict[str, Attributes], recipe: Recipe, folder: Path, *, resume: bool) -> dict[str, Attributes]:
    return found


@dataclass(frozen=True, eq=False)  # each is one object
class Upstream:
    """A train loop with SLiME's hooks.

    package: its name in Python, that of the engine that runs it, and that of the folder in `launch/` with its flags.
    title: as its authors write it.
    loop, megatron: its checkout, and that of the Megatron-LM that it is made for.
    image: the container image that holds it with all that it needs, in words.
    commands: how a person gets both checkouts.
    adapted: what it has otherwise of the attributes that SLiME's `args` get (`render.sections`).
    renamed: `slime.flags` by SLiME's names -> by its own, where it has them under another.
    of_the_image: choices of its flags that its image has and PyPI's packages lack, which the manifest is made from.
    """

    package: str
    title: str
    loop: Checkout
    megatron: Checkout
    image: str
    commands: str
    adapted: Adapted = as_they_are
    renamed: Mapping[str, str] = field(default_factory=dict)
    of_the_image: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def manifest(self) -> Manifest:
        """The train loop's flags, at the commits that `loop` and `megatron` name."""
        return load_manifest(self.package, self.title, self.of_the_image)

    def own_name(self, name: str) -> str:
        """Return the train loop's own name of the flag that `slime.flags` names so."""
        return self.renamed.get(name, name)

    def flag(self, name: str) -> Flag | None:
        """Return the flag that `slime.flags` names so; None where there is none."""
        return self.manifest.flags.get(f"--{self.own_name(name)}")

    def checkouts(self, environment: Mapping[str, str] = os.environ) -> Checkouts:
        return Checkouts(self.loop.find(environment), self.megatron.find(environment))

    def require(self, environment: Mapping[str, str] = os.environ) -> None:
        """Raise `UserError`, with the commands that make both checkouts, where one of them is not there."""
        for checkout in (self.loop, self.megatron):
            mark = checkout.find(environment) / checkout.mark
            if not os.path.exists(mark):  # `Path.exists` raises where a folder on the way may not be searched
                raise UserError(
                    f"{mark} is missing: engine={self.package} runs {self.title}'s own train.py. Run it in "
                    f"{self.image}, let {checkout.variable} name a checkout, or {self.commands}"
                )


SLIME = Upstream(
    "slime",
    "SLiME",
    checkouts.SLIME,
    checkouts.MEGATRON,
    "the training image (docker/, launch/apptainer/)",
    checkouts.COMMANDS,
    # The image's router is a fork of SLiME's authors (docker/Dockerfile).
    of_the_image={"--router-policy": ("consistent_hashing",)},
)
