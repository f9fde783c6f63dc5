"""`Room`: keeps a disk from filling up with images, by removing those that a run has pulled and used longest ago."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from slime_swe.files import replace_file
from slime_swe.rollout.sandbox.cache import locked, remove_tree
from slime_swe.rollout.sandbox.docker import client as docker_client

_IN_USE = 409  # the daemon's answer where a container has the image, or another image is made of it
_log = logging.getLogger(__name__)


class Room:
    """keep_free: GiB of the disk that the daemon's images are on; 0 removes none.

    The cache folder has a file for each image that was pulled by a run with this on, by any of this machine's; when it
    was used last is the file's time. What somebody else has pulled stays, as does what a container has.

    Not covered: what else fills the disk; and an image that is removed between the look for it and the start of its
    container, which fails the episode as infrastructure does.
    """

    def __init__(self, client: Any, cache: Path, keep_free: float) -> None:
        self._client, self._folder, self._keep_free = client, cache / "pulled", keep_free

    def pulled(self, name: str) -> str:
        """The id of the image, which is pulled where it isn't here, with room made for it before. Blocks."""
        if self._keep_free and docker_client.find(name) is None:
            self._make()
            identity = docker_client.identify(name)
            with locked(self._folder):
                self._folder.mkdir(exist_ok=True)
                replace_file(self._file(name), name.encode())
            self.used(name)
            return identity
        return docker_client.identify(name)

    def made(self, name: str, *what: str) -> None:
        """Note what was made of an image: other images, which go before it, and folders of the cache."""
        if not self._keep_free:
            return
        with locked(self._folder), suppress(FileNotFoundError):
            lines = self._file(name).read_text(encoding="utf-8").splitlines()
            replace_file(self._file(name), "\n".join(dict.fromkeys((*lines, *what))).encode())

    def used(self, name: str) -> None:
        if not self._keep_free:
            return
        with suppress(FileNotFoundError):
            os.utime(self._file(name), ns=(now := time.time_ns(), now))  # the kernel's own clock is coarser

    def has_gone(self, identity: str) -> bool:
        """Whether an image that was here has been removed, by whatever process."""
        return bool(self._keep_free) and docker_client.find(identity) is None

    def _make(self) -> None:
        with docker_client.errors("docker does not tell where it keeps images"):
            folder = Path(self._client.info()["DockerRootDir"])
        if not folder.is_dir():
            return  # on another machine
        with locked(self._folder):
            for file in self._oldest():
                if free_gib(folder) >= self._keep_free:
                    return
                self._remove(file)
            if free_gib(folder) < self._keep_free:
                _log.warning("%s has %.0f GiB free, and no image is left to remove", folder, free_gib(folder))

    def _oldest(self) -> Iterator[Path]:
        records = (file for file in self._folder.glob("*") if not file.name.startswith("."))  # one is half written
        return iter(sorted(records, key=lambda file: file.stat().st_mtime_ns))

    def _remove(self, file: Path) -> None:
        name, *made = file.read_text(encoding="utf-8").splitlines()
        folders = [Path(each) for each in made if each.startswith("/")]
        for each in (*(each for each in made if not each.startswith("/")), name):
            try:
                with docker_client.errors(f"docker could not remove {each}"):
                    self._client.remove_image(each)
            except docker_client.DockerError as error:
                if error.status == _IN_USE:
                    return
                if error.status != docker_client.NOT_FOUND:
                    raise
        for folder in folders:
            remove_tree(folder)
        file.unlink()
        _log.info("removed the image %s, as the disk is nearly full", name)

    def _file(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:16]


def free_gib(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 2**30
