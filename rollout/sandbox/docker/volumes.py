"""Layers as Docker has them: a named volume each, filled once from its folder and mounted read-only."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import os
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_swe.data_sources.task import Image
from slime_swe.rollout.sandbox.cache import locked
from slime_swe.rollout.sandbox.docker import client as docker_client
from slime_swe.rollout.sandbox.docker.client import errors
from slime_swe.rollout.sandbox.docker.images import Prepared
from slime_swe.rollout.sandbox.image import host as host_image
from slime_swe.rollout.sandbox.image.layers import Layer, find_layers, taken

LAYER_LABEL = "slime-swe.layer"


@dataclass(frozen=True)
class Volume:
    """name: of Docker's. place: where it belongs, absolute."""

    name: str
    place: str

    def mount(self, *, read_only: bool = True) -> Any:
        types: Any = importlib.import_module("docker.types")
        return types.Mount(self.place, self.name, type="volume", read_only=read_only, no_copy=True)


class Volumes:
    """Finds a layer's volume, or makes it: once in this process, and once on this machine.

    A volume is of a folder in one state: one that has changed gets a new volume in the next process. None is removed.
    """

    def __init__(self, client: Any, cache: Path) -> None:
        self._client = client
        self._cache = cache
        self._made: dict[Layer, Volume] = {}
        self._fitting: set[tuple[str, Layer]] = set()  # an image's id, and a layer whose folder it does not have
        self._locks: defaultdict[Layer, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def find(self, folders: Sequence[Path], image: Image, prepared: Prepared) -> tuple[Volume, ...]:
        """Raises `UserError` for what is no layer of this image, `DockerError`."""
        layers = await asyncio.to_thread(find_layers, folders, image)
        return tuple([await self._one(layer, image, prepared) for layer in layers])

    async def _one(self, layer: Layer, image: Image, prepared: Prepared) -> Volume:
        identity = prepared.identity
        async with self._locks[layer]:
            if (identity, layer) not in self._fitting:
                if await asyncio.to_thread(self._has, identity, str(layer.own)):
                    raise taken(layer, image)
                self._fitting.add((identity, layer))
            if layer not in self._made:
                self._made[layer] = await asyncio.to_thread(self._make, layer, identity)
        return self._made[layer]

    def _make(self, layer: Layer, identity: str) -> Volume:
        volume = Volume(f"slime-swe-layer-{_state(layer.folder, self._cache)}", str(layer.own))
        filled = self._cache / f"{volume.name}.filled"
        with locked(filled), errors(f"docker could not make a volume of {layer.folder}"):
            if not (filled.exists() and self._exists(volume.name)):
                filled.unlink(missing_ok=True)
                self._fill(volume, layer, identity)
                filled.touch()
        return volume

    def _has(self, identity: str, place: str) -> bool:
        """Whether an image has anything at this path."""
        with errors(f"docker could not look into {identity}"), self._container(identity, []) as container:
            try:
                pieces, _ = self._client.get_archive(container, place)
            except docker_client.not_found():
                return False
            pieces.close()
            return True

    def _exists(self, name: str) -> bool:
        try:
            self._client.inspect_volume(name)
        except docker_client.not_found():
            return False
        return True

    def _fill(self, volume: Volume, layer: Layer, identity: str) -> None:
        with contextlib.suppress(docker_client.not_found()):
            self._client.remove_volume(volume.name)  # half of one
        self._client.create_volume(volume.name, labels={LAYER_LABEL: str(layer.folder)})
        with (
            tempfile.TemporaryFile(dir=self._cache) as packed,
            self._container(identity, [volume.mount(read_only=False)]) as container,
        ):
            with tarfile.open(fileobj=packed, mode="w", errors="surrogateescape") as tar:
                tar.add(f"{layer.folder}{volume.place}", ".", filter=host_image.as_root)
            packed.seek(0)
            self._client.put_archive(container, volume.place, packed)

    @contextlib.contextmanager
    def _container(self, identity: str, mounts: list[Any]) -> Iterator[str]:
        """One that is not started."""
        made = self._client.create_container(
            identity,
            command=["true"],
            network_disabled=True,
            labels=docker_client.labels(),
            host_config=self._client.create_host_config(mounts=mounts),
        )["Id"]
        try:
            yield made
        finally:
            self._client.remove_container(made, force=True, v=True)


def _state(folder: Path, cache: Path) -> str:
    """A name for a folder's state, another one in another cache, without reading its files."""
    digest = hashlib.sha256(f"{cache.resolve()}\n{folder}\n".encode(errors="surrogateescape"))
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in (*folders, *sorted(names)):
            path = os.path.join(place, name)
            found = os.stat(path, follow_symlinks=False)
            state = f"{path} {found.st_mode} {found.st_size} {found.st_ctime_ns}\n"
            digest.update(state.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
