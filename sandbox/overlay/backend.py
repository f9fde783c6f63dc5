"""The `overlay` backend: images as folders, an overlay over one for each sandbox, bubblewrap. Needs no daemon.

An image's name is a folder (`/path` or `dir:/path`), `host` for one made of this machine's own packages, or what Docker
calls it: that one is exported once, into the cache. An exported image is also found where there is no Docker any more:
the cache, or a copy of it on another machine, knows its name. `container` is one sandbox over such a folder.

Without root it needs Linux 5.11 and unprivileged user namespaces. With a kernel before 6.6 the sandbox's writes are
then in the cache folder, without a limit. Without cgroups the memory limit holds per process, and for root the number
of processes is not limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import itertools
import json
import os
import platform
import secrets
import shutil
import subprocess
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from slime_swe import files
from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.files import replace_file
from slime_swe.sandbox.base import Backend, Limits, SandboxError, SandboxSpec
from slime_swe.sandbox.bubblewrap import BUBBLEWRAP, Bubblewrap, Runner, confinement, why_no_filter
from slime_swe.sandbox.cache import (
    Room,
    cache_folder,
    disk_used,
    is_dead,
    locked,
    made_once,
    process_identity,
    remove_tree,
)
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.image import host as host_image
from slime_swe.sandbox.image.host import HOST_IMAGE
from slime_swe.sandbox.image.layers import Layer, find_layers, taken
from slime_swe.sandbox.image.sandbox import HISTORY, Originals
from slime_swe.sandbox.overlay import cgroups
from slime_swe.sandbox.overlay.container import Host, Launcher, OverlaySandbox, Root

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # so that two runs with one seed see the same output
}
_TRIES = 3  # to find an image that others remove meanwhile
_MAKING = Limits(600, 600.0, 8 << 30, 8 << 30, 8 << 30, 256)
_MAX_BYTES = 3000  # of the names of all lower directories: a mount's options are a page
_TMPFS_USER_ATTRIBUTES = (6, 6)  # the Linux that has them
_MEASURED = 16  # images, of tens of thousands of files each
_NET_ADMIN = 12  # the number of that capability


class Roots:
    """Keeps images as folders on disk, with no later history in their repositories.

    Finds an image there, or puts it there: once in this process, and once on this machine.
    """

    def __init__(self, cache: Path, host: Host | None = None, keep_free: float = 0.0) -> None:
        """Keep images in the folder `cache`. host: what runs the script that cuts an image's history; without it,
        images are only looked for and got. keep_free: see `FolderRoom`.
        """
        self._cache = cache
        self._host = host
        self._room = FolderRoom(cache, keep_free)
        self._known: dict[tuple[str, str], tuple[Root, Originals]] = {}
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def find(self, image: Image) -> tuple[Root, Originals, int | None]:
        """Find an image. Returns its root, its original files, and a descriptor to be closed when it is no longer used:
        until then nothing removes the image. The descriptor is None where nothing would. Raises `UserError` for a name
        that leads nowhere, `SandboxError` where it can't be unpacked.
        """
        key = (image.name, image.folder)
        async with self._locks[key]:
            for _ in range(_TRIES):
                if key not in self._known:
                    self._known[key] = await asyncio.to_thread(self._find, image)
                root, originals = self._known[key]
                self._room.used(image.name)
                base = Path(root.layers[-1])
                if base.parent.parent != self._cache:  # no image that was unpacked
                    return root, originals, None
                held = await asyncio.to_thread(hold, base.parent)
                if all(os.path.isdir(layer) for layer in root.layers):
                    return root, originals, held
                os.close(held)
                del self._known[key]
        raise SandboxError(f"the image {image.name} was removed as often as it was unpacked: the disk is too full")

    def _find(self, image: Image) -> tuple[Root, Originals]:
        try:
            base, environment = self.unpacked(image.name)
            repository = Path(f"{base}{image.folder}")
            _check(image, base, repository)
            root = Root((str(base),), {**ENVIRONMENT, **environment})
            if os.path.lexists(repository / ".git"):
                layer = self._history_layer(root, image.folder, base, repository)
                self._room.made(image.name, str(layer.parent))
                root = Root((str(layer), str(base)), root.environment)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"the image {image.name} could not be unpacked: {error}") from error
        return root, Originals(repository)

    def unpacked(self, name: str) -> tuple[Path, Mapping[str, str]]:
        """Return an image's folder of files, and its environment. Raises `UserError` where there is no such folder."""
        folder = name.removeprefix("dir:")
        if folder.startswith("/"):
            if not os.path.isdir(folder):
                raise UserError(f"the image {name} is no folder on this machine")
            return Path(folder), {}
        if name == HOST_IMAGE:
            place = made_once(self._cache / f"host-{host_image.digest()}", host_image.write_folder)
            return place, {}
        place = self._exported(name) or self._room.unpacked(name, functools.partial(self._export, name))
        return place / "root", json.loads((place / "environment.json").read_text(encoding="utf-8"))

    def has(self, name: str) -> bool:
        """Say whether an image lies on this disk already."""
        folder = name.removeprefix("dir:")
        if folder.startswith("/"):
            return os.path.isdir(folder)
        return name == HOST_IMAGE or self._exported(name) is not None

    def get(self, name: str) -> None:
        """Put an image on this disk. Raises `UserError`, `SandboxError`."""
        try:
            self.unpacked(name)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"the image {name} could not be unpacked: {error}") from error

    def _exported(self, name: str) -> Path | None:
        """Return the folder that a Docker image was exported to: the image that Docker has under this name now, else
        the last one. None where there is none.
        """
        identity = docker_client.find(name) if docker_client.answers() else None
        if identity is not None:
            place = self._cache / identity.replace(":", "-")
        elif self._named(name).is_file():
            place = self._cache / self._named(name).read_text(encoding="utf-8")
        else:
            return None
        return place if place.is_dir() else None

    def _export(self, name: str) -> Path:
        """Export an image from Docker, which pulls it if need be; the cache keeps its name."""
        identity = docker_client.identify(name)
        place = made_once(self._cache / identity.replace(":", "-"), functools.partial(_export, identity))
        self._named(name).parent.mkdir(exist_ok=True)
        replace_file(self._named(name), place.name.encode())
        return place

    def _named(self, name: str) -> Path:
        """Return the path of the file that says which folder of the cache an image is exported to."""
        return self._cache / "names" / hashlib.sha256(name.encode()).hexdigest()[:16]

    def _history_layer(self, root: Root, folder: str, base: Path, repository: Path) -> Path:
        """Make a layer over the image, once, in which the repository has no later history."""
        script = HISTORY.read_text(encoding="utf-8")
        times = [f"{file}{_changed(file)}" for file in (base, repository / ".git", *(repository / ".git").glob("*"))]
        name = hashlib.sha256("\n".join([script, folder, *sorted(times)]).encode()).hexdigest()[:16]
        make = functools.partial(self._cut_history, root, folder, script)
        return made_once(self._cache / f"history-{name}", make) / "upper"

    def _cut_history(self, root: Root, folder: str, script: str, place: Path) -> None:
        asyncio.run(self._run_once(root, Image(root.layers[-1], folder), script, place))
        remove_tree(place / "work")

    async def _run_once(self, root: Root, image: Image, script: str, place: Path) -> None:
        """Run a script in the image, and keep what it writes."""

        async def itself() -> tuple[Root, Originals, None]:
            return root, Originals(place / "none"), None

        assert self._host is not None, "made to look for images only"
        spec = SandboxSpec({}, _MAKING)
        async with OverlaySandbox(self._host, itself, image, spec, place, keep=True) as sandbox:
            result = await sandbox.exec(script)
        if result.exit_code != 0:
            raise SandboxError(
                f"the later history of {image.name}{image.folder} could not be removed (exit code {result.exit_code}): "
                f"{result.output}"
            )


class OverlayBackend(Backend):
    """A backend that lays an overlay over an image's folder for each sandbox. `image`: for tasks of files alone.
    `cache`: a folder for what is made once for each image.
    """

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
        """Return a sandbox to be entered. Raises `SandboxError` before `start`."""
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
        """Estimate the GiB by the files of fewer than twice `_MEASURED` of the images."""
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
    """Find what this machine has for backend `name`, and start the launcher. Raises `UserError` for what is missing."""
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


class FolderRoom(Room):
    """Unpacked images that may go when their disk is nearly full.

    A process that has a sandbox of an image holds a lock on its folder, which ends with the process at the latest;
    what any process of this machine holds stays.

    Not covered: what Docker or Apptainer keeps of an image that was unpacked, and machines that share the cache folder
    over a file system without locks.
    """

    def __init__(self, cache: Path, keep_free: float) -> None:
        super().__init__(cache / "unpacked", keep_free)
        self._cache = cache

    def unpacked(self, name: str, unpack: Callable[[], Path]) -> Path:
        """Return the folder that `unpack` puts an image into, with room made for it before. Blocks."""
        self.make(self._cache)
        place = unpack()
        self.got(name)
        self.made(name, str(place))
        return place

    def remove(self, name: str, made: Sequence[str]) -> bool:
        """Remove an image as `Room.remove` does. made: the image's folder, and those of what was made of it."""
        place, *others = map(Path, made)
        try:
            with files.locked(_use_of(place), wait=False):
                for folder in (*others, place):
                    with locked(folder):
                        _remove_at_once(folder)
        except BlockingIOError:
            return False
        return True


def hold(place: Path) -> int:
    """Return a descriptor: until it is closed, the image's folder is in use. Blocks while the folder is removed."""
    descriptor = os.open(_use_of(place), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _use_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.use")


def _remove_at_once(folder: Path) -> None:
    """Remove a folder; a process that is killed meanwhile leaves no half under its name (see `cache.made_once`)."""
    half = folder.with_name(f"{folder.name}.half")
    remove_tree(half)
    if folder.exists():
        folder.rename(half)
        remove_tree(half)


def _check(image: Image, base: Path, repository: Path) -> None:
    if any(character in str(base) for character in ":,\\\n"):
        raise UserError(f"an image's folder can't have ':', ',' or a backslash in its path, as {base} has")
    if os.path.realpath(repository) != os.path.join(os.path.realpath(base), image.folder.strip("/")):
        raise UserError(f"{image.folder} is reached by a link in the image {image.name}: name the folder itself")


def _changed(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat(follow_symlinks=False).st_mtime_ns
    return 0


def _export(identity: str, place: Path) -> None:
    """Unpack a Docker image's files and environment. Devices are left out; owners too, where this user can't set them.
    Raises `SandboxError`.
    """
    root = place / "root"
    root.mkdir()
    owners = [] if os.geteuid() == 0 else ["--no-same-owner"]
    command = [
        "tar",
        "-xf",
        "-",
        "-C",
        str(root),
        "--numeric-owner",
        "--exclude=dev/*",
        "--exclude=.dockerenv",
        *owners,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for piece in docker_client.export(identity):
            process.stdin.write(piece)
        process.stdin.close()
        if process.wait() != 0:
            raise SandboxError(f"the image {identity} could not be unpacked into {root}")
    hosts = root / "etc" / "hosts"
    if not hosts.exists() or not hosts.read_bytes():  # Docker mounts its own over it
        hosts.parent.mkdir(exist_ok=True)
        hosts.write_text("127.0.0.1 localhost\n::1 localhost\n", encoding="ascii")
    (place / "environment.json").write_text(json.dumps(docker_client.environment(identity)), encoding="utf-8")


def with_layers(root: Root, image: Image, folders: Sequence[Path]) -> Root:
    """Return the root with the layers over it. Raises `UserError` for what is no layer, or does not fit the image."""
    layers = find_layers(folders, image)
    for layer in layers:
        if any(character in str(layer.folder) for character in ":,\\\n"):
            raise UserError(f"a layer can't have ':', ',' or a backslash in its path, as {layer.folder} has")
        if any(_has(Path(lower), layer) for lower in root.layers):
            raise taken(layer, image)
    lowers = (*(str(layer.folder) for layer in layers), *root.layers)
    if sum(len(os.fsencode(lower)) + 1 for lower in lowers) > _MAX_BYTES:
        raise UserError(f"the paths of {len(layers)} layers and the image have more than {_MAX_BYTES} bytes")
    return dataclasses.replace(root, layers=lowers)


def _has(lower: Path, layer: Layer) -> bool:
    """Say whether a folder of the image's has what the layer is to add, or something else than folders above it."""
    place = lower
    for part in layer.own.parts[1:-1]:
        place /= part
        if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
            return True
    return os.path.lexists(lower / layer.own.relative_to("/"))
