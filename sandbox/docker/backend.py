"""The `docker` backend: a container for each sandbox, with limits, without network, by the Docker SDK.

`Images` prepares what a container starts from: the image is pulled, the later history of its repository cut, and its
original files are copied to the host. `WarmPool` keeps containers started ahead of need. `container` is one sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import tarfile
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from slime_swe.data_sources.task import Image
from slime_swe.sandbox.base import Backend, Limits, Requirement, SandboxError, SandboxSpec
from slime_swe.sandbox.bubblewrap import CAPABILITIES
from slime_swe.sandbox.cache import Room, cache_folder, is_dead, locked, made_once, remove_tree
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker.client import NOT_FOUND, OWNER_LABEL, DockerError, call, errors
from slime_swe.sandbox.docker.container import DockerSandbox, Started, as_file, remove, start
from slime_swe.sandbox.guest import counters, seccomp
from slime_swe.sandbox.image import host as host_image
from slime_swe.sandbox.image.driver import ShellDied, driver_command
from slime_swe.sandbox.image.host import HOST_IMAGE
from slime_swe.sandbox.image.layers import Layer, find_layers, taken
from slime_swe.sandbox.image.sandbox import HISTORY, NO_HISTORY, Originals, is_tracked

_REST = 1.0  # seconds from when a started container is taken until another one is started in its place
# Docker's own paths come first (moby's oci/defaults.go, version 28), since any list of ours replaces them; then what
# tells of the whole machine.
_MASKED = [
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
    "/sys/firmware", "/proc/fs", "/proc/pressure", *counters.places(),
]  # fmt: skip
DEFAULTS = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}  # where the image doesn't say; two runs see the same output
PREPARED = "slime-swe/prepared"  # images without later history
_HOST = "slime-swe/host"
_SCRIPT_SECONDS = 600
_IN_USE = 409  # the daemon's answer where a container has the image, or another image is made of it

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class DockerBackend(Backend):
    """A backend that runs each sandbox in a container of Docker. image: for tasks with files only. warm: number of
    containers that are kept started, over all images. cpus: of each container.

    network: the name of one of Docker's networks, for use in a backend of your own: a function that returns a
    `DockerBackend` with it.
    """

    takes_images = True
    takes_layers = True
    removes_images = True
    requirements = (
        Requirement(
            "docker",
            ("docker", "version", "--format", "{{.Server.Version}}"),
            "install docker.io",
            "the daemon does not answer: start it (`sudo systemctl start docker`) and be in the group docker",
            fatal=True,
        ),
    )

    def __init__(
        self,
        image: str = HOST_IMAGE,
        *,
        warm: int = 4,
        cpus: float | None = None,
        network: str = "none",
        cache: Path | None = None,
    ) -> None:
        self._default = Image(image)
        self._cpus = cpus
        self._network = network
        self._cache = cache
        self._client: Any = None
        self._security: list[str] = []
        self._images: Images | None = None
        self._warm: WarmPool[tuple[str, str, Limits, tuple[Layer, ...]], Started] = WarmPool(warm, self._discard, _REST)

    async def start(self) -> None:
        """Find the daemon, once, and remove what dead runs left. Raises `UserError`, `DockerError`."""
        if self._images is None:
            self._client = await asyncio.to_thread(docker_client.connect)
            self._security = await call("docker does not tell what it is", _security, self._client)
            await self._sweep()
            self._images = Images(self._client, self._cache or cache_folder(), self.keep_free)

    def open(self, spec: SandboxSpec) -> DockerSandbox:
        """Return a sandbox to be entered. Raises `SandboxError` before `start`."""
        images, wanted = self._images, spec.image or self._default
        if images is None:
            raise SandboxError("the sandbox backend has not been started")

        async def take() -> Started:
            prepared = await images.find(wanted)
            layers = await asyncio.to_thread(images.layers, spec.layers, wanted, prepared) if spec.layers else ()
            key = (wanted.name, wanted.folder, spec.limits, layers)
            return await self._warm.take(key, lambda: self._make(prepared, wanted.folder, spec.limits, layers))

        return DockerSandbox(self._client, take, wanted, spec)

    async def close(self) -> None:
        """Remove the warm containers; every sandbox must have been left."""
        self._images = None
        await self._warm.close()

    def fingerprint(self) -> Iterator[str]:
        named = "" if self._default.name == HOST_IMAGE else self._default.name
        yield from docker_client.confinement(named)
        if not named:
            yield from host_image.identity()

    def has_image(self, name: str) -> bool:
        return name == HOST_IMAGE or docker_client.find(name) is not None

    def get_image(self, name: str) -> None:
        if name != HOST_IMAGE:
            docker_client.identify(name)

    def images_gib(self, names: Sequence[str]) -> float:
        """Add the layers that each image has alone to those that several images of the daemon have, as far as these
        have such.

        The sum is an upper bound: Docker does not say which images share a layer.
        """
        wanted = {docker_client.find(name) for name in names}
        with errors("docker does not tell what its images take"):
            used = docker_client.connect().df()
        images: list[dict[str, Any]] = used["Images"] or []
        alone = {image["Id"]: image["Size"] - image["SharedSize"] for image in images}
        shared = sum(image["SharedSize"] for image in images if image["Id"] in wanted)
        own = sum(size for name, size in alone.items() if name in wanted)
        return float(own + min(shared, used["LayersSize"] - sum(alone.values()))) / 2**30

    def image_folder(self) -> Path | None:
        with errors("docker does not tell where it keeps images"):
            folder = Path(docker_client.connect().info()["DockerRootDir"])
        return folder if folder.is_dir() else None

    def make_image(self, name: str, add: Callable[[Path], None]) -> Image:
        tag = f"{name}:{host_image.digest()}"
        if docker_client.find(tag) is None:
            host_image.import_tag(tag, add=add)
        return Image(tag)

    async def _make(self, prepared: Prepared, folder: str, limits: Limits, layers: tuple[Layer, ...]) -> Started:
        """Create and start a container. Raises `DockerError`, and `SandboxError` where its driver does not come up."""
        made = await call("docker could not create a container", self._create, prepared, folder, limits, layers)
        try:
            return made, await start(self._client, made), prepared.originals
        except ShellDied as error:
            await asyncio.shield(remove(self._client, made))
            raise SandboxError(f"a container of {prepared.identity} did not start: {error}") from error
        except BaseException:
            await asyncio.shield(remove(self._client, made))
            raise

    def _create(self, prepared: Prepared, folder: str, limits: Limits, layers: tuple[Layer, ...]) -> str:
        host = self._client.create_host_config(
            network_mode=self._network,
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,
            pids_limit=limits.processes + 1,  # the driver is one
            nano_cpus=None if self._cpus is None else int(self._cpus * 1e9),
            cap_drop=["ALL"],
            cap_add=list(CAPABILITIES),
            security_opt=self._security,
            mounts=[docker_client.bind(f"{layer.folder}{layer.own}", str(layer.own)) for layer in layers] or None,
            log_config={"type": "none"},  # what commands print is not kept a second time
        )
        host["MaskedPaths"] = _MASKED  # which the SDK has no argument for
        program, *arguments = driver_command(limits, folder, bounded=True)
        made = self._client.create_container(
            prepared.identity,
            entrypoint=[program],
            command=arguments,
            environment={**DEFAULTS, **prepared.environment},
            use_config_proxy=False,
            stdin_open=True,  # and once: where this process dies, the driver sees its end
            working_dir="/",
            hostname="sandbox",
            healthcheck={"test": ["NONE"]},
            labels=docker_client.labels(),
            host_config=host,
        )
        return str(made["Id"])

    async def _discard(self, started: Started) -> None:
        started[1].close()
        await remove(self._client, started[0])

    async def _sweep(self) -> None:
        """Remove the containers of owners that are dead."""
        listed = await call(
            "docker could not list containers", self._client.containers, all=True, filters={"label": OWNER_LABEL}
        )
        dead = [container["Id"] for container in listed if is_dead(container["Labels"][OWNER_LABEL])]
        with contextlib.suppress(DockerError):  # another run may be sweeping too
            await asyncio.gather(*(remove(self._client, container) for container in dead))


def _security(client: Any) -> list[str]:
    """Return the security options of containers. A daemon whose machine our filter does not know applies its own."""
    info = client.info()
    options = ["no-new-privileges"]
    if seccomp.supports(info["Architecture"]):
        options.append(f"seccomp={json.dumps(seccomp.profile(info['Architecture']))}")
    return options


@dataclass(frozen=True)
class Prepared:
    """An image that sandboxes start from. identity: its id. environment: what it asks for."""

    identity: str
    environment: Mapping[str, str]
    originals: Originals


class Images:
    """Finds an image, or makes it: once in this process, and once on this machine."""

    def __init__(self, client: Any, cache: Path, keep_free: float = 0.0) -> None:
        """Pass `keep_free` on to `DockerRoom`."""
        self._client = client
        self._cache = cache
        self._room = DockerRoom(client, cache, keep_free)
        self._known: dict[tuple[str, str], Prepared] = {}
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fitting: set[tuple[str, Layer]] = set()  # an image's id, and a layer whose folder it does not have

    async def find(self, image: Image) -> Prepared:
        """Prepare the image, or return what was prepared before. Raises `DockerError`, `SandboxError`; `UserError` for
        the host's own image where there can be none.
        """
        key = (image.name, image.folder)
        async with self._locks[key]:
            known = self._known.get(key)
            if known is None or await asyncio.to_thread(self._room.has_gone, known.identity):
                known = self._known[key] = await asyncio.to_thread(self._find, image)
        self._room.used(image.name)
        return known

    def layers(self, folders: Sequence[Path], image: Image, prepared: Prepared) -> tuple[Layer, ...]:
        """Find the folders' layers. Blocks. Raises `DockerError`; `UserError` for what is no layer of this image."""
        layers = find_layers(folders, image)
        for layer in layers:
            if (prepared.identity, layer) not in self._fitting:
                if self._has(prepared.identity, str(layer.own)):
                    raise taken(layer, image)
                self._fitting.add((prepared.identity, layer))
        return layers

    def _has(self, identity: str, place: str) -> bool:
        """Say whether an image has anything at this path."""
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
        """Return the id of the image without later history; of `source` where the repository has none."""
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
        """Copy the regular files below `folder`; none where there is no such folder."""
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


class DockerRoom(Room):
    """The images that may go when the daemon's disk is nearly full. A daemon on another machine removes none.

    Not covered: an image that is removed between the look for it and the start of its container, which fails the
    episode as infrastructure does.
    """

    def __init__(self, client: Any, cache: Path, keep_free: float) -> None:
        super().__init__(cache / "pulled", keep_free)
        self._client = client

    def pulled(self, name: str) -> str:
        """Return the id of the image, which is pulled where it isn't here, with room made for it before. Blocks."""
        if self._keep_free and docker_client.find(name) is None:
            with errors("docker does not tell where it keeps images"):
                disk = Path(self._client.info()["DockerRootDir"])
            if disk.is_dir():
                self.make(disk)
            identity = docker_client.identify(name)
            self.got(name)
            return identity
        return docker_client.identify(name)

    def has_gone(self, identity: str) -> bool:
        """Say whether an image that was here has been removed, by whatever process."""
        return bool(self._keep_free) and docker_client.find(identity) is None

    def remove(self, name: str, made: Sequence[str]) -> bool:
        """Remove an image as `Room.remove` does. made: other images, and folders of the cache."""
        for each in (*(each for each in made if not each.startswith("/")), name):
            try:
                with errors(f"docker could not remove {each}"):
                    self._client.remove_image(each)
            except DockerError as error:
                if error.status == _IN_USE:
                    return False
                if error.status != NOT_FOUND:
                    raise
        for folder in (each for each in made if each.startswith("/")):
            remove_tree(Path(folder))
        return True


class WarmPool(Generic[K, T]):
    """Makes things ahead of need that take long to make: at most `most`, of the kinds that were requested last. Each
    one that is taken is replaced in the background.

    So a group of episodes on one image finds its containers started. None is kept for images that are no longer
    requested. rest: seconds until one is replaced, so that what it was taken for begins on a quiet machine.
    """

    def __init__(self, most: int, discard: Callable[[T], Awaitable[None]], rest: float = 0.0) -> None:
        self._most = most
        self._rest = rest
        self._discard = discard
        self._ready: OrderedDict[K, list[T]] = OrderedDict()  # the kind asked for last at the end
        self._tasks: set[asyncio.Task[Any]] = set()
        self._making = 0
        self._closed = asyncio.Event()

    async def take(self, kind: K, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return one of this kind, ready or made now. Raises what `make` raises."""
        self._closed.clear()
        ready = self._ready.setdefault(kind, [])
        self._ready.move_to_end(kind)
        thing = ready.pop() if ready else None
        self._spawn(self._replace(kind, make))
        if thing is not None:
            return thing
        making = self._spawn(make())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._spawn(self._discard_made(making))
            raise

    async def close(self) -> None:
        """Discard all, those being made too."""
        self._closed.set()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        ready, self._ready = self._ready, OrderedDict()
        await asyncio.gather(*(self._discard(thing) for things in ready.values() for thing in things))

    async def _discard_made(self, making: asyncio.Task[T]) -> None:
        await self._discard(await making)

    def _count(self) -> int:
        return sum(map(len, self._ready.values())) + self._making

    async def _replace(self, kind: K, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Make one more of this kind. If all places are taken, it replaces one of the kind that was requested longest
        ago.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), self._rest)
        if self._closed.is_set():
            return
        if self._count() >= self._most:
            oldest = next((things for other, things in self._ready.items() if things and other != kind), None)
            if oldest is None:
                return
            await self._discard(oldest.pop())
        self._making += 1
        try:
            thing = await make()
        finally:
            self._making -= 1
        self._ready.setdefault(kind, []).append(thing)

    def _spawn(self, work: Coroutine[Any, Any, V]) -> asyncio.Task[V]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who next needs one meets the same error
