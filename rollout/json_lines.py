"""JSON of what hooks leave in samples: numpy's numbers, and texts that are no UTF-8, come along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def encoded(values: Any) -> bytes:
    """A line of JSON, with its newline. Raises `TypeError` for what has no JSON type."""
    try:
        return orjson.dumps(values, option=_OPTIONS, default=_plain)
    except TypeError:
        return orjson.dumps(printable(values), option=_OPTIONS, default=_plain)


def printable(value: Any) -> Any:
    """With lone surrogates, which JSON can't hold, escaped: a file whose name is no UTF-8 brings them in."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {printable(key): printable(inner) for key, inner in value.items()}
    return [printable(inner) for inner in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a trajectory holds {type(value).__name__}, which is no JSON type")


def as_json(values: Any) -> Any:
    """The same in JSON's types alone: what `encoded` writes, read back. Raises `TypeError` as it does."""
    return orjson.loads(encoded(values))
