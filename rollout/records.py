"""Write trajectories to the run directory, one JSON object a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from data_sources.sample import Sample


class RunDirectoryError(ValueError):
    """The run directory can't be written; the message names the file, the reason and what to do."""


def append_records(path: Path, samples: Iterable[Sample], common: Mapping[str, Any]) -> int:
    """Append one record for each sample, all of them or none, durably. Returns the file's new size in bytes.

    Raises `RunDirectoryError` where the disk is full or the folder is not writable; the file is then as it was.
    """
    lines = b"".join(_line({**common, **record(sample)}) for sample in samples)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _append(path, lines)
    except OSError as error:
        raise RunDirectoryError(
            f"can't write {path}: {error.strerror or error}. Nothing of this step was written; "
            "make room or choose another run directory, and resume"
        ) from error


def record(sample: Sample) -> dict[str, Any]:
    """A trajectory as plain JSON types: tokens, mask, log-probabilities, what it did and what it earned."""
    metadata = sample.metadata
    return {
        "index": sample.index,
        "group_index": sample.group_index,
        "trajectory": trajectory_of(sample),
        "task": (metadata.get("task") or {}).get("id"),
        "status": sample.status.value,
        "reward": sample.reward,
        "remove_sample": sample.remove_sample,
        "tokens": sample.tokens,
        "response_length": sample.response_length,
        "loss_mask": sample.loss_mask,
        "log_probs": sample.rollout_log_probs,
        "weight_versions": sample.weight_versions,
        "response": sample.response,
        "episode": metadata.get("episode"),
        "score": metadata.get("score"),
        "infrastructure": metadata.get("infrastructure"),
    }


def trajectory_of(sample: Sample) -> int | None:
    """Which episode a sample belongs to: fan-out siblings share it."""
    return sample.index if sample.rollout_id is None else sample.rollout_id


def flatten(samples: Any) -> list[Sample]:
    """The samples of any nesting of lists, in order."""
    if isinstance(samples, list | tuple):
        return [sample for inner in samples for sample in flatten(inner)]
    return [samples]


_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def _line(values: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(values, option=_OPTIONS, default=_plain)
    except TypeError:
        return orjson.dumps(_printable(values), option=_OPTIONS, default=_plain)


def _printable(value: Any) -> Any:
    """With lone surrogates, which JSON can't hold, escaped: a file whose name is no UTF-8 brings them in."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list | tuple) else value


def _append(path: Path, lines: bytes) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        return size + len(lines)
    finally:
        os.close(descriptor)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a trajectory holds {type(value).__name__}, which is no JSON type")
