"""SLiME's data source (`--data-source-path`): tasks in a reproducible order."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import orjson

from data_sources.arguments import read, read_number
from data_sources.registry import load_tasks
from data_sources.sample import Sample
from data_sources.task import Task

_STATE = {"fingerprint": str, "position": int, "sample_index": int, "group_index": int, "buffer": list}


class DataSourceError(ValueError):
    """The saved state of the data source is missing, broken, or of another run."""


class TaskDataSource:
    """Hands out groups of `n_samples_per_prompt` samples of one task each.

    Order: each epoch goes through every task once, shuffled by (`rollout_seed`, epoch) alone. Group indices, sample
    indices and rollout ids only ever go up, also over a resume. Groups that were given back come first.
    """

    def __init__(self, args: Any) -> None:
        self.args = args
        self._tasks = [task for spec in _specs(args) for task in load_tasks(spec)]
        self._records = [task.to_dict() for task in self._tasks]
        self._group_size = read_number(args, "n_samples_per_prompt", int, minimum=1)
        self._seed = read(args, "rollout_seed", int)
        self._shuffle = read(args, "rollout_shuffle", bool, default=False)
        self._position = 0  # tasks handed out since the first epoch began
        self._sample_index = 0
        self._group_index = 0
        self._buffer: list[list[Sample]] = []
        self._order: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        return len(self._tasks)

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """The next `num_samples` groups."""
        groups = self._buffer[:num_samples]
        del self._buffer[:num_samples]
        groups += [self._next_group() for _ in range(num_samples - len(groups))]
        return groups

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take back groups that were handed out but not used; they are the next to be handed out again."""
        for group in samples:
            if len(group) != self._group_size:
                raise DataSourceError(f"a group holds {self._group_size} samples, got one of {len(group)}")
        self._buffer += samples

    def save(self, rollout_id: int) -> None:
        """Write the state beside the checkpoint `rollout_id`, so that it is there whole or not at all."""
        if self.args.save is None:
            return
        path = _state_path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, orjson.dumps(self._state(), default=_plain))

    def load(self, rollout_id: int | None = None) -> None:
        """Go on after checkpoint `rollout_id`; None or -1 means that there is none yet.

        Raises `DataSourceError` where the state is missing or belongs to other tasks: going on would repeat or skip.
        """
        if self.args.load is None or rollout_id is None or rollout_id < 0:
            return
        path = _state_path(self.args.load, rollout_id)
        state = _read_state(path)
        if state["fingerprint"] != self._fingerprint():
            raise DataSourceError(f"{path} was saved with other tasks, seed or shuffling: resume with the same ones")
        self._position, self._sample_index = state["position"], state["sample_index"]
        self._group_index = state["group_index"]
        self._buffer = [[Sample.from_dict(sample) for sample in group] for group in state["buffer"]]

    def _next_group(self) -> list[Sample]:
        record = self._records[self._task_number(self._position)]
        group = [self._sample(record, self._sample_index + i) for i in range(self._group_size)]
        self._position += 1
        self._group_index += 1
        self._sample_index += self._group_size
        return group

    def _sample(self, record: dict[str, Any], index: int) -> Sample:
        return Sample(
            group_index=self._group_index,
            index=index,
            rollout_id=index,
            prompt=record["statement"],
            metadata={"task": record},
        )

    def _task_number(self, position: int) -> int:
        epoch, offset = divmod(position, len(self._tasks))
        if not self._shuffle:
            return offset
        if self._order[0] != epoch:
            order = list(range(len(self._tasks)))
            random.Random(f"{self._seed}:{epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1][offset]

    def _state(self) -> dict[str, Any]:
        return {
            "fingerprint": self._fingerprint(),
            "position": self._position,
            "sample_index": self._sample_index,
            "group_index": self._group_index,
            "buffer": [[sample.to_dict() for sample in group] for group in self._buffer],
        }

    def _fingerprint(self) -> str:
        order = [self._seed, self._shuffle, self._group_size, [task.id for task in self._tasks]]
        return hashlib.blake2b(orjson.dumps(order), digest_size=16).hexdigest()


def task_of(sample: Sample) -> Task:
    """The task that a sample asks about. Raises `TaskError` where its record is malformed."""
    return Task.from_dict(sample.metadata.get("task"))


def _specs(args: Any) -> list[str]:
    given = read(args, "swe_tasks", (list, tuple, str))
    return [given] if isinstance(given, str) else list(given)


def _state_path(folder: str, rollout_id: int) -> Path:
    return Path(folder) / "rollout" / f"task_data_source_{rollout_id}.json"


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state: Any = orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataSourceError(f"no data source state at {path}: resume from a checkpoint that has one") from error
    except orjson.JSONDecodeError as error:
        raise DataSourceError(f"the data source state at {path} is damaged: {error}") from error
    found = state if isinstance(state, dict) else {}
    wrong = [name for name, kind in _STATE.items() if not isinstance(found.get(name), kind)]
    if wrong:
        raise DataSourceError(f"the data source state at {path} is damaged: no proper {', '.join(wrong)}")
    return found


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a sample given back holds {type(value).__name__}, which can't be saved")


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself is durable only then
    finally:
        os.close(folder)
