"""Read the records of a file: JSON Lines, JSON or Parquet."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from slime_swe.errors import UserError
from slime_swe.files import read_given

FILE_KINDS = (".jsonl", ".json", ".parquet")
FAULTS = 10  # records with mistakes that a message names
_UTF16 = [f"\ufeff{first}".encode(order) for first in "[{" for order in ("utf-16-le", "utf-16-be")]
_COMPRESSED = {  # how a file of each kind begins
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}


def file_records(path: Path, *, lines: bool = False) -> Iterator[tuple[str, Any]]:
    """Each record of a file, with its place in words. `lines` reads a `.json` as JSON Lines, which some files are.

    Raises `UserError`.
    """
    content = read_given(path, "the task file")
    if path.suffix == ".parquet":
        yield from _parquet(path, content)
        return
    content = _utf8(path, content)
    yield from _json(path, content) if path.suffix == ".json" and not lines else _json_lines(path, content)


def refuse(faults: Sequence[str]) -> None:
    """Raise `UserError` with the mistakes of several records, a line each."""
    more = [f"and {len(faults) - FAULTS} records more"] if len(faults) > FAULTS else []
    if faults:
        raise UserError("\n".join([*faults[:FAULTS], *more]))


def _utf8(path: Path, content: bytes) -> bytes:
    """The content without a byte order mark. Raises `UserError` with the remedy where it is of another kind."""
    for mark, name in _COMPRESSED.items():
        if content.startswith(mark):
            raise UserError(f"{path} is compressed ({name}): unpack it first")
    if content[:4] in _UTF16:
        raise UserError(f"{path} is UTF-16: convert it, as by `iconv -f UTF-16 -t UTF-8 {path.name}`")
    return content.removeprefix(codecs.BOM_UTF8)


def _json_lines(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    """Raises `UserError`, after the others, with every line that is no JSON."""
    faults: list[str] = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = _loads(line, where)
        except UserError as error:
            faults.append(str(error))
        else:
            yield where, record
    refuse(faults)


def _json(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    records = _loads(content, str(path))
    if not isinstance(records, list):
        raise UserError(f"{path}: must be a list of tasks, got {type(records).__name__}")
    yield from ((f"{path}, record {number}", record) for number, record in enumerate(records, 1))


def _loads(content: bytes, where: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UserError(f"{where}: not a JSON object: {error}") from error


def _parquet(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    if find_spec("pyarrow") is None:
        raise UserError(f"{path} needs pyarrow: pip install 'slime-swe[corpora]', or convert the file to .jsonl")
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path} is not a Parquet file: {error}") from error
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
