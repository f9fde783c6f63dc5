"""`Images`: Docker images as sandboxes use them: here, without later history, their files known to the host."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_swe.data_sources.task import Image
from slime_swe.rollout.sandbox.base import SandboxError
from slime_swe.rollout.sandbox.cache import locked
from slime_swe.rollout.sandbox.docker import client as docker_client
from slime_swe.rollout.sandbox.docker.changes import as_file
from slime_swe.rollout.sandbox.docker.client import errors
from slime_swe.rollout.sandbox.image import host as host_image
from slime_swe.rollout.sandbox.image.changes import Originals, is_tracked
from slime_swe.rollout.sandbox.image.container import HISTORY, NO_HISTORY
from slime_swe.rollout.sandbox.image.host import HOST_IMAGE

PREPARED = "slime-swe/prepared"  # images without later history
_HOST = "slime-swe/host"
_SCRIPT_SECONDS = 600


class TarOriginals:
    """The `Originals` in a tar file on the host."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._places: dict[str, tuple[int, int]] = {}  # offset, size
        with tarfile.open(path, errors="surrogateescape") as tar:
            for entry in tar:
                place = (entry.offset_data, entry.size)
                self._places[entry.name] = self._places[entry.linkname] if entry.islnk() else place

    def paths(self) -> Set[str]:
        return self._places.keys()

    def size(self, path: str) -> int:
        return self._places.get(path, (0, 0))[1]

    def read(self, path: str) -> bytes | None:
        if path not in self._places:
            return None
        offset, size = self._places[path]
        return os.pread(self._file.fileno(), size, offset)


@dataclass(frozen=True)
class Prepared:
    """An image that sandboxes start from. source, identity: its id, before and after. environment: what it asks for."""

    source: str
    identity: str
    environment: Mapping[str, str]
    originals: Originals


class Images:
    """Finds an image, or makes it: once in this process, and once on this machine."""

    def __init__(self, client: Any, cache: Path) -> None:
        self._client = client
        self._cache = cache
        self._known: dict[tuple[str, str], Prepared] = {}
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def find(self, image: Image) -> Prepared:
        """Raises `DockerError`, `SandboxError`; `UserError` for the host's own image where there can be none."""
        key = (image.name, image.folder)
        async with self._locks[key]:
            if key not in self._known:
                self._known[key] = await asyncio.to_thread(self._find, image)
        return self._known[key]

    def _find(self, image: Image) -> Prepared:
        name = self._host_image() if image.name == HOST_IMAGE else image.name
        source = docker_client.identify(name)
        folder = image.folder.rstrip("/")
        script = HISTORY.read_text(encoding="utf-8")
        key = hashlib.sha256("\n".join([source, folder, script]).encode()).hexdigest()[:16]
        packed = self._cache / f"originals-{key}.tar"
        with locked(packed):
            identity = self._without_history(source, folder, script, key)
            if not packed.exists():
                self._pack_originals(identity, folder, packed)
        return Prepared(source, identity, docker_client.environment(source), TarOriginals(packed))

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

    def _pack_originals(self, identity: str, folder: str, packed: Path) -> None:
        half = packed.with_suffix(".half")
        with errors(f"docker could not read {identity}"):
            container = self._client.create_container(
                identity, command=["true"], network_disabled=True, labels=docker_client.labels()
            )["Id"]
            try:
                self._copy_tracked(container, folder, half)
            finally:
                self._client.remove_container(container, force=True, v=True)
        half.rename(packed)

    def _copy_tracked(self, container: str, folder: str, packed: Path) -> None:
        """The regular files below `folder`, by relative path; none where there is no such folder."""
        pieces: Iterable[bytes] = ()
        with contextlib.suppress(docker_client.not_found()):
            pieces, _ = self._client.get_archive(container, folder)
        with tarfile.open(packed, "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as to:
            if not pieces:
                return
            with tarfile.open(fileobj=as_file(pieces), mode="r|", errors="surrogateescape") as source:
                for entry in source:
                    entry.name = entry.name.partition("/")[2]
                    if is_tracked(entry.name) and (entry.isreg() or entry.islnk()):
                        entry.linkname = entry.linkname.partition("/")[2]
                        to.addfile(entry, source.extractfile(entry) if entry.isreg() else None)
