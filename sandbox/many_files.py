"""Read and write many files of a sandbox in few messages: each costs a round trip, which in a container takes some
milliseconds, and a patch may name thousands of files.

Commands of the sandbox do it: `tar` and `cp`, `stat` and `cat`, by `xargs`. So this is for sandboxes in which no code
of a policy has run yet.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import posixpath
import secrets
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping

from slime_swe.sandbox.base import ExecResult, Sandbox
from slime_swe.sandbox.guest.files import MAX_FILE_BYTES

FEW = 8  # files that are read or written one by one: several together take about as long
_SECONDS = 300.0
_LONGEST_PATH = 4000  # bytes; a longer one can't be opened from another folder
_SHOWN = 500  # characters of what a command said
# Copied over what is there: a file that exists keeps its mode, as it does where it is written by itself.
_UNPACK = "mkdir {0}.d && tar -xf {0} -C {0}.d --no-same-owner && cp -R {0}.d/. ."
_SIZES = "xargs -0 -r stat -L -c %s -- <{0}"
_JOIN = "xargs -0 -r cat -- <{0} >{0}.d"
_CLEAN = "; code=$?; rm -rf {0} {0}.d; exit $code"


async def write_many(sandbox: Sandbox, files: Mapping[str, bytes]) -> None:
    """Write the files, as `Sandbox.write_file` does each; none may be behind a link. Raises `OSError`; some may be
    written then.
    """
    many = {path: content for path, content in files.items() if _is_plain(path)}
    if len(many) <= FEW:
        many = {}
    for path, content in files.items():
        if path not in many:
            await sandbox.write_file(path, content)
    for batch in _batches((path, len(content)) for path, content in many.items()):
        packed = await asyncio.to_thread(as_tar, {path: files[path] for path in batch})
        name = _new_name()
        await sandbox.write_file(name, packed)
        _require(await sandbox.exec((_UNPACK + _CLEAN).format(name), timeout=_SECONDS))


async def read_many(sandbox: Sandbox, paths: Collection[str]) -> dict[str, bytes]:
    """Read each path as `Sandbox.read_file` does; all must be regular files. Raises `OSError`."""
    if len(paths) <= FEW:
        return {path: await sandbox.read_file(path) for path in paths}
    name = _new_name()
    await sandbox.write_file(name, null_terminated(paths))
    sizes = await sandbox.exec((_SIZES + _CLEAN).format(name), timeout=_SECONDS)
    _require(sizes)
    found: dict[str, bytes] = {}
    for batch in _batches(zip(paths, map(int, sizes.output.split()), strict=True)):
        found |= await _read_batch(sandbox, batch)
    return found


def _is_plain(path: str) -> bool:
    """Say whether a path is that of a file in the working directory, and short; `Sandbox.write_file` says what is wrong
    with any other.
    """
    parts = path.split("/")
    if "\0" in path or not path or not parts[0] or ".." in parts:
        return False
    try:
        return len(os.fsencode(path)) <= _LONGEST_PATH
    except UnicodeEncodeError:
        return False


async def _read_batch(sandbox: Sandbox, batch: Mapping[str, int]) -> dict[str, bytes]:
    name = _new_name()
    await sandbox.write_file(name, null_terminated(batch))
    try:
        _require(await sandbox.exec(_JOIN.format(name), timeout=_SECONDS))
        joined = memoryview(await sandbox.read_file(f"{name}.d"))
    finally:  # a sandbox of plain processes has no /tmp of its own
        await sandbox.exec(f"rm -f {name} {name}.d")
    if len(joined) != sum(batch.values()):
        raise OSError(errno.EIO, f"{len(batch)} files have {len(joined)} bytes, not {sum(batch.values())}")
    found, start = {}, 0
    for path, size in batch.items():
        found[path] = bytes(joined[start : start + size])
        start += size
    return found


def _batches(sizes: Iterable[tuple[str, int]]) -> Iterator[dict[str, int]]:
    """Yield the files in order, together as large as one message may be; one that is larger is alone."""
    batch: dict[str, int] = {}
    total = 0
    for path, size in sizes:
        if batch and total + size > MAX_FILE_BYTES:
            yield batch
            batch, total = {}, 0
        batch[path] = size
        total += size
    if batch:
        yield batch


def null_terminated(paths: Iterable[str]) -> bytes:
    """Join the paths as `xargs -0` takes them; one that begins with `-` is `cat`'s standard input, or an option."""
    names = (f"./{path}" if path.startswith("-") else path for path in paths)
    return "".join(f"{name}\0" for name in names).encode("utf-8", "surrogateescape")


def as_tar(files: Mapping[str, bytes]) -> bytes:
    """Make a tar file, whole blocks of it, with the files in order."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(posixpath.normpath(path))
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _new_name() -> str:
    return f"/tmp/.{secrets.token_hex(8)}"


def _require(result: ExecResult) -> None:
    if result.exit_code != 0 or result.truncated:
        raise OSError(errno.EIO, result.output.strip()[-_SHOWN:] or f"exit code {result.exit_code}")
