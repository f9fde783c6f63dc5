"""A rollout's record under one recipe, by the run's own functions: group filter, advantages, masks, denominators."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slime_swe.embedded.train_data import TrainData, split_steps, to_train_data, token_weights
from slime_swe.errors import UserError
from slime_swe.fields import read_arguments
from slime_swe.launch.slime.render import plugin_settings, shared
from slime_swe.recipes.base import Recipe, Reward
from slime_swe.recipes.rules import staleness
from slime_swe.rewards.compose import OVERLONG, Composition, composed, weights_in_use
from slime_swe.rewards.grade import value_of
from slime_swe.rollout.collect import LOST, is_lost, why_filtered
from slime_swe.rollout.hooks import optional_hook, required_hook
from slime_swe.rollout.journals import read_rollouts
from slime_swe.rollout.records import Record, Score, is_removed, leaves_out, loss_mask_of, sample_of, trajectories
from slime_swe.rollout.replies import INITIAL_WEIGHTS
from slime_swe.rollout.scheduling.schedulers import SCHEDULES
from slime_swe.sample import Sample

STALE, NOT_NEEDED = "too_stale", "not_needed"  # why groups that the filter keeps are in no batch


@dataclass(frozen=True)
class Weighed:
    """A sample. reason: why its group is in no batch, empty where it is in one. tokens: how many are in the loss.
    weight: that of each of them in its optimizer step; a token's part in the gradient is `advantage * weight`, where
    the ratio is 1."""

    reason: str = ""
    advantage: float = 0.0
    tokens: int = 0
    weight: float = 0.0


@dataclass(frozen=True)
class Replayed:
    """A rollout under one recipe.

    weighed: by place of the record; None for what was not drawn. dropped: group -> why it is in no batch. missing:
    how many groups the batch lacks, which would have to be sampled. removed: places of what is out of the loss.
    trained_tokens: as in `metrics.jsonl`. pg_loss: as there, were all ratios 1; None where nothing is trained.
    """

    weighed: list[Weighed | None]
    dropped: dict[int, str]
    missing: int
    removed: frozenset[int]
    trained_tokens: int
    pg_loss: float | None


class Replay:
    """One recipe's functions and settings. own: the run's recipe, whose rewards are in the record."""

    def __init__(self, recipe: Recipe, folder: Path, own: Recipe) -> None:
        self.recipe, self.own = recipe, own
        sections = shared(recipe, folder).values()
        self.args = Namespace(**{key: value for section in sections for key, value in section.items()})
        vars(self.args).update(plugin_settings(recipe, folder))
        self.group_filter = optional_hook(self.args, "dynamic_sampling_filter_path")
        self.post_process = required_hook(self.args, "custom_reward_post_process_path")
        algorithm = recipe.algorithm
        self.is_pure = algorithm.kl_coef == 0 and algorithm.entropy_coef == 0
        self.oldest = staleness(recipe) if SCHEDULES[recipe.rollout.schedule].carries else None

    def samples(self, recorded: Recorded) -> list[Sample]:
        """Return the samples as this recipe would have them, by place of their records."""
        made: dict[int, Sample] = {}
        for places in recorded.episodes:
            records = [recorded.records[place] for place in places]
            made |= zip(places, self._episode(records), strict=True)
        return [made[place] for place in range(len(recorded.records))]

    def _episode(self, records: Sequence[Record]) -> list[Sample]:
        records = rescored(records, self.args, self.own.reward, self.recipe.reward)
        samples, episode = [sample_of(record) for record in records], records[0].episode
        if episode is None or any(record.broken for record in records):
            return samples
        masks = [loss_mask_of(sample) for sample in samples]
        masked = leaves_out(masks, episode.stop_reason, self.recipe.rollout.mask_truncated)
        for sample, mask in zip(samples, masks, strict=True):
            sample.remove_sample = is_removed(mask, masked)
            sample.metadata["episode"]["masked"] = masked
        return samples

    def of(self, recorded: Recorded, samples: Sequence[Sample], groups: Groups) -> Replayed:
        """Replay a rollout. samples: from `samples`. groups: those of the record, or a part of each one's episodes."""
        dropped = self._dropped(recorded, samples, groups)
        batch = [number for number in groups if number not in dropped]
        size = self.recipe.rollout.batch_size
        dropped |= dict.fromkeys(batch[size:], NOT_NEEDED)
        weighed: list[Weighed | None] = [None] * len(samples)
        for number, reason in dropped.items():
            for place in _places(groups[number]):
                weighed[place] = Weighed(reason)
        places = [place for number in batch[:size] for place in _places(groups[number])]
        data, order = self._train_data(samples, places)
        tokens, losses = 0, []
        for step in _steps(data, self.recipe.algorithm.steps_per_rollout):
            weights = token_weights(
                data, step, self.recipe.algorithm.reduction, max_context=self.recipe.rollout.max_context
            )
            trained, loss = 0, 0.0
            for row in step:
                found = Weighed("", data.advantages[row], sum(data.loss_masks[row]), weights.get(row, 0.0))
                weighed[order[row]] = found
                if found.advantage or not self.is_pure:
                    trained += found.tokens
                    loss -= found.tokens * found.weight * found.advantage
            tokens += trained
            losses += [loss] if trained else []
        removed = frozenset(place for place in places if samples[place].remove_sample)
        mean = sum(losses) / len(losses) if losses else None
        return Replayed(weighed, dropped, max(0, size - len(batch)), removed, tokens, mean)

    def _dropped(self, recorded: Recorded, samples: Sequence[Sample], groups: Groups) -> dict[int, str]:
        found = {}
        for number, episodes in groups.items():
            played = [[samples[place] for place in places] for places in episodes]
            if is_lost([any(recorded.records[place].broken for place in places) for places in episodes]):
                found[number] = LOST
            elif reason := why_filtered(self.args, self.group_filter, [p if len(p) > 1 else p[0] for p in played]):
                found[number] = reason
            elif self._is_stale(recorded.staleness[number]):
                found[number] = STALE
        return found

    def _is_stale(self, steps: int | None) -> bool:
        """Say whether weights this many updates old are beyond the bound.

        Raises `UserError` where the bound is not the run's and the record does not say how old the weights were.
        """
        if self.oldest is None or self.recipe.rollout.max_staleness == self.own.rollout.max_staleness:
            return False
        if steps is None:
            raise UserError("rollout.max_staleness: the record does not number the weights that sampled its episodes")
        return steps > self.oldest

    def _train_data(self, samples: Sequence[Sample], places: Sequence[int]) -> tuple[TrainData, list[int]]:
        """Return what the trainer is given, and the place of the record of each of its rows."""
        if not places:
            return TrainData([], [], [], [], [], []), []
        of_sample = {id(samples[place]): place for place in places}
        order: list[int] = []

        def post_process(args: Namespace, rows: list[Sample]) -> tuple[list[float], list[float]]:
            order.extend(of_sample[id(sample)] for sample in rows)
            found: tuple[list[float], list[float]] = self.post_process(args, rows)
            return found

        return to_train_data(self.args, [samples[place] for place in places], post_process), order


# One rollout of a record: its groups, their episodes, and how old the weights were that sampled them.
Groups = dict[int, list[list[int]]]


@dataclass(frozen=True)
class Recorded:
    """One rollout of a record.

    groups: number -> its episodes, each the places of its records, in the order in which groups began. staleness: for
    each group, by how many weight updates the oldest weights that sampled it were behind those that it trains; None
    where the record does not say.
    """

    rollout: int
    records: list[Record]
    groups: Groups
    staleness: dict[int, int | None]

    @property
    def episodes(self) -> Iterator[list[int]]:
        return (places for group in self.groups.values() for places in group)


def read_recorded(journal: Path) -> Iterator[Recorded]:
    """Yield a run's rollouts, one in memory at a time. Raises `UserError` where it has none, or a sample is of none."""
    first: dict[int | None, tuple[int, int | None]] = {}  # attempt -> its first rollout, and its newest weights
    empty = True
    for records in read_rollouts(journal):
        empty = False
        rollout, attempt = records[0].rollout_id, records[0].attempt
        if rollout is None:
            raise UserError(f"{journal}: record {records[0].index} names no rollout: it was not written by a run")
        start, newest = first.setdefault(attempt, (rollout, _newest(records)))
        current = None if newest is None else newest + rollout - start
        groups = _groups(records, journal)
        ages = {
            number: _age([records[p] for places in group for p in places], current) for number, group in groups.items()
        }
        yield Recorded(rollout, records, groups, ages)
    if empty:
        raise UserError(f"{journal} has no episode yet: there is nothing to replay")


def _groups(records: list[Record], journal: Path) -> Groups:
    places = {id(record): place for place, record in enumerate(records)}
    groups: Groups = {}
    for segments in trajectories(records):
        number = segments[0].group_index
        if number is None:
            raise UserError(f"{journal}: record {segments[0].index} names no group: there is no baseline to compute")
        groups.setdefault(number, []).append([places[id(segment)] for segment in segments])
    return dict(sorted(groups.items()))


def _newest(records: Iterable[Record]) -> int | None:
    return max((version for record in records for version in _versions(record) or ()), default=None)


def _age(records: list[Record], current: int | None) -> int | None:
    versions = [_versions(record) for record in records]
    if current is None or None in versions:
        return None
    return max(0, current - min((version for found in versions for version in found or ()), default=current))


def _versions(record: Record) -> list[int] | None:
    """Return the numbers of the weights that sampled a record: -1 stands for those of a server's start, before the
    first update's. It is None where some have another name."""
    names = record.weight_versions
    if not all(name == INITIAL_WEIGHTS or name.isdecimal() for name in names):
        return None
    return [-1 if name == INITIAL_WEIGHTS else int(name) for name in names]


# Recorded scores under another `reward.mode` or other components.
def rescored(segments: Sequence[Record], args: Namespace, own: Reward, other: Reward) -> list[Record]:
    """Return an episode's records with the reward that it would have had, or the recorded one where it has no score."""
    score, episode = segments[0].score, segments[0].episode
    if score is None or episode is None or own == other:
        return [*segments]
    new = composed(_bare(score, own, other), segments, episode, read_arguments(Composition, args))
    if score.spread is not None:
        new = msgspec.structs.replace(new, spread=other.least_spread)
    return [msgspec.structs.replace(segment, score=new, reward=new.value) for segment in segments]


def _bare(score: Score, own: Reward, other: Reward) -> Score:
    """Return the outcome's score, without the components that the run had."""
    windows = {name: getattr(own, name) for name in OVERLONG}
    names = weights_in_use(own.weights, windows, own.overlong_penalty)
    components = {name: part for name, part in score.components.items() if name not in names}
    if own.mode != other.mode:
        value = value_of(other.mode, score.solved)
    elif own.mode == "fraction" and "quality" in score.evidence:
        value = score.evidence["quality"]
    else:  # rounded, so that what was equal before components were added is equal again
        value = round(score.value - sum(score.components.get(name, 0.0) for name in names), 12)
    return msgspec.structs.replace(score, value=value, components=components)


def _steps(data: TrainData, steps: int) -> list[list[int]]:
    """Split the rows into optimizer steps, at most as many as there are rollouts to deal out."""
    return split_steps(data.rollout_ids, min(steps, len(set(data.rollout_ids)))) if len(data) else []


def _places(group: Sequence[Sequence[int]]) -> list[int]:
    return [place for places in group for place in places]
