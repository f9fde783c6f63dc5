from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from _pytest.mark import ParameterSet

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.sandbox.base import Limits, Sandbox, SandboxError
from slime_swe.sandbox.bubblewrap import ForkServerError, children
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.image_support import docker_image, overlay_image, remove_docker_images
from tests.sandbox.nobody import Nobody
from tests.sandbox.ray.cluster import RayNodes

FILES = {"hello.txt": "hello\n", "pkg/mod.py": "def f():\n    return 1\n", "data.bin": b"\x00\xff"}
LIMITS = Limits(wall_seconds=20.0, memory_bytes=256 << 20, file_bytes=4 << 20, disk_bytes=16 << 20, processes=24)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for the whole folder: starting a fork server for each test would cost more than the tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


async def working_pool(backend: str) -> SandboxPool:
    """Skips where the backend does not work on this machine."""
    pool = SandboxPool(backend, concurrency=8, limits=LIMITS)
    try:
        await pool._backend.start()
    except (ForkServerError, UserError, SandboxError) as error:
        await pool.close()
        pytest.skip(f"{backend} sandboxes do not work here: {error}")
    return pool


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache folder, for what is made once for an image."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def nobody() -> Iterator[Nobody]:
    if reason := Nobody.why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:  # below pytest's own folder nobody else may look
        yield Nobody.at(Path(folder))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def contained_pool() -> AsyncIterator[SandboxPool]:
    async with await working_pool("bubblewrap") as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plain_pool() -> AsyncIterator[SandboxPool]:
    async with await working_pool("subprocess") as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def overlay_pool(cache: Path) -> AsyncIterator[SandboxPool]:
    async with await working_pool("overlay") as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def docker_pool(cache: Path) -> AsyncIterator[SandboxPool]:
    async with await working_pool("docker") as pool:
        yield pool
    async with SandboxPool("docker") as pool:  # as the next run, of what tests have killed
        await pool.start()
    remove_docker_images()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def remote_pool(contained_pool: SandboxPool) -> AsyncIterator[SandboxPool]:
    """Each sandbox with a SWE-ReX server of its own, in a bubblewrap."""
    pytest.importorskip("swerex", reason="SWE-ReX is not installed: pip install 'slime-swe[remote]'")
    async with await working_pool("tests.sandbox.remote_support.own_servers") as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def apptainer_pool(cache: Path) -> AsyncIterator[SandboxPool]:
    async with await working_pool("apptainer") as pool:
        yield pool


@pytest.fixture(scope="session")
def ray_nodes(cache: Path) -> Iterator[RayNodes]:
    """A Ray cluster of two nodes, both on this machine, which this process has joined."""
    with RayNodes(2) as nodes:
        yield nodes


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ray_pool(contained_pool: SandboxPool, ray_nodes: RayNodes) -> AsyncIterator[SandboxPool]:
    async with await working_pool("ray:bubblewrap") as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ray_overlay_pool(overlay_pool: SandboxPool, ray_nodes: RayNodes) -> AsyncIterator[SandboxPool]:
    async with await working_pool("ray:overlay") as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ray_docker_pool(docker_pool: SandboxPool, ray_nodes: RayNodes) -> AsyncIterator[SandboxPool]:
    async with await working_pool("ray:docker") as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ray_apptainer_pool(apptainer_pool: SandboxPool, ray_nodes: RayNodes) -> AsyncIterator[SandboxPool]:
    async with await working_pool("ray:apptainer") as pool:
        yield pool


_NAPS = itertools.count()
POOLS = {
    "bubblewrap": "contained_pool",
    "subprocess": "plain_pool",
    "overlay": "overlay_pool",
    "docker": "docker_pool",
    "apptainer": "apptainer_pool",
    "remote": "remote_pool",
    "ray:bubblewrap": "ray_pool",
    "ray:overlay": "ray_overlay_pool",
    "ray:docker": "ray_docker_pool",
    "ray:apptainer": "ray_apptainer_pool",
}
# Each family of executors runs once by default: the fork server, the shell in an image. The others of a family are the
# matrix; so is SWE-ReX, as each of its sandboxes starts a server: by default it runs in test_remote alone. Those of Ray
# wait for a cluster: by default they run in tests/sandbox/ray alone.
DEFAULT = ("bubblewrap", "overlay")


def of(*names: str) -> list[ParameterSet]:
    return [pytest.param(name, marks=_marks(name)) for name in names]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    group = [pytest.mark.xdist_group("ray")] if name.startswith("ray:") else []  # one cluster a machine at a time
    return group + ([] if name in DEFAULT else [pytest.mark.extended("sandbox backends")])


FORKING = of("bubblewrap", "subprocess")
IMAGES = of("overlay", "docker", "apptainer", "ray:overlay", "ray:docker", "ray:apptainer")
LAYERED = of("overlay", "apptainer")
CONFINED = of("bubblewrap", "overlay", "apptainer", "docker", "ray:bubblewrap", "ray:overlay")


@pytest.fixture(params=of(*POOLS))
def pool(request: pytest.FixtureRequest) -> SandboxPool:
    """Tests that take this run once for each backend: all conform to one suite."""
    pool: SandboxPool = request.getfixturevalue(POOLS[request.param])
    return pool


@pytest.fixture(params=FORKING)
def forking_pool(request: pytest.FixtureRequest) -> SandboxPool:
    """Those that fork their sandboxes from a fork server."""
    pool: SandboxPool = request.getfixturevalue(POOLS[request.param])
    return pool


@pytest.fixture(params=IMAGES)
def image_pool(request: pytest.FixtureRequest) -> SandboxPool:
    """Those that run a task's image."""
    pool: SandboxPool = request.getfixturevalue(POOLS[request.param])
    return pool


@pytest.fixture(scope="session")
def images(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    return {}


@pytest.fixture
def image(
    image_pool: SandboxPool,
    images: dict[str, Image],
    cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Image:
    """One with a repository, for the backend that `image_pool` is of."""
    backend = request.node.callspec.params["image_pool"]
    if backend not in images:
        folder = tmp_path_factory.mktemp("image") / "root"
        images[backend] = docker_image(folder) if backend.endswith("docker") else overlay_image(cache, folder)
    return images[backend]


@pytest.fixture(params=LAYERED)
def layered_pool(request: pytest.FixtureRequest) -> SandboxPool:
    """Those that mount an overlay over an image's folder."""
    pool: SandboxPool = request.getfixturevalue(POOLS[request.param])
    return pool


@pytest.fixture(params=CONFINED)
def confined_pool(request: pytest.FixtureRequest) -> SandboxPool:
    """Those on this machine that the kernel confines."""
    pool: SandboxPool = request.getfixturevalue(POOLS[request.param])
    return pool


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with pool.open(FILES) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="session")
async def forked(forking_pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with forking_pool.open(FILES) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="session")
async def imaged(image_pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with image_pool.open(FILES) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="session")
async def contained(contained_pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with contained_pool.open(FILES) as sandbox:
        yield sandbox


def require_here(pool: SandboxPool) -> None:
    """Skips where a test can't look into the backend's own objects: those of Ray's nodes are in other processes."""
    if pool._backend.wraps:
        pytest.skip("its sandboxes are objects of another process")


def kill_fork_server(pool: SandboxPool) -> None:
    process = pool._backend._server._process  # type: ignore[attr-defined]
    for pid in [*children(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def _command_lines() -> Iterator[str]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                yield (folder / "cmdline").read_bytes().decode("utf-8", "replace")


@pytest.fixture
def nap() -> str:
    """Seconds to sleep, as no other process of this machine does, another run of the tests included."""
    return f"1000.{os.getpid()}{next(_NAPS)}"


@pytest.fixture
def count_processes() -> Callable[[str], int]:
    """How many processes of this machine, in whatever pid namespace, have this text in their command line."""
    return lambda text: sum(text in line for line in _command_lines())
