"""Tasks as SLiME's samples, and its data source (`--data-source-path`): tasks in a reproducible order."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.fields import Meta, read, read_arguments
from slime_swe.files import replace_file
from slime_swe.sample import Sample

_TASK = "task"  # of a sample's metadata
_MOST_PARSED = 512
_PARSED: dict[int, tuple[Any, Task]] = {}  # by a record's id; the record itself is kept, so that no other gets its id


@dataclass(frozen=True)
class _Settings:
    n_samples_per_prompt: Annotated[int, Meta(ge=1)]
    rollout_seed: int
    swe_tasks: str | list[str]
    rollout_shuffle: bool = False


@dataclass(frozen=True)
class _State:
    """What a checkpoint keeps. position: tasks handed out since the first epoch began. buffer: groups given back."""

    fingerprint: str
    position: int
    sample_index: int
    group_index: int
    buffer: list[list[dict[str, Any]]]


def sample_of(task: Task, *, index: int, group_index: int) -> Sample:
    """A new sample that asks about the task; `task_of` is the inverse."""
    return Sample(
        group_index=group_index, index=index, rollout_id=index, prompt=task.statement, metadata=metadata_of(task)
    )


def metadata_of(task: Task) -> dict[str, Any]:
    """What a sample's metadata says of its task: all that there is."""
    return {_TASK: task.to_dict()}


def task_of(sample: Sample) -> Task:
    """The task that a sample asks about. Raises `UserError` where its record is malformed.

    The record is parsed once for a group's episodes and their gradings, which share it in this process.
    """
    record = (sample.metadata or {}).get(_TASK)
    known = _PARSED.get(id(record))
    if known is None or known[0] is not record:
        known = _PARSED[id(record)] = record, Task.from_dict(record)
        if len(_PARSED) > _MOST_PARSED:
            del _PARSED[next(iter(_PARSED))]
    return known[1]


def task_id_of(sample: Sample) -> str | None:
    """The id of that task; None where it has none."""
    record = (sample.metadata or {}).get(_TASK)
    return record.get("id") if isinstance(record, dict) else None


class TaskDataSource:
    """Hands out groups of `n_samples_per_prompt` samples of one task each.

    Order: each epoch goes through every task once, shuffled by (`rollout_seed`, epoch) alone. Group indices, sample
    indices and rollout ids only increase, also after a resume. Groups that were given back come first.
    """

    def __init__(self, args: Any) -> None:
        self.args = args
        settings = read_arguments(_Settings, args)
        specs = [settings.swe_tasks] if isinstance(settings.swe_tasks, str) else settings.swe_tasks
        self._tasks = [task for spec in specs for task in load_tasks(spec)]
        self._group_size = settings.n_samples_per_prompt
        self._seed = settings.rollout_seed
        self._shuffle = settings.rollout_shuffle
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
                raise UserError(f"a group holds {self._group_size} samples, got one of {len(group)}")
        self._buffer += samples

    def save(self, rollout_id: int) -> None:
        """Write the state beside the checkpoint `rollout_id`, atomically."""
        if self.args.save is None:
            return
        path = _state_path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, orjson.dumps(self._state(), default=_plain))

    def load(self, rollout_id: int | None = None) -> None:
        """Continue after checkpoint `rollout_id`; None or -1 means that there is none yet.

        Raises `UserError` where the state is missing or belongs to other tasks, since the run would then repeat or skip
        tasks.
        """
        if self.args.load is None or rollout_id is None or rollout_id < 0:
            return
        path = _state_path(self.args.load, rollout_id)
        state = _read_state(path)
        if state.fingerprint != self._fingerprint():
            raise UserError(f"{path} was saved with other tasks, seed or shuffling: resume with the same ones")
        self._position, self._sample_index, self._group_index = state.position, state.sample_index, state.group_index
        self._buffer = [[Sample.from_dict(sample) for sample in group] for group in state.buffer]

    def _next_group(self) -> list[Sample]:
        task = self._tasks[self._task_number(self._position)]
        indices = range(self._sample_index, self._sample_index + self._group_size)
        group = [sample_of(task, index=index, group_index=self._group_index) for index in indices]
        self._position += 1
        self._group_index += 1
        self._sample_index += self._group_size
        return group

    def _task_number(self, position: int) -> int:
        epoch, offset = divmod(position, len(self._tasks))
        if not self._shuffle:
            return offset
        if self._order[0] != epoch:
            order = list(range(len(self._tasks)))
            random.Random(f"{self._seed}:{epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1][offset]

    def _state(self) -> _State:
        buffer = [[sample.to_dict() for sample in group] for group in self._buffer]
        return _State(self._fingerprint(), self._position, self._sample_index, self._group_index, buffer)

    def _fingerprint(self) -> str:
        order = [self._seed, self._shuffle, self._group_size, [task.id for task in self._tasks]]
        return hashlib.blake2b(orjson.dumps(order), digest_size=16).hexdigest()


def _state_path(folder: str, rollout_id: int) -> Path:
    return Path(folder) / "rollout" / f"task_data_source_{rollout_id}.json"


def _read_state(path: Path) -> _State:
    try:
        return read(_State, orjson.loads(path.read_bytes()), f"the data source state at {path} is damaged")
    except FileNotFoundError as error:
        raise UserError(f"no data source state at {path}: resume from a checkpoint that has one") from error
    except orjson.JSONDecodeError as error:
        raise UserError(f"the data source state at {path} is damaged: {error}") from error


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a sample given back holds {type(value).__name__}, which can't be saved")
