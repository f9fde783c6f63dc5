"""The wire format between the host and a sandbox: a JSON object and a blob of bytes, each with its length before it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

PREFIX = struct.Struct(">IQ")  # bytes of JSON, bytes of blob


def encode(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    text = json.dumps(message, separators=(",", ":")).encode("ascii")
    return PREFIX.pack(len(text), len(blob)) + text + blob


def pack_files(files: Iterable[tuple[str, bytes]]) -> tuple[list[tuple[str, int]], bytes]:
    """An index of (path, size) for the JSON, and the contents, end to end, for the blob."""
    pairs = list(files)
    return [(path, len(content)) for path, content in pairs], b"".join(content for _, content in pairs)


def unpack_files(index: Iterable[tuple[str, int]], blob: bytes) -> dict[str, bytes]:
    """The inverse of `pack_files`. Raises `ValueError` where the sizes don't add up to the blob."""
    files: dict[str, bytes] = {}
    start = 0
    for path, size in index:
        files[path] = blob[start : start + size]
        start += size
    if start != len(blob):
        raise ValueError(f"the index names {start} bytes, the blob has {len(blob)}")
    return files
