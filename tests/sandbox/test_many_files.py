"""Many files in few messages, as they would be read and written one by one."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slime_swe.sandbox.base import Limits, Sandbox
from slime_swe.sandbox.guest.files import MAX_FILE_BYTES
from slime_swe.sandbox.many_files import FEW, read_many, write_many
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import FILES

LIMITS = Limits(disk_bytes=128 << 20)  # files may be larger than what is read at once
COUNT = 3_000
MANY = {f"d{number % 50}/{'deep/' * (number % 3)}f{number}.txt": b"%d\n" % number for number in range(COUNT)}
ODD = {"-": b"a", "-rf": b"", "a\nb": b"\0\xff", "\udcff": b"x", " é ": b"1", "d0/'\"$x": b"2", "./y": b"3"}


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with pool.open(FILES, LIMITS) as sandbox:
        yield sandbox


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of the files that this makes in a sandbox's /tmp, which without isolation is the machine's own."""
    made: list[str] = []
    random = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda count: made.append(random(count)) or made[-1])
    return made


async def left(sandbox: Sandbox, names: list[str]) -> str:
    """What there still is of these."""
    assert names
    places = " ".join(f"/tmp/.{name} /tmp/.{name}.d" for name in names)
    return (await sandbox.exec(f"ls -d {places} 2>/dev/null")).output


class Counted:
    """A sandbox, and how often each of its methods is called."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._sandbox, name)


async def test_thousands_of_files_are_written_and_read_in_a_few_messages(pool: SandboxPool, names: list[str]) -> None:
    files = {**MANY, **ODD}
    async with pool.open({"d0/f0.txt": "old", "run.sh": "echo old", "-": "old"}, LIMITS) as sandbox:
        await sandbox.exec("chmod 755 run.sh")
        counted = Counted(sandbox)
        await write_many(counted, {**files, "run.sh": b"echo new"})
        assert await read_many(counted, files.keys()) == files
        assert counted.calls.total() <= 8
        assert (await sandbox.exec("./run.sh")).output == "new\n", "a file keeps its mode"
        assert (await sandbox.exec("find d* -type f | wc -l")).output == f"{COUNT + 1}\n"
        assert await left(sandbox, names) == ""


async def test_large_files_are_read_and_written_in_messages_of_a_bounded_size(sandbox: Sandbox) -> None:
    files = {f"f{number}": bytes([number]) * (MAX_FILE_BYTES // 3) for number in range(FEW + 1)}
    files["most"] = b"x" * (MAX_FILE_BYTES - 20_000)
    await write_many(sandbox, files)
    assert await read_many(sandbox, files.keys()) == files


@pytest.mark.parametrize("count", [1, FEW + 1])
async def test_what_is_wrong_is_an_error(sandbox: Sandbox, names: list[str], count: int) -> None:
    more = {f"more{number}": b"" for number in range(count - 1)}
    for path in ("", "a\0b", "\ud800", "x" * 300, "/".join(["y" * 200] * 30), "hello.txt/x", "pkg"):
        with pytest.raises(OSError):
            await write_many(sandbox, {path: b"x", **more})
    await write_many(sandbox, more)
    for path in ("none", "pkg/none"):
        with pytest.raises(OSError):
            await read_many(sandbox, [path, *more])
    await sandbox.exec(f"head -c {MAX_FILE_BYTES + 1} /dev/zero >large")
    with pytest.raises(OSError):
        await read_many(sandbox, ["large", *more])
    assert count == 1 or await left(sandbox, names) == ""


async def test_what_can_not_be_unpacked_is_written_by_itself(sandbox: Sandbox) -> None:
    long = "/".join(["z" * 200] * 20)  # of more bytes than could be opened from another folder
    files = {**{f"f{number}": b"1" for number in range(FEW + 1)}, f"{long[:4010]}": b"2", "pkg/../up": b"3"}
    await write_many(sandbox, files)
    assert await read_many(sandbox, files.keys()) == files
