"""The `overlay` backend: images as folders, an overlay over one for each sandbox, bubblewrap. Needs no daemon.

Without root it needs Linux 5.11 and unprivileged user namespaces. With a kernel before 6.6 the sandbox's writes are
then in the cache folder, without a limit. Without cgroups the memory limit holds per process, and for root the number
of processes is not limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import platform
import secrets
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.sandbox.base import Backend, SandboxError, SandboxSpec
from slime_swe.sandbox.bubblewrap import BUBBLEWRAP, Bubblewrap, Runner, confinement, why_no_filter
from slime_swe.sandbox.cache import cache_folder, disk_used, made_once, remove_tree
from slime_swe.sandbox.fork_server import Launcher
from slime_swe.sandbox.image import host as host_image
from slime_swe.sandbox.image.host import HOST_IMAGE
from slime_swe.sandbox.image.sandbox import Originals
from slime_swe.sandbox.overlay import cgroups
from slime_swe.sandbox.overlay.container import Host, OverlaySandbox, Root
from slime_swe.sandbox.overlay.root import Roots, with_layers
from slime_swe.sandbox.process_identity import is_dead, process_identity

_TMPFS_USER_ATTRIBUTES = (6, 6)  # the Linux that has them
_MEASURED = 16  # images, of tens of thousands of files each
_NET_ADMIN = 12  # the number of that capability


class OverlayBackend(Backend):
    """`image`: for tasks of files alone. `cache`: a folder for what is made once for each image."""

    takes_images = True
    takes_layers = True
    image_gib = 3.0
    shares_layers = False  # an image is a folder here
    removes_images = True
    requirements = BUBBLEWRAP
    name: ClassVar = "overlay"
    runner: ClassVar[type[Runner]] = Bubblewrap
    roots: ClassVar[type[Roots]] = Roots

    def __init__(self, image: str = HOST_IMAGE, *, cache: Path | None = None) -> None:
        self._default = Image(image)
        self._cache = cache
        self._owner = process_identity()
        self._name = secrets.token_hex(4)  # one process may have several of these
        self._numbers = itertools.count(1)
        self._host: Host | None = None
        self._roots: Roots | None = None

    async def start(self) -> None:
        """Look at the machine, once, and remove what dead runs left. Raises `UserError`, `SandboxError`."""
        if self._host is not None and not self._host.launcher.alive:
            await self.close()
        if self._roots is None:
            cache = self._cache or cache_folder()
            self._host = await asyncio.to_thread(look, self.name, cache, self._owner, self.runner)
            await asyncio.to_thread(self._sweep, cache)
            self._roots = self.roots(cache, self._host, self.keep_free)

    def open(self, spec: SandboxSpec) -> OverlaySandbox:
        """A sandbox to be entered. Raises `SandboxError` before `start`."""
        roots, host, wanted = self._roots, self._host, spec.image or self._default
        if roots is None or host is None:
            raise SandboxError("the sandbox backend has not been started")

        async def find() -> tuple[Root, Originals, int | None]:
            root, originals, held = await roots.find(wanted)
            with contextlib.ExitStack() as unless_found:
                if held is not None:
                    unless_found.callback(os.close, held)
                if spec.layers:
                    root = await asyncio.to_thread(with_layers, root, wanted, spec.layers)
                unless_found.pop_all()
            return root, originals, held

        scratch = None if host.tmpfs else self._scratch(host) / str(next(self._numbers))
        return OverlaySandbox(host, find, wanted, spec, scratch)

    async def close(self) -> None:
        """End every sandbox, and remove the groups and the scratch folder."""
        host, self._host, self._roots = self._host, None, None
        if host is not None:
            await asyncio.to_thread(host.launcher.close)
            if host.cgroups is not None:
                await asyncio.to_thread(host.cgroups.close)
            await asyncio.to_thread(remove_tree, self._scratch(host))
            with contextlib.suppress(OSError):  # not there, or another of this process is using it
                self._scratch(host).parent.rmdir()

    def fingerprint(self) -> Iterator[str]:
        yield from self._confinement()
        if self._default.name == HOST_IMAGE:
            yield from host_image.identity()

    def has_image(self, name: str) -> bool:
        return self.roots(self.image_folder()).has(name)

    def get_image(self, name: str) -> None:
        self.roots(self.image_folder()).get(name)

    def images_gib(self, names: Sequence[str]) -> float:
        """By the files of at most `_MEASURED` of them."""
        roots, looked_at = self.roots(self.image_folder()), names[:: max(1, len(names) // _MEASURED)]
        used = sum(disk_used(roots.unpacked(name)[0]) for name in looked_at)
        return used / 2**30 * len(names) / max(1, len(looked_at))

    def image_folder(self) -> Path:
        return self._cache or cache_folder()

    def make_image(self, name: str, add: Callable[[Path], None]) -> Image:
        def make(folder: Path) -> None:
            host_image.write_folder(folder)
            add(folder / "testbed")

        digest = host_image.digest()
        return Image(f"dir:{made_once((self._cache or cache_folder()) / f'{name}-{digest}', make)}")

    def _confinement(self) -> Iterator[str]:
        return confinement()

    def _scratch(self, host: Host) -> Path:
        return host.mount_point.parent / "scratch" / self._owner / self._name

    def _sweep(self, cache: Path) -> None:
        cgroups.sweep()
        for folder in (cache / "scratch").glob("*"):
            if is_dead(folder.name):
                remove_tree(folder)


def look(name: str, cache: Path, owner: str, kind: type[Runner]) -> Host:
    """What this machine has for backend `name`. Raises `UserError` where something needed is missing."""
    runner = kind.find()
    if reason := why_no_filter():
        raise UserError(f"{name} sandboxes can't be confined here: {reason}; set rollout.sandbox=docker")
    if shutil.which("unshare") is None:
        raise UserError(f"{name} sandboxes need unshare: apt-get install util-linux")
    mount_point = cache / "mnt"
    mount_point.mkdir(parents=True, exist_ok=True)
    root = os.geteuid() == 0 and _succeeds("unshare", "--mount", "true")
    if root and not _has_capability(_NET_ADMIN):
        raise UserError(
            f"{name} sandboxes of a root who may mount need CAP_NET_ADMIN too, to bring up each one's loopback: in a "
            "container, --cap-add NET_ADMIN or --privileged"
        )
    if not root and not _succeeds("unshare", "--user", "--map-root-user", "--mount", "true"):
        raise UserError(
            f"{name} sandboxes need root or unprivileged user namespaces: sudo sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), kernel.unprivileged_userns_clone=1 (Debian) or "
            "user.max_user_namespaces=10000; in a container, --privileged"
        )
    tmpfs = root or _linux() >= _TMPFS_USER_ATTRIBUTES
    return Host(Launcher(root=root), runner, mount_point, root, tmpfs, _groups(name, owner, root))


def _groups(name: str, owner: str, root: bool) -> cgroups.Cgroups | None:
    try:
        return cgroups.Cgroups(owner)
    except OSError as error:
        if root:
            warnings.warn(
                f"{name} sandboxes can have any number of processes: this user is root and has no cgroups ({error})",
                RuntimeWarning,
                stacklevel=2,
            )
        return None


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> number & 1)


def _linux() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
