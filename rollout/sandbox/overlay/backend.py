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
from collections.abc import Callable, Iterator
from pathlib import Path

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.rollout.sandbox.base import Backend, SandboxError, SandboxSpec
from slime_swe.rollout.sandbox.bubblewrap import BUBBLEWRAP, Bubblewrap, Runner, confinement
from slime_swe.rollout.sandbox.cache import cache_folder, made_once, remove_tree
from slime_swe.rollout.sandbox.fork_server import Launcher
from slime_swe.rollout.sandbox.image import host as host_image
from slime_swe.rollout.sandbox.image.changes import Originals
from slime_swe.rollout.sandbox.image.host import HOST_IMAGE
from slime_swe.rollout.sandbox.overlay import cgroups
from slime_swe.rollout.sandbox.overlay.container import Host, OverlaySandbox, Root
from slime_swe.rollout.sandbox.overlay.root import Roots, with_layers
from slime_swe.rollout.sandbox.process_identity import ProcessIdentity

_OPTIONAL_FLAGS = ("--disable-userns",)  # of bubblewrap 0.8
_TMPFS_USER_ATTRIBUTES = (6, 6)  # the Linux that has them
_NET_ADMIN = 12  # the number of that capability


class OverlayBackend(Backend):
    """`image`: for tasks of files alone. `cache`: a folder for what is made once for each image."""

    takes_images = True
    takes_layers = True
    requirements = BUBBLEWRAP

    def __init__(self, image: str = HOST_IMAGE, *, cache: Path | None = None) -> None:
        self._default = Image(image)
        self._cache = cache
        self._owner = ProcessIdentity.current()
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
            self._host = await asyncio.to_thread(self._look, cache)
            await asyncio.to_thread(self._sweep, cache)
            self._roots = self._make_roots(cache, self._host)

    def open(self, spec: SandboxSpec) -> OverlaySandbox:
        """A sandbox to be entered. Raises `SandboxError` before `start`."""
        roots, host, wanted = self._roots, self._host, spec.image or self._default
        if roots is None or host is None:
            raise SandboxError("the sandbox backend has not been started")

        async def find() -> tuple[Root, Originals]:
            root, originals = await roots.find(wanted)
            return (await asyncio.to_thread(with_layers, root, wanted, spec.layers) if spec.layers else root), originals

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

    def make_image(self, name: str, add: Callable[[Path], None]) -> Image:
        def make(folder: Path) -> None:
            host_image.write_folder(folder)
            add(folder / "testbed")

        digest = host_image.digest()
        return Image(f"dir:{made_once((self._cache or cache_folder()) / f'{name}-{digest}', make)}")

    def _confinement(self) -> Iterator[str]:
        return confinement()

    def _look(self, cache: Path) -> Host:
        """What this machine has. Raises `UserError`, `SandboxError`."""
        return look("overlay", cache, self._owner, _find_bubblewrap)

    def _make_roots(self, cache: Path, host: Host) -> Roots:
        return Roots(cache, host)

    def _scratch(self, host: Host) -> Path:
        return host.mount_point.parent / "scratch" / str(self._owner) / self._name

    def _sweep(self, cache: Path) -> None:
        cgroups.sweep()
        for folder in (cache / "scratch").glob("*"):
            owner = ProcessIdentity.parse(folder.name)
            if owner is not None and owner.is_dead():
                remove_tree(folder)


def look(name: str, cache: Path, owner: ProcessIdentity, find_runner: Callable[[], Runner]) -> Host:
    """What this machine has for backend `name`. Raises `UserError` where something needed is missing."""
    runner = find_runner()
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


def _find_bubblewrap() -> Bubblewrap:
    if shutil.which("bwrap") is None:
        raise UserError(
            "overlay sandboxes need bubblewrap: apt-get install bubblewrap; without: rollout.sandbox=docker or "
            "apptainer, or local for tasks of files alone"
        )
    usage = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout
    return Bubblewrap(tuple(flag for flag in _OPTIONAL_FLAGS if flag in usage))


def _groups(name: str, owner: ProcessIdentity, root: bool) -> cgroups.Cgroups | None:
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
