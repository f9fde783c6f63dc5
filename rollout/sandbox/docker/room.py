"""`DockerRoom`: the images of a Docker daemon that may go when its disk is nearly full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slime_swe.rollout.sandbox.cache import remove_tree
from slime_swe.rollout.sandbox.docker import client as docker_client
from slime_swe.rollout.sandbox.room import Room

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
