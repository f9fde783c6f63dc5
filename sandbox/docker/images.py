"""`Images`: Docker images prepared for sandboxes: pulled, without later history, their original files known to the
host.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slime_swe.data_sources.task import Image
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.cache import Room, locked, made_once, remove_tree
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker.client import errors
from slime_swe.sandbox.docker.container import as_file
from slime_swe.sandbox.image import host as host_image
from slime_swe.sandbox.image.host import HOST_IMAGE
from slime_swe.sandbox.image.layers import Layer, find_layers, taken
from slime_swe.sandbox.image.sandbox import HISTORY, NO_HISTORY, Originals, is_tracked

PREPARED = "slime-swe/prepared"  # images without later history
_HOST = "slime-swe/host"
_SCRIPT_SECONDS = 600


@dataclass(frozen=True)
class Prepared:
    """An image that sandboxes start from. identity: its id. environment: what it asks for."""

    identity: str
    environment: Mapping[str, str]
    originals: Originals


class Images:
    """Finds an image, or makes it: once in this process, and once on this machine."""

    def __init__(self, client: Any, cache: Path, keep_free: float = 0.0) -> None:
        """keep_free: see `DockerRoom`."""
        self._client = client
        self._cache = cache
        self._room = DockerRoom(client, cache, keep_free)
        self._known: dict[tuple[str, str], Prepared] = {}
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fitting: set[tuple[str, Layer]] = set()  # an image's id, and a layer whose folder it does not have

    async def find(self, image: Image) -> Prepared:
        """Raises `DockerError`, `SandboxError`; `UserError` for the host's own image where there can be none."""
        key = (image.name, image.folder)
        async with self._locks[key]:
            known = self._known.get(key)
            if known is None or await asyncio.to_thread(self._room.has_gone, known.identity):
                known = self._known[key] = await asyncio.to_thread(self._find, image)
        self._room.used(image.name)
        return known

    def layers(self, folders: Sequence[Path], image: Image, prepared: Prepared) -> tuple[Layer, ...]:
        """Blocks. Raises `UserError` for what is no layer of this image, `DockerError`."""
        layers = find_layers(folders, image)
        for layer in layers:
            if (prepared.identity, layer) not in self._fitting:
                if self._has(prepared.identity, str(layer.own)):
                    raise taken(layer, image)
                self._fitting.add((prepared.identity, layer))
        return layers

    def _has(self, identity: str, place: str) -> bool:
        """Whether an image has anything at this path."""
        with errors(f"docker could not look into {identity}"), docker_client.created(identity) as container:
            try:
                pieces, _ = self._client.get_archive(container, place)
            except docker_client.not_found():
                return False
            pieces.close()
            return True

    def _find(self, image: Image) -> Prepared:
        source = (
            docker_client.identify(self._host_image()) if image.name == HOST_IMAGE else self._room.pulled(image.name)
        )
        folder = image.folder.rstrip("/")
        script = HISTORY.read_text(encoding="utf-8")
        key = hashlib.sha256("\n".join([source, folder, script]).encode()).hexdigest()[:16]
        with locked(self._cache / f"prepared-{key}"):
            identity = self._without_history(source, folder, script, key)
        originals = made_once(self._cache / f"originals-{key}", partial(self._copy_tracked, identity, folder))
        self._room.made(image.name, *([] if identity == source else [f"{PREPARED}:{key}"]), str(originals.absolute()))
        return Prepared(identity, docker_client.environment(source), Originals(originals))

    def _host_image(self) -> str:
        name = f"{_HOST}:{host_image.digest()}"
        with locked(self._cache / name.replace("/", "-").replace(":", "-")):
            if docker_client.find(name) is None:
                host_image.import_tag(name)
        return name

    def _without_history(self, source: str, folder: str, script: str, name: str) -> str:
        """The id of the image without later history; of `source` where the repository has none."""
        tag = f"{PREPARED}:{name}"
        none = self._cache / f"no-history-{name}"
        if none.exists():
            return source
        if docker_client.find(tag) is None:
            with errors(f"docker could not prepare {source}"):
                if not self._commit_without_history(source, folder, script, name):
                    none.touch()
                    return source
        return docker_client.identify(tag)

    def _commit_without_history(self, source: str, folder: str, script: str, name: str) -> bool:
        container = self._client.create_container(
            source,
            entrypoint=["bash", "-c", script],
            command=[],
            working_dir=folder,
            user="0",
            network_disabled=True,
            use_config_proxy=False,
            labels=docker_client.labels(),
        )["Id"]
        try:
            self._client.start(container)
            code = self._client.wait(container, timeout=_SCRIPT_SECONDS)["StatusCode"]
            if code not in (0, NO_HISTORY):
                said = self._client.logs(container)[-2000:].decode("utf-8", "replace")
                raise SandboxError(f"the later history of {source}{folder} could not be removed ({code}): {said}")
            if code == 0:
                self._client.commit(container, repository=PREPARED, tag=name)
            return bool(code == 0)
        finally:
            self._client.remove_container(container, force=True, v=True)

    def _copy_tracked(self, identity: str, folder: str, to: Path) -> None:
        """The regular files below `folder`; none where there is no such folder."""
        with (
            errors(f"docker could not read {identity}"),
            docker_client.created(identity) as container,
            contextlib.suppress(docker_client.not_found()),
        ):
            pieces, _ = self._client.get_archive(container, folder)
            with tarfile.open(fileobj=as_file(pieces), mode="r|", errors="surrogateescape") as tar:
                for entry in tar:
                    place = to / entry.name.partition("/")[2]
                    if not is_tracked(entry.name.partition("/")[2]) or not (entry.isreg() or entry.islnk()):
                        continue
                    place.parent.mkdir(parents=True, exist_ok=True)
                    if entry.islnk():
                        os.link(to / entry.linkname.partition("/")[2], place)
                    elif (content := tar.extractfile(entry)) is not None:
                        with place.open("wb") as file:
                            shutil.copyfileobj(content, file)


# `DockerRoom`: the images of a Docker daemon that may go when its disk is nearly full.
_IN_USE = 409  # the daemon's answer where a container has the image, or another image is made of it


class DockerRoom(Room):
    """A daemon on another machine removes none.

    Not covered: an image that is removed between the look for it and the start of its container, which fails the
    episode as infrastructure does.
    """

    def __init__(self, client: Any, cache: Path, keep_free: float) -> None:
        super().__init__(cache / "pulled", keep_free)
        self._client = client

    def pulled(self, name: str) -> str:
        """The id of the image, which is pulled where it isn't here, with room made for it before. Blocks."""
        if self._keep_free and docker_client.find(name) is None:
            with docker_client.errors("docker does not tell where it keeps images"):
                disk = Path(self._client.info()["DockerRootDir"])
            if disk.is_dir():
                self.make(disk)
            identity = docker_client.identify(name)
            self.got(name)
            return identity
        return docker_client.identify(name)

    def has_gone(self, identity: str) -> bool:
        """Whether an image that was here has been removed, by whatever process."""
        return bool(self._keep_free) and docker_client.find(identity) is None

    def remove(self, name: str, made: Sequence[str]) -> bool:
        """made: other images, and folders of the cache."""
        for each in (*(each for each in made if not each.startswith("/")), name):
            try:
                with docker_client.errors(f"docker could not remove {each}"):
                    self._client.remove_image(each)
            except docker_client.DockerError as error:
                if error.status == _IN_USE:
                    return False
                if error.status != docker_client.NOT_FOUND:
                    raise
        for folder in (each for each in made if each.startswith("/")):
            remove_tree(Path(folder))
        return True
