"""Collect a rollout: play the groups of a data source until a batch of them is judged, one batch a training step.

A *group* is the episodes of one task that share a baseline. `Driver` begins groups while the scheduler wants more and
slots are free, and puts off or judges those that end; `Driver.collect` returns once the scheduler has a batch. How one
episode is played and tried again is in `play`; which groups make a batch, in `scheduling`. Tests hold these:

- A batch has `rollout_batch_size` groups that infrastructure left whole enough and that the group filter kept; the ones
  that the filter drops are replaced.
- A batch of the schedule `sync` is a function of what groups come to, not of which ends first.
- A group is trained once or dropped once. One that a batch leaves unfinished goes on under the next weights; with
  `sync` it is requeued, and sampled anew from what the data source gave.
- No group is dropped for being old: the staleness of what is trained is bounded by admitting less.
- What infrastructure breaks is no reward: a group that it leaves without episodes enough is put off and tried again,
  and what is sound in it is kept while the weights are the same. A task that breaks alone is quarantined; an outage
  quarantines none, and ends the run only after `rollout.outage_limit` seconds.
- No more episodes sample at once than there are slots; an episode frees its slot before it is graded.
- The data source hears of each episode's outcome once, and never of one that infrastructure broke.
- A policy whose first hundred episodes hold no tool call ends the run, before it is paid for.
- After an error or a cancellation no episode is left running. What fails between two batches ends the next
  `collect` that has to wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Protocol, runtime_checkable

from slime_swe.data_sources.slime_plugin import task_id_of
from slime_swe.errors import UserError
from slime_swe.fields import Argument, Choice, Meta, read_arguments
from slime_swe.rollout.agents.base import agent_class
from slime_swe.rollout.client import Gate
from slime_swe.rollout.engine import abort_all
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.loop_scope import gate_of_loop
from slime_swe.rollout.metrics import ADMITTED
from slime_swe.rollout.play import LEAST_SOUND, Group, Play, Player, end_all
from slime_swe.rollout.records import episode_of, flatten, is_broken, record_of, trajectories
from slime_swe.rollout.scheduling.schedulers import (
    SCHEDULES,
    SYNC,
    Batch,
    DynamicSampling,
    NothingInformative,
    Outcome,
    PacedAdmission,
    Scheduler,
)
from slime_swe.sample import Sample

_log = logging.getLogger(__name__)
MOST_OF_A_TASK = 3  # groups of a task that infrastructure breaks, one after the other, before the task is quarantined
_GENERATE = "slime_swe.rollout.slime_plugin.generate"  # the one generate function whose records have every call


async def driver_of(args: Any, hooks: RolloutHooks) -> Driver:
    """Make the driver of a run's training episodes, in the running loop."""
    settings = read_arguments(_Settings, args)
    player = Player(args, hooks)
    scheduler, schedule = settings.scheduler(), SCHEDULES[settings.schedule]
    # Elsewhere an episode's record without calls need not be one of a policy that made none.
    counts = args.custom_generate_function_path == _GENERATE and agent_class(args.swe_agent).calls_tools
    first_calls = FirstCalls() if counts else None
    if schedule.pauses:
        url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
        return Driver(
            player, scheduler, first_calls=first_calls, gate=await gate_of_loop(), abort=partial(abort_all, url)
        )
    return Driver(player, scheduler, first_calls=first_calls, in_background=schedule.in_background)


class Driver:
    """Begins, plays and judges one run's groups. Use in one event loop.

    A group that infrastructure leaves without episodes enough is put off: another may begin in its place, and it begins
    again once an episode that began later has come to a sound end, so that infrastructure works. The third such group
    of a task in a row (`MOST_OF_A_TASK`) is dropped, and the task is quarantined. What is sound or finished in a group
    is kept as long as the weights are the same.

    in_background: groups are played and begun between two calls of `collect` too. Without it, those that a batch leaves
    unfinished wait at the `gate` with their sandboxes open; `abort` has the engines drop what they sample for them.
    first_calls: None where the policy need not call tools. It counts from this driver's first group on, also in a run
    that is resumed.
    """

    def __init__(
        self,
        player: Player,
        scheduler: Scheduler,
        *,
        first_calls: FirstCalls | None = None,
        in_background: bool = False,
        gate: Gate | None = None,
        abort: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.player, self.scheduler = player, scheduler
        self.first_calls = first_calls
        self.in_background, self.gate, self.abort = in_background, gate or Gate(), abort
        self._version = 0
        self._playing: asyncio.Task[None] | None = None
        self._changed, self._woken = asyncio.Event(), asyncio.Event()
        self._fresh: dict[int, list[Sample]] = {}  # groups that have begun, as the data source gave them
        self._running: dict[asyncio.Task[Group], int] = {}
        self._in_slots: Counter[int] = Counter()  # episodes of those groups that hold a slot, or wait for one
        self._plays: dict[int, tuple[int, list[Play]]] = {}  # of those groups, and the version that plays them
        self._judged: dict[int, _Judged] = {}
        self._put_off: dict[int, float] = {}  # groups that infrastructure broke -> when, in the loop's time
        self._gave_way = Counter[str]()  # how often a task's groups were put off, since one was not

    async def collect(self, data_source: DataSource, version: int) -> Rollout:
        """Play until a batch is complete for training on weights of this version.

        Raises `FilterError` where the filter keeps nothing, and `UserError` where the first episodes hold no call;
        then, or if it is cancelled, no episode is left running.
        """
        self._version = version
        self.gate.open()
        self._woken.set()
        if self._playing is None:
            self._playing = asyncio.create_task(self._play(data_source))
            self._playing.add_done_callback(lambda _: self._changed.set())
        try:
            while (batch := self.scheduler.take(version)) is None:
                await self._changed.wait()
                self._changed.clear()
                if self._playing.done():
                    self._playing.result()  # it ends by what it raises alone
            if not self.in_background:
                await self._stop_playing()
            requeued = set(batch.requeued) - self._put_off.keys()
            await self._requeue(requeued, data_source)
            rollout = self._rollout(batch, version, data_source)
            rollout.requeued = len(requeued)
            if self.abort is not None:
                await self.gate.drain(self.abort)
            return rollout
        except NothingInformative as error:
            await self.close()
            raise FilterError(
                f"{error}, by {self.player.args.dynamic_sampling_filter_path}: choose tasks that the policy sometimes "
                "solves, or leave the filter out"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def _play(self, data_source: DataSource) -> None:
        """Begin groups and end them, whenever a slot is free or a group has been played, until it is cancelled."""
        while True:
            while self.scheduler.wanted(self._version) > 0 and (
                not self._running or self._in_slots.total() < self.player.slots
            ):
                self._begin(self._next(data_source))
            await self._woken.wait()
            self._woken.clear()
            done = [task for task in self._running if task.done()]
            for task in sorted(done, key=self._running.__getitem__):
                self._end(self._running.pop(task), task.result(), data_source)
            self._changed.set()

    def _next(self, data_source: DataSource) -> int:
        """Return a group that was put off and may be tried again, or else the data source's next."""
        for number, broken_at in sorted(self._put_off.items()):
            if broken_at < self.player.outages.sound_since:
                del self._put_off[number]
                return number
        (group,) = data_source.get_samples(1)
        number = _number(group)
        self._fresh[number] = group
        return number

    def _begin(self, number: int) -> None:
        """Play a group, and of one that was put off what is not finished or not sound."""
        self.scheduler.begin(number, self._version)
        version, plays = self._plays.get(number, (self._version, [Play(sample) for sample in self._fresh[number]]))
        if version != self._version:  # what older weights sampled is sampled anew
            plays = [Play(play.sample, causes=play.causes, tries=play.tries) for play in plays]
        self._plays[number] = self._version, plays
        self._in_slots[number] = sum(play.finished is None for play in plays)

        def on_free() -> None:
            self._in_slots[number] -= 1
            self._woken.set()

        task = asyncio.ensure_future(self.player.play_group(plays, on_free))
        task.add_done_callback(lambda _: self._woken.set())
        self._running[task] = number

    def _end(self, number: int, group: Group, data_source: DataSource) -> None:
        """Put the group off where infrastructure broke it, unless it did so too often; else judge it."""
        del self._in_slots[number]
        broken = [is_broken(segments) for segments in trajectories(flatten(group))]
        lost, task = is_lost(broken), task_id_of(self._fresh[number][0]) or str(number)
        if lost:
            self._gave_way[task] += 1
            if self._gave_way[task] < MOST_OF_A_TASK:
                self._put_off[number] = asyncio.get_running_loop().time()
                self.scheduler.end(number, Outcome.BROKEN)
                return
        del self._gave_way[task], self._plays[number]
        self._require_calls(number, group)
        if lost and isinstance(data_source, TaskSource):
            _log.warning("task %s is quarantined: infrastructure failed on it again and again", task)
            data_source.quarantine(task)
        reason = LOST if lost else why_filtered(self.player.args, self.player.hooks.group_filter, group)
        self._judged[number] = _Judged(group, reason)
        outcome = Outcome.BROKEN if lost else Outcome.UNIFORM if reason else Outcome.INFORMATIVE
        self.scheduler.end(number, outcome)

    def _require_calls(self, number: int, group: Group) -> None:
        """Raise `UserError` where a group was one too many without a call."""
        first, running = self.first_calls, self._running.values()
        if first is None or first.called:
            return
        episodes = trajectories(flatten(group))
        records = [episode_of(segments[0]) for segments in episodes if not is_broken(segments)]
        counters = [record.counters for record in records if record is not None and record.turns]
        first.end(number, [(sum(one.tool_calls.values()), one.malformed_calls) for one in counters])
        if first.without_calls(running):
            raise UserError(_why_no_calls(first.seen(running), first.malformed, self.player.args))

    async def _requeue(self, numbers: set[int], data_source: DataSource) -> None:
        """End these groups, which the data source will give again."""
        await end_all([task for task, number in self._running.items() if number in numbers])
        self._running = {task: number for task, number in self._running.items() if number not in numbers}
        for number in numbers:
            self._judged.pop(number, None)
            self._plays.pop(number, None)
            self._in_slots.pop(number, None)
        if numbers:
            data_source.add_samples([self._fresh.pop(number) for number in sorted(numbers)])

    def _rollout(self, batch: Batch, version: int, data_source: DataSource) -> Rollout:
        """Take the batch out of what is judged, with all that was dropped, and tell the data source."""
        trained = set(batch.groups)
        done = [number for number in sorted(self._judged) if number in trained or self._judged[number].reason]
        rollout = Rollout(
            staleness=[version - begun for begun in batch.begun],
            admitted=self.player.slots,
        )
        for number in done:
            judged = self._judged.pop(number)
            del self._fresh[number]
            rollout.played.append(judged.group)
            if judged.reason:
                rollout.dropped[judged.reason] += 1
            else:
                rollout.kept.append(judged.group)
        rollout.reward_seconds, self.player.reward_seconds = self.player.reward_seconds, 0.0
        if isinstance(data_source, TaskSource):
            data_source.end_rollout(version, sorted(self._fresh), _outcomes(rollout.played, self.player.args))
        return rollout

    async def _stop_playing(self) -> None:
        """Begin and end no group any more; those that have begun are left as they are."""
        if self._playing is not None:
            await end_all([self._playing])
            self._playing = None

    async def close(self) -> None:
        """End what is still played."""
        await self._stop_playing()
        await end_all(self._running)
        self._running.clear()
        self._in_slots.clear()

    def evaluator(self) -> Player:
        """Return the player of the run's evaluations.

        Where training episodes go on meanwhile it is their own: calls wait their turn for its slots, so an evaluation
        comes before groups that begin later. Episodes that wait for new weights keep their slots: then it is another,
        which begins with as many episodes at once as training has come to.
        """
        if self.in_background:
            return self.player
        return Player(self.player.args, self.player.hooks, self.player.slots, self.player.outages)


# A group that has ended is judged by what infrastructure left of it, and by the group filter.
LOST = "infrastructure"  # why one is dropped that infrastructure broke too often


@dataclass(frozen=True)
class _Judged:
    group: Group
    reason: str = ""  # why it is dropped


def is_lost(broken: Sequence[bool]) -> bool:
    """Say whether infrastructure left too few of a group's episodes. broken: for each, whether it broke that one."""
    return broken.count(False) < min(LEAST_SOUND, len(broken))


def why_filtered(args: Any, group_filter: Callable[..., Any] | None, group: Sequence[Any]) -> str:
    """Return why the group filter drops a group, "" if it does not. group: a sample or a list of them an episode."""
    if group_filter is None:
        return ""
    verdict = group_filter(args, group)
    if not hasattr(verdict, "keep"):  # a bare truth value, as older filters return
        return "" if verdict else "unnamed"
    return "" if verdict.keep else str(verdict.reason or "unnamed")


class FilterError(UserError):
    """The group filter rejects (nearly) everything, so that no batch can be filled."""


# The input of a rollout, and its result.
class DataSource(Protocol):
    """SLiME's data source, as far as a rollout needs it."""

    def get_samples(self, num_samples: int) -> list[list[Sample]]: ...

    def add_samples(self, samples: list[list[Sample]]) -> None: ...


@runtime_checkable
class TaskSource(DataSource, Protocol):
    """A data source that takes reports of what becomes of its groups, as ours does."""

    def quarantine(self, task_id: str) -> None:
        """Hand this task out no more: infrastructure fails on it again and again."""
        ...

    def end_rollout(
        self, rollout_id: int, unfinished: Sequence[int] = (), outcomes: Mapping[str, Sequence[bool]] | None = None
    ) -> None:
        """Note that a batch is complete. unfinished: groups that are still played. outcomes: for each task, whether its
        episodes solved it, of those that the batch is made of or that were dropped for it; infrastructure failures are
        left out."""
        ...


@dataclass
class Rollout:
    """The result of one step's sampling. `kept` is trained on; `played` are the groups that were judged for it.

    dropped: groups by reason. requeued: groups that will be sampled anew. staleness: for each group that is kept, by
    how many training steps the weights under which it began are older than those that it trains. admitted: how many
    episodes were admitted at once when the batch was complete.
    """

    kept: list[Group] = field(default_factory=list)
    played: list[Group] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    requeued: int = 0
    staleness: list[int] = field(default_factory=list)
    reward_seconds: float = 0.0
    admitted: int = 0

    @property
    def stale_groups(self) -> set[int]:
        """The numbers of the kept groups that began under older weights than those that they train."""
        return {_number(flatten(group)) for group, steps in zip(self.kept, self.staleness, strict=True) if steps}

    def metrics(self) -> dict[str, float]:
        """Return the figures of the step for trackers, under SLiME's names where it has them."""
        dropped: dict[str, float] = {f"rollout/dynamic_filter/drop_{why}": n for why, n in self.dropped.items()}
        return {
            **dropped,
            "rollout/staleness": sum(self.staleness) / max(1, len(self.staleness)),
            "rollout/staleness_max": max(self.staleness, default=0),
            ADMITTED: self.admitted,
        }


def _outcomes(groups: Sequence[Group], args: Any) -> Mapping[str, Sequence[bool]]:
    found: dict[str, list[bool]] = {}
    for group in groups:
        for segments in trajectories(flatten(group)):
            task = task_id_of(segments[0])
            if task is not None and not is_broken(segments):
                found.setdefault(task, []).append(record_of(segments[0], getattr(args, "reward_key", None)).solved)
    return found


def _number(group: Sequence[Sample]) -> int:
    """Return a group's number. Raises `UserError` where the data source has given none."""
    number = group[0].group_index
    if number is None:
        raise UserError("data.source gave a group without group_index: number the groups in the order of get_samples")
    return number


@dataclass(frozen=True)
class _Settings:
    """The settings by which batches are made, as SLiME's `args` have them."""

    batch_size: Annotated[int, Argument("rollout_batch_size"), Meta(ge=1)]
    max_over_sampling: Annotated[float, Argument("swe_max_over_sampling"), Meta(ge=1)]
    max_staleness: Annotated[int, Argument("swe_max_staleness"), Meta(ge=0)] = 0
    lag: Annotated[int, Argument("swe_version_lag"), Meta(ge=0)] = 0
    schedule: Annotated[str, Argument("swe_schedule"), Choice(SCHEDULES)] = SYNC

    def scheduler(self) -> Scheduler:
        if SCHEDULES[self.schedule].carries:
            return PacedAdmission(self.batch_size, self.max_staleness, self.lag)
        return DynamicSampling(self.batch_size, self.max_over_sampling, lag=self.lag)


# `FirstCalls` finds out whether the episodes with which a run begins call tools at all.
ENOUGH = 100  # episodes without a call: of a policy that calls in one of thirty, 97 runs in 100 go on


@dataclass
class FirstCalls:
    """Counts the episodes of the groups that began first, until one episode has called a tool.

    A group counts once all groups that began before it have ended: episodes without a call are over after few turns,
    so that those which end first say little of the others. A call in any that has ended settles it.
    """

    enough: int = ENOUGH
    malformed: int = 0  # calls
    called: bool = False
    _episodes: dict[int, int] = field(default_factory=dict)  # of each group that has ended

    def end(self, group: int, episodes: Sequence[tuple[int, int]]) -> None:
        """Count a group that has ended. episodes: for each in which the policy had a turn and which infrastructure did
        not break, how many calls were well-formed, and how many were malformed."""
        self.called = self.called or any(well_formed for well_formed, _ in episodes)
        self.malformed += sum(malformed for _, malformed in episodes)
        self._episodes[group] = len(episodes)

    def seen(self, running: Iterable[int]) -> int:
        """Return how many episodes have been without a call from the run's beginning; 0 once there was one. running:
        groups that have begun and not ended."""
        if self.called:
            self._episodes.clear()
            return 0
        first = min(running, default=math.inf)
        return sum(count for group, count in self._episodes.items() if group < first)

    def without_calls(self, running: Iterable[int]) -> bool:
        return self.seen(running) >= self.enough


def _why_no_calls(episodes: int, malformed: int, args: Any) -> str:
    """Return the message about a policy whose first episodes hold no well-formed tool call."""
    written = f"{malformed} are malformed" if malformed else "nor a malformed one"
    return (
        f"the first {episodes} episodes of rollout.agent={args.swe_agent} hold not one well-formed tool call "
        f"({written}), so that there is nothing to learn from: the policy must write its calls as "
        f"model.tool_format={args.swe_tool_format} reads them. What it writes, and which model.tool_format reads that, "
        f"says slime-swe probe recipe={args.swe_run_dir}/recipe.yaml. A policy that writes calls in no format needs "
        "a warm start on episodes that have some (slime-swe sft, and warm_start.data)"
    )
