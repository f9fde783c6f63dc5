"""Read the records of a file: JSON Lines, JSON or Parquet."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import orjson

from slime_swe.errors import UserError
from slime_swe.files import read_given

FILE_KINDS = (".jsonl", ".json", ".parquet")
FAULTS = 10  # records with mistakes that a message names
_log = logging.getLogger(__name__)
T = TypeVar("T")
Record = tuple[str, Callable[[], Any]]  # its place in words, and what reads it or raises `UserError`
_UTF16 = [f"\ufeff{first}".encode(order) for first in "[{" for order in ("utf-16-le", "utf-16-be")]
_COMPRESSED = {  # how a file of each kind begins
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}


def file_records(path: Path, make: Callable[[Any], T], *, lines: bool = False, leave_out: bool = False) -> list[T]:
    """What `make` makes of each record of a file. `lines` reads a `.json` as JSON Lines, which some files are.

    Raises `UserError`: with the places of all records that are none, or that `make` raises it for. With `leave_out` a
    warning names the latter instead, as long as others are there and each could be read: half a file is no task set.
    """
    made, faults, whole = list[T](), list[str](), True
    for where, read in _records(path, read_given(path, "the task file"), lines):
        try:
            record = read()
        except UserError as error:
            whole = False
            faults.append(f"{where}: {error}")
            continue
        try:
            made.append(make(record))
        except UserError as error:
            faults.append(f"{where}: {error}")
    if made and faults and leave_out and whole:
        _warn(f"{path}: {len(faults)} of {len(made) + len(faults)} records can't be used: {'; '.join(faults)}")
    elif faults:
        raise UserError(first_few(faults, "records", "\n"))
    return made


@cache
def _warn(message: str) -> None:
    """Once in a process, which may read a file several times."""
    _log.warning("%s", message)


def first_few(found: Sequence[str], what: str, between: str) -> str:
    """As many of them as a message names, and how many more there are."""
    more = [f"and {len(found) - FAULTS} {what} more"] if len(found) > FAULTS else []
    return between.join([*found[:FAULTS], *more])


def _records(path: Path, content: bytes, lines: bool) -> Iterator[Record]:
    if path.suffix == ".parquet":
        return _parquet(path, content)
    content = _utf8(path, content)
    return _json(path, content) if path.suffix == ".json" and not lines else _json_lines(path, content)


def _utf8(path: Path, content: bytes) -> bytes:
    """The content without a byte order mark. Raises `UserError` with the remedy where it is of another kind."""
    for mark, name in _COMPRESSED.items():
        if content.startswith(mark):
            raise UserError(f"{path} is compressed ({name}): unpack it first")
    if content[:4] in _UTF16:
        raise UserError(f"{path} is UTF-16: convert it, as by `iconv -f UTF-16 -t UTF-8 {path.name}`")
    return content.removeprefix(codecs.BOM_UTF8)


def _json_lines(path: Path, content: bytes) -> Iterator[Record]:
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield f"{path}, line {number}", partial(_loads, line)


def _json(path: Path, content: bytes) -> Iterator[Record]:
    try:
        records = _loads(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if not isinstance(records, list):
        raise UserError(f"{path}: must be a list of tasks, got {type(records).__name__}")
    for number, record in enumerate(records, 1):
        yield f"{path}, record {number}", partial(_given, record)


def _loads(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UserError(f"not a JSON object: {error}") from error


def _given(record: Any) -> Any:
    return record


def _parquet(path: Path, content: bytes) -> Iterator[Record]:
    if find_spec("pyarrow") is None:
        raise UserError(f"{path} needs pyarrow: pip install 'slime-swe[corpora]', or convert the file to .jsonl")
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist(maps_as_pydicts="lossy")
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path} is not a Parquet file: {error}") from error
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", partial(_given, _without_nulls(row))


def _without_nulls(value: Any) -> Any:
    """A column of structs has each row's keys in every row, null where a row had none: `workspace.files` has the paths
    of all tasks."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
