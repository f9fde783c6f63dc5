"""What a sandbox's repository holds, by its own tar: to hold patches against."""

from __future__ import annotations

import base64
import io
import tarfile

from slime_swe.sandbox.base import Sandbox
from slime_swe.sandbox.guest.files import CACHE_FOLDERS

_SKIPPED = " -o ".join(f"-name {name}" for name in (".git", *sorted(CACHE_FOLDERS)))
_PACK = (
    f"find . -type d \\( {_SKIPPED} \\) -prune -o -type f ! -name '*.pyc' -print0 2>/dev/null | "
    "tar --null --hard-dereference -cf - -T - 2>/dev/null | gzip -9 | base64 -w0"
)


async def contents(sandbox: Sandbox) -> dict[str, bytes]:
    """The regular files by path, but for caches. They must be readable."""
    result = await sandbox.exec(_PACK)
    assert not result.truncated, "too much to read in one command"
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(result.output)), errors="surrogateescape") as tar:
        return {entry.name.removeprefix("./"): tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
