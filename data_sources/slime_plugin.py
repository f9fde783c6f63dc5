"""Tasks as SLiME's samples, and its data source (`--data-source-path`): tasks in a reproducible order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import orjson

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import TOGETHER, Task
from slime_swe.errors import UserError
from slime_swe.fields import Argument, Meta, read, read_arguments
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
    swe_weights: list[float] = field(default_factory=list)
    rollout_shuffle: bool = False


@dataclass(frozen=True)
class _State:
    """The state that a checkpoint keeps. following: the number of the next new group. waiting: groups to be handed out
    before it. quarantined: tasks that are handed out no more. cursors: of each set, the place in its order that comes
    next. places: for each waiting group its place in that order, and where the cursor was before. outcomes: what the
    curriculum knows."""

    fingerprint: str
    following: int
    waiting: list[int]
    quarantined: list[str]
    cursors: list[int]
    places: list[tuple[int, int]]
    outcomes: dict[str, str]


def sample_of(task: Task, *, index: int, group_index: int) -> Sample:
    """Make a new sample that asks about the task; `task_of` is the inverse."""
    return Sample(
        group_index=group_index, index=index, rollout_id=index, prompt=task.statement, metadata=metadata_of(task)
    )


def metadata_of(task: Task) -> dict[str, Any]:
    """Return the metadata of a sample that asks about the task: all that there is of it."""
    return {_TASK: task.to_dict()}


def task_of(sample: Sample) -> Task:
    """Return the task that a sample asks about. Raises `UserError` where its record is malformed.

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
    """Return the id of a sample's task; None where it has none."""
    record = (sample.metadata or {}).get(_TASK)
    return record.get("id") if isinstance(record, dict) else None


def named(task_id: str | None) -> dict[str, Any]:
    """Return the metadata of a sample of which only its task's id is known."""
    return {} if task_id is None else {_TASK: {"id": task_id}}


class TaskDataSource:
    """Hands out groups of `n_samples_per_prompt` samples of one task each.

    Order: each epoch goes through every task once, shuffled by (`rollout_seed`, epoch) alone. Groups are numbered
    (`group_index`) in this order. Groups that were given back come first, as they first were. Tasks of a set that
    belong together (`TOGETHER` in their metadata) follow each other in it, in the set's order.

    With `swe_weights`, each task set has epochs of its own, and the numbers are dealt out to the sets: among the first
    n, each has n times its share to within less than one group, whatever the seed. A task without a turn, as it is set
    aside or as the curriculum (`swe_retire_above`, `swe_boost_below`) says, leaves it to the next of its set.
    """

    def __init__(self, args: Any) -> None:
        self.args = args
        settings = read_arguments(_Settings, args)
        specs = [settings.swe_tasks] if isinstance(settings.swe_tasks, str) else settings.swe_tasks
        sets = [self._load(spec) for spec in specs]
        self._weights = settings.swe_weights
        if self._weights and len(self._weights) != len(sets):
            raise UserError(f"args.swe_weights holds {len(self._weights)} numbers for {len(sets)} task sets")
        self._sets = sets if self._weights else [[task for tasks in sets for task in tasks]]
        self._units = [_units(tasks) for tasks in self._sets]
        self._together = {
            tasks[number].id: [tasks[one].id for one in unit]
            for tasks, units in zip(self._sets, self._units, strict=True)
            for unit in units
            for number in unit
        }
        self._dealt = Dealt(self._weights or [1.0])
        self._curriculum = Curriculum(read_arguments(CurriculumSettings, args))
        self._group_size = settings.n_samples_per_prompt
        self._seed = settings.rollout_seed
        self._shuffle = settings.rollout_shuffle
        self._following = 0
        self._waiting: list[int] = []
        self._quarantined: set[str] = set()
        self._cursors = [0] * len(self._sets)
        self._places: dict[int, tuple[int, int]] = {}  # a group's number -> its place, and the cursor before
        self._states: dict[int, _State] = {}  # by rollout
        self._ahead = set[int]()  # rollouts whose states were written with no checkpoint yet
        self._orders: dict[int, tuple[int, list[int]]] = {}  # set -> its epoch, and the order in it

    def __len__(self) -> int:
        return sum(map(len, self._sets))

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """Return the next `num_samples` groups. Raises `UserError` where every task is quarantined."""
        return [self._group(self._next()) for _ in range(num_samples)]

    def add_samples(self, samples: list[Any]) -> None:
        """Take back groups that were handed out but not used; they are the next to be handed out, as they first were.

        What has been written into their samples is forgotten. An episode of several samples may stand as a list.
        """
        for group in samples:
            first = group[0] if group else None
            number = getattr(first[0] if isinstance(first, list) and first else first, "group_index", None)
            if not isinstance(number, int) or not 0 <= number < self._following:
                raise UserError(f"a group was given back that was never handed out: its group_index is {number}")
            self._waiting.append(number)

    def quarantine(self, task_id: str) -> None:
        """Hand this task out no more, nor those that belong together with it."""
        self._quarantined |= self._with(task_id)

    def end_rollout(
        self, rollout_id: int, unfinished: Sequence[int] = (), outcomes: Mapping[str, Sequence[bool]] | None = None
    ) -> None:
        """Keep the state from which a checkpoint of this rollout goes on, whatever has been handed out until it is
        written.

        unfinished: groups that are still played. A resumed run must play them anew. outcomes: of the episodes of each
        task that have ended, whether they solved it.
        """
        self._curriculum.add(outcomes or {})
        self._rewind()
        self._states[rollout_id] = self._state(unfinished)

    def save(self, rollout_id: int) -> None:
        """Write the state beside the checkpoint `rollout_id`, atomically."""
        if self.args.save is None:
            return
        state = self._states.get(rollout_id) or self._state()
        self._states = {known: state for known, state in self._states.items() if known > rollout_id}
        self._write(rollout_id, state)
        self._ahead.discard(rollout_id)

    def save_ahead(self, rollout_id: int) -> None:
        """Write the state of a rollout that has just ended, before it is known whether a checkpoint follows.

        Where SLiME samples a rollout while it trains on another, `save` is only called when that one has been sampled,
        and a run that must stop does not wait so long. States without a checkpoint go when two more are there.
        """
        if self.args.save is None:
            return
        self._write(rollout_id, self._states[rollout_id])
        self._ahead.add(rollout_id)
        for old in {number for number in self._ahead if number < rollout_id - 1}:
            state_path(self.args.save, old).unlink(missing_ok=True)
            self._ahead.discard(old)

    def _write(self, rollout_id: int, state: _State) -> None:
        path = state_path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, orjson.dumps(state))

    def load(self, rollout_id: int | None = None) -> None:
        """Continue after checkpoint `rollout_id`; None or -1 means that there is none yet.

        Raises `UserError` where the state is missing or belongs to other tasks, since the run would then repeat or skip
        tasks.
        """
        if self.args.load is None or rollout_id is None or rollout_id < 0:
            return
        path = state_path(self.args.load, rollout_id)
        state = _read_state(path)
        if state.fingerprint != self._fingerprint():
            raise UserError(f"{path} was saved with other tasks, weights, seed or shuffling: resume with the same ones")
        self._following, self._waiting, self._quarantined = state.following, [*state.waiting], {*state.quarantined}
        self._cursors, self._places = [*state.cursors], dict(zip(state.waiting, state.places, strict=True))
        self._curriculum.outcomes = {**state.outcomes}

    def _load(self, spec: str) -> Sequence[Any]:
        """Load what a set holds; each item has an `id`."""
        return load_tasks(spec)

    def _sample(self, item: Any, index: int, group_index: int) -> Sample:
        """Make one sample of a group that is about an item."""
        return sample_of(item, index=index, group_index=group_index)

    def _next(self) -> int:
        if self._waiting:
            return self._waiting.pop(0)
        if all(task.id in self._quarantined for tasks in self._sets for task in tasks):
            raise UserError(f"infrastructure failed on all {len(self)} tasks again and again: see the run's episodes")
        while True:
            number, self._following = self._following, self._following + 1
            which = self._dealt[number]
            before, place = self._cursors[which], self._next_place(which)
            if place is not None:
                self._cursors[which], self._places[number] = place + 1, (place, before)
                return number

    def _rewind(self) -> None:
        """Choose the last groups anew if they were given back: how far a schedule had sampled ahead, which depends on
        what ended first, then changes nothing."""
        while self._waiting and max(self._waiting) == self._following - 1:
            self._following -= 1
            self._waiting.remove(self._following)
            self._cursors[self._dealt[self._following]] = self._places.pop(self._following)[1]

    def _next_place(self, which: int) -> int | None:
        """Return the place of the next task of a set that has a turn; None where all are quarantined. If no other has
        one, those that are retired have."""
        start, length = self._cursors[which], len(self._sets[which])
        for with_retired in (False, True):
            for place in range(start, start + (self._curriculum.rounds + 1) * length):
                name = self._at(which, place).id
                if name not in self._quarantined and (
                    with_retired or self._curriculum.has_turn(self._together[name], place // length)
                ):
                    return place
        return None

    def _group(self, number: int) -> list[Sample]:
        indices = range(number * self._group_size, (number + 1) * self._group_size)
        task = self._task(number)
        return [self._sample(task, index, number) for index in indices]

    def _task(self, number: int) -> Any:
        return self._at(self._dealt[number], self._places[number][0])

    def _at(self, which: int, place: int) -> Any:
        tasks = self._sets[which]
        epoch, offset = divmod(place, len(tasks))
        if self._orders.get(which, (-1, []))[0] != epoch:
            units = [*self._units[which]]
            if self._shuffle:
                random.Random(f"{self._seed}:{epoch}").shuffle(units)
            self._orders[which] = (epoch, [number for unit in units for number in unit])
        return tasks[self._orders[which][1][offset]]

    def _with(self, task_id: str) -> set[str]:
        """Return the ids of the tasks that belong together with one, and its own."""
        found = {task_id}
        for tasks, units in zip(self._sets, self._units, strict=True):
            for unit in units:
                names = {tasks[number].id for number in unit}
                found |= names if task_id in names else set()
        return found

    def _state(self, unfinished: Sequence[int] = ()) -> _State:
        waiting = [*unfinished, *self._waiting]
        return _State(
            self._fingerprint(),
            self._following,
            waiting,
            sorted(self._quarantined),
            [*self._cursors],
            [self._places[number] for number in waiting],
            {**self._curriculum.outcomes},
        )

    def _fingerprint(self) -> str:
        names = [[task.id for task in tasks] for tasks in self._sets]
        mixed = [names, self._weights] if self._weights else names[0]
        order = [self._seed, self._shuffle, self._group_size, mixed]
        return hashlib.blake2b(orjson.dumps(order), digest_size=16).hexdigest()


def _units(tasks: Sequence[Task]) -> list[list[int]]:
    """Group the numbers of the tasks: those together that belong together."""
    units: dict[Any, list[int]] = {}
    for number, task in enumerate(tasks):
        name = task.metadata.get(TOGETHER)
        units.setdefault(number if name is None else str(name), []).append(number)
    return [*units.values()]


class Dealt:
    """Decides to which of several sets a group's number goes.

    Of the first n numbers, n times its share goes to each set, to within 1 - 1/(2k - 2) for k sets: the chairman
    assignment of R. Tijdeman, Discrete Mathematics 32 (1980). Nothing is random, so any run deals alike.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(weight) for weight in weights]
        self._shares = [weight / sum(exact) for weight in exact]
        self._counts = [0] * len(exact)
        self._dealt: list[int] = []

    def __getitem__(self, number: int) -> int:
        while len(self._dealt) <= number:
            which = self._following()
            self._dealt.append(which)
            self._counts[which] += 1
        return self._dealt[number]

    def _following(self) -> int:
        """Choose, of the sets that may have the next number, the one that would first have too few without it."""
        if len(self._shares) == 1:
            return 0
        dealt, slack = len(self._dealt), Fraction(1, 2 * len(self._shares) - 2)
        lacking = [share * dealt - count for share, count in zip(self._shares, self._counts, strict=True)]
        may = [which for which, share in enumerate(self._shares) if lacking[which] + share >= slack]
        return min(may, key=lambda which: (1 - slack - lacking[which]) / self._shares[which])


# A curriculum by solve rates: tasks that the policy nearly always solves are retired, and those that it hardly ever
# solves come more often.
#
# A task's rate is that of its latest episodes in this run, by the binary outcome; none is known before there are
# `rate_episodes` of them. An episode that infrastructure broke is none. What is decided depends on these outcomes
# alone, which a checkpoint keeps: so a resumed run decides alike.
_ROUNDS = 2  # of which one is of the boosted tasks alone: they come twice as often as others


@dataclass(frozen=True)
class CurriculumSettings:
    """The settings of a curriculum. retire_above: a task of a higher solve rate is handed out no more; 1 retires none.
    boost_below: one of a lower rate comes twice as often; 0 boosts none. rate_episodes: latest episodes of a task that
    its rate is taken of."""

    retire_above: Annotated[float, Argument("swe_retire_above"), Meta(ge=0, le=1)] = 1.0
    boost_below: Annotated[float, Argument("swe_boost_below"), Meta(ge=0, le=1)] = 0.0
    rate_episodes: Annotated[int, Argument("swe_rate_episodes"), Meta(ge=1)] = 16


class Curriculum:
    """Decides which tasks have a turn. outcomes: task id → its latest episodes, the oldest first, `1` for each that
    solved it and `0` for each that did not."""

    def __init__(self, settings: CurriculumSettings, outcomes: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self.outcomes = dict(outcomes or {})
        self.rounds = _ROUNDS if settings.boost_below else 1

    def add(self, outcomes: Mapping[str, Sequence[bool]]) -> None:
        """Add the outcomes of each task's further episodes: whether they solved it."""
        for task, solved in outcomes.items():
            known = self.outcomes.get(task, "") + "".join("01"[one] for one in solved)
            self.outcomes[task] = known[-self._settings.rate_episodes :]

    def rate(self, task: str) -> float | None:
        """Return a task's solve rate; None where too few episodes are known."""
        known = self.outcomes.get(task, "")[-self._settings.rate_episodes :]
        return known.count("1") / len(known) if len(known) == self._settings.rate_episodes else None

    def has_turn(self, tasks: Sequence[str], number: int) -> bool:
        """Say whether tasks that belong together, mostly a single one, are handed out in the round of this number, each
        of which goes through a set once. Their rate is the mean, once all are known."""
        rates, is_for_all = [self.rate(task) for task in tasks], number % self.rounds == 0
        known = [rate for rate in rates if rate is not None]
        if len(known) < len(rates):
            return is_for_all
        rate = sum(known) / len(known)
        return rate <= self._settings.retire_above and (is_for_all or rate < self._settings.boost_below)


def state_path(folder: str | Path, rollout_id: int) -> Path:
    """Return the path of the state that is saved beside the checkpoint of a rollout."""
    return Path(folder) / "rollout" / f"task_data_source_{rollout_id}.json"


def _read_state(path: Path) -> _State:
    try:
        return read(_State, orjson.loads(path.read_bytes()), f"the data source state at {path} is damaged")
    except FileNotFoundError as error:
        raise UserError(f"no data source state at {path}: resume from a checkpoint that has one") from error
    except orjson.JSONDecodeError as error:
        raise UserError(f"the data source state at {path} is damaged: {error}") from error
