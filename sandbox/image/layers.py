"""`Layer`: a folder of the host that sandboxes see, read-only and shared, over their image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError


@dataclass(frozen=True)
class Layer:
    """A layer that sandboxes see over their image. folder: holds a tree as seen from /. own: its first folder that
    holds anything other than one subfolder.

    `own` is what the layer adds to an image, which must not have it. So a mount there, as in Docker, and an overlay
    show the same files.
    """

    folder: Path
    own: PurePosixPath


def find_layers(folders: Sequence[Path], image: Image) -> tuple[Layer, ...]:
    """Find each folder's layer. Raises `UserError` where it has none, or it overlaps another or the repository."""
    layers = tuple(map(_find, folders))
    repository = PurePosixPath(image.folder)
    for number, layer in enumerate(layers):
        if _overlap(layer.own, repository):
            raise UserError(f"the layer {layer.folder} adds {layer.own}, where the repository {repository} is")
        for other in layers[:number]:
            if _overlap(layer.own, other.own):
                raise UserError(
                    f"the layers {other.folder} and {layer.folder} add {other.own} and {layer.own}: "
                    "each needs a folder that is its own"
                )
    return layers


def taken(layer: Layer, image: Image) -> UserError:
    """Return the error for an image that has a layer's folder, or a link on the way to it."""
    return UserError(
        f"the layer {layer.folder} adds {layer.own}, which the image {image.name} has already: "
        "put what it holds into a folder of its own, such as opt/agents/NAME"
    )


def _find(folder: Path) -> Layer:
    if not folder.is_dir():
        raise UserError(f"the layer {folder} is no folder on this machine")
    place = folder = folder.resolve()
    while len(entries := list(os.scandir(place))) == 1 and entries[0].is_dir(follow_symlinks=False):
        place = Path(entries[0])
    if not entries or place == folder:
        raise UserError(
            f"the layer {folder} holds {sorted(entry.name for entry in entries)}: it must hold a tree as seen from /, "
            "in one folder, such as opt/agents/NAME"
        )
    return Layer(folder, PurePosixPath("/", place.relative_to(folder)))


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
