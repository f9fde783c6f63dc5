from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollout.sandbox.base import Limits, Sandbox
from rollout.sandbox.local import LocalBackend
from rollout.sandbox.nursery import NurseryError
from rollout.sandbox.pool import SandboxPool

FILES = {"hello.txt": "hello\n", "pkg/mod.py": "def f():\n    return 1\n", "data.bin": b"\x00\xff"}
LIMITS = Limits(wall_seconds=20.0, memory_bytes=256 << 20, file_bytes=4 << 20, disk_bytes=16 << 20, processes=24)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for the whole folder: starting a nursery for each test would cost more than the tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


async def working_pool(backend: str) -> SandboxPool:
    if backend == "bubblewrap":
        probe = LocalBackend(contained=True)
        try:
            await probe.start()
        except NurseryError as error:
            pytest.skip(f"bubblewrap does not work here: {error}")
        finally:
            await probe.close()
    return SandboxPool(backend, concurrency=8, limits=LIMITS)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def contained_pool() -> AsyncIterator[SandboxPool]:
    async with await working_pool("bubblewrap") as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plain_pool() -> AsyncIterator[SandboxPool]:
    async with await working_pool("subprocess") as pool:
        yield pool


@pytest.fixture(params=["bubblewrap", "subprocess"])
def pool(request: pytest.FixtureRequest) -> SandboxPool:
    """Tests that take this run once for each backend: the fallback conforms to the same suite."""
    pool: SandboxPool = request.getfixturevalue("contained_pool" if request.param == "bubblewrap" else "plain_pool")
    return pool


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with pool.open(FILES) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="session")
async def contained(contained_pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with contained_pool.open(FILES) as sandbox:
        yield sandbox


def _command_lines() -> Iterator[str]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                yield (folder / "cmdline").read_bytes().decode("utf-8", "replace")


@pytest.fixture
def count_processes() -> Callable[[str], int]:
    """How many processes of this machine, in whatever pid namespace, have this text in their command line."""
    return lambda text: sum(text in line for line in _command_lines())
