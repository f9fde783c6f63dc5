"""Read the records of a file: JSON Lines, JSON or Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from slime_swe.errors import UserError

FILE_KINDS = (".jsonl", ".json", ".parquet")


def file_records(path: Path, *, lines: bool = False) -> Iterator[tuple[str, Any]]:
    """Each record of a file, with its place in words. `lines` reads a `.json` as JSON Lines, which some files are.

    Raises `UserError`.
    """
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"can't read the task file {path}: {error.strerror or error}") from error
    yield from _json(path, content) if path.suffix == ".json" and not lines else _json_lines(path, content)


def _json_lines(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _loads(line, where)


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


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    if find_spec("pyarrow") is None:
        raise UserError(f"{path} needs pyarrow: pip install 'slime-swe[corpora]', or convert the file to .jsonl")
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path} is not a Parquet file: {error}") from error
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
