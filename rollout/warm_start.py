"""Recorded episodes as training data: lines of a file, handed out as groups, and taken as they were sampled.

`slime-swe sft` writes the file. The two hooks here put its tokens in the place of sampled ones, so that a supervised
run goes through the same rollout function as any other, under SLiME and the embedded engine; no model is asked.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from slime_swe.data_sources.slime_plugin import TaskDataSource, named
from slime_swe.errors import UserError
from slime_swe.journal import LineIndex, Place
from slime_swe.rollout.records import sibling_index
from slime_swe.sample import Sample

_RECORDED = "recorded"  # of a sample's metadata: the file, and the places of the episode's lines


class RecordedSample(msgspec.Struct, frozen=True):
    """A line of the file, as far as it is trained; the samples of an episode stand together.

    episode: its name, which no other has. loss_mask: of the last tokens, the response; 1 where one is trained.
    vocabulary: `chat.tokenizer.vocabulary_of` the policy that sampled; empty where that was not known.
    """

    episode: str
    task: str
    tokens: list[int]
    loss_mask: list[int]
    reward: float | None = None
    vocabulary: str = ""


class About(msgspec.Struct, frozen=True, array_like=True):
    """The file's index entry of a line: how many tokens there are, and how many of them are trained."""

    episode: str
    task: str
    tokens: int
    trained: int
    vocabulary: str


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of the file. id: its name. metadata: as of a task; empty, so that no episode belongs to another."""

    metadata: ClassVar[Mapping[str, Any]] = {}
    id: str
    task: str
    file: str
    places: tuple[Place, ...]
    abouts: tuple[About, ...]


def read_recorded(path: Path) -> list[RecordedEpisode]:
    """Read the episodes of a file, in order. Raises `UserError` for a file without any, and for one of another kind."""
    if not path.is_file():
        raise UserError(f"there is no file {path}: `slime-swe sft RUN ... --out {path}` writes one of solved episodes")
    lines: dict[str, list[tuple[Place, About]]] = {}
    for place, about in _index(path).read():
        lines.setdefault(about.episode, []).append((place, about))
    if not lines:
        raise UserError(f"{path} has no episodes")
    return [
        RecordedEpisode(name, found[0][1].task, str(path), *(tuple(part) for part in zip(*found, strict=True)))
        for name, found in lines.items()
    ]


def read_sample(line: bytes, where: str) -> RecordedSample:
    """Read a line of the file. Raises `UserError` for a line that is no sample."""
    try:
        sample = msgspec.json.decode(line, type=RecordedSample)
    except msgspec.DecodeError as error:
        raise UserError(f"{where} is no sample that `slime-swe sft` has written with its tokens: {error}") from error
    tokens, response, trained = len(sample.tokens), len(sample.loss_mask), sum(sample.loss_mask)
    if not trained or response >= tokens:
        raise UserError(f"{where} has {tokens} tokens, {response} in its mask and {trained} to train behind a prompt")
    return sample


def _index(path: Path) -> LineIndex[About]:
    def about(line: bytes, where: str) -> About:
        sample = read_sample(line, where)
        return About(sample.episode, sample.task, len(sample.tokens), sum(sample.loss_mask), sample.vocabulary)

    return LineIndex(path, about, About)


class RecordedEpisodes(TaskDataSource):
    """Hands out recorded episodes as `TaskDataSource` does tasks (`data.source`). `data.train` names their files."""

    def _load(self, spec: str) -> Sequence[RecordedEpisode]:
        return read_recorded(Path(spec))

    def _sample(self, item: Any, index: int, group_index: int) -> Sample:
        episode: RecordedEpisode = item
        places = msgspec.to_builtins(episode.places)
        metadata = named(episode.task) | {_RECORDED: {"file": episode.file, "places": places}}
        return Sample(group_index=group_index, index=index, rollout_id=index, metadata=metadata)


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample | list[Sample]:
    """Return the recorded samples of an episode (`--custom-generate-function-path`), those after the first as siblings.

    They have no log-probabilities, as the policy that is trained is another one. Their reward is the recorded one.
    """
    given = (sample.metadata or {})[_RECORDED]
    path = Path(given["file"])
    index, samples = _index(path), list[Sample]()
    for number, place in enumerate(given["places"]):
        found = read_sample(index.line(Place(*place)), str(path))
        made = sample if number == 0 else copy.copy(sample)
        if number and sample.index is not None:
            made.index = sibling_index(sample.index, number)
        made.tokens, made.loss_mask, made.response_length = found.tokens, found.loss_mask, len(found.loss_mask)
        made.reward = samples[0].reward if samples else 1.0 if found.reward is None else found.reward
        made.status = Sample.Status.COMPLETED
        samples.append(made)
    return samples[0] if len(samples) == 1 else samples
