"""`Exporter`: writes episodes in the format of another tool. It states here what it needs; nothing else names a format.

Read this file first: an exporter is given a run and its episodes, each with all of its samples and without secrets, as
they are read here. Each format is a file beside it. Adding one is a subclass in one file, given to `slime-swe export
--to` by its dotted path; a line in `EXPORTERS` gives it a short name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.launch.selection import Selected
from slime_swe.recipes.base import Recipe
from slime_swe.redaction import Secrets, redacted
from slime_swe.rollout.journals import TRAINED, TrainedSample, TrainedSamples, read_record, read_tools
from slime_swe.rollout.json_lines import Place
from slime_swe.rollout.records import Record
from slime_swe.rollout.turns import Turn, of_episode

EXPORTERS: Mapping[str, str] = {
    "inspect": "slime_swe.launch.export.inspect_log.InspectLog",
    "atif": "slime_swe.launch.export.atif.Atif",
    "predictions": "slime_swe.launch.export.predictions.Predictions",
    "messages": "slime_swe.launch.export.messages.Messages",
    "mini": "slime_swe.launch.export.mini.Mini",
}
TRAINING = "train"  # the name of the set whose episodes are trained on


class Exporter:
    """One export.

    what: what is written, in a few words. opened: the command that reads it, with `{path}`. packages: those that it
    imports, which the extra `extra` brings. is_folder: it writes files into a folder, else one file. has_messages: it
    writes what was said, so that episodes need turns. needs_tokens: it writes what was sampled, so that they need
    tokens. Left out are, unless takes_broken, episodes that infrastructure broke, and, unless takes_silent, those in
    which nothing was said.
    """

    what: ClassVar[str]
    opened: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""
    is_folder: ClassVar[bool] = True
    has_messages: ClassVar[bool] = True
    needs_tokens: ClassVar[bool] = False
    takes_broken: ClassVar[bool] = True
    takes_silent: ClassVar[bool] = False

    def __init__(self, path: Path, run: ExportedRun) -> None:
        """Begin an export. path: where to write; an empty folder where `is_folder`, else nothing is there."""
        self.path, self.run = path, run

    def add(self, episode: ExportedEpisode) -> None:
        """Write one more episode. Those of one moment come one after another."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left, after the last episode."""


def exporter_class(name: str) -> type[Exporter]:
    """Load the exporter of a name in `EXPORTERS`, or at a dotted path. Raises `UserError` for an unknown one."""
    found: type[Exporter] = load_registered(name, EXPORTERS, "--to")
    return found


# Exporters are given a run and its episodes.
@dataclass(frozen=True)
class ExportedRun:
    """A run. name: its own. model: the checkpoint that it began with, or evaluates. agent: as the recipe names it."""

    name: str
    model: str
    agent: str

    @classmethod
    def of(cls, folder: Path, recipe: Recipe, secrets: Secrets) -> ExportedRun:
        names = folder.resolve().name, recipe.model.checkpoint, recipe.rollout.agent
        return cls(*redacted([*names], secrets))


@dataclass(frozen=True)
class ExportedEpisode:
    """One episode. records: its samples, in the order of the journal. tools: the schemas that each of them offered.
    trained: what the step made of each, None where no step had it.
    """

    records: list[Record]
    tools: list[list[dict[str, Any]]]
    trained: list[TrainedSample | None]

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def moment(self) -> str:
        """The set and the rollout: `train-rollout3`, or `heldout-rollout-1` for the evaluation before the first."""
        name = re.sub(r"[^\w.]+", "-", self.first.dataset or TRAINING)
        return name if self.first.rollout_id is None else f"{name}-rollout{self.first.rollout_id}"

    @property
    def number(self) -> int:
        """The episode's number, unique within a moment."""
        found = self.first.index if self.first.trajectory is None else self.first.trajectory
        return 0 if found is None else found

    @property
    def task(self) -> str:
        return self.first.task or "unnamed"

    @property
    def task_file(self) -> str:
        """The task's name, as that of a file."""
        return re.sub(r"[^\w.-]+", "-", self.task)

    @property
    def started(self) -> float:
        """The Unix time at which the episode began, in seconds; 0.0 where it is not known."""
        return self.first.episode.timings.started if self.first.episode else 0.0

    @property
    def patch(self) -> str:
        return self.first.episode.patch if self.first.episode else ""

    @property
    def stop_reason(self) -> str:
        return self.first.episode.stop_reason if self.first.episode else ""

    @property
    def turns(self) -> list[Turn]:
        """The turns of the whole episode, each once, in order of time."""
        return of_episode(record.turns or [] for record in self.records)

    @property
    def advantage(self) -> float | list[float] | None:
        """The advantage of the sample that was trained first, as an episode's samples share it; None where none was."""
        return next((trained.advantage for trained in self.trained if trained), None)

    @property
    def error(self) -> str:
        """The infrastructure failure that broke the episode; empty where none has."""
        if not self.first.broken:
            return ""
        failure = self.first.infrastructure
        return f"{failure.where}: {failure.detail}".strip(": ") if failure else self.first.status

    def at(self, seconds: float) -> str | None:
        """Return the time, ISO 8601, so many seconds after the episode began; None where its begin is not known."""
        return utc(self.started + seconds) if self.started else None

    def about(self) -> dict[str, Any]:
        """Return what is known of the episode beside its messages and patch, in JSON's types."""
        first = self.first
        found = {
            "task": first.task,
            "set": first.dataset or TRAINING,
            "rollout": first.rollout_id,
            "index": first.index,
            "group": first.group_index,
            "outcome": first.outcome,
            "reward": first.reward,
            "advantage": self.advantage,
            "stop_reason": self.stop_reason,
            "weight_versions": first.weight_versions,
            "score": msgspec.to_builtins(first.score),
            "timings": msgspec.to_builtins(first.episode.timings) if first.episode else None,
            "counters": msgspec.to_builtins(first.episode.counters) if first.episode else None,
            "error": self.error or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def utc(seconds: float) -> str:
    """Format a Unix time, in seconds, by ISO 8601. Raises `UserError` for what is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise UserError(
            f"{seconds:g} seconds since 1970 is no time: "
            "`timings.started` of an episode, or `began` of a turn, is damaged"
        ) from error


def read_episodes(folder: Path, journal: Path, selected: Selected, secrets: Secrets) -> Iterator[ExportedEpisode]:
    """Yield the episodes of the selected records, those of one moment together; only their lines are read."""
    known: dict[str | None, list[dict[str, Any]]] = {}
    trained = TrainedSamples(folder / TRAINED)
    moments: dict[Any, dict[Any, list[Place]]] = {}
    for number, (place, summary) in enumerate(selected):
        name = ("unnamed", number) if summary.trajectory is None else summary.trajectory
        episodes = moments.setdefault((summary.dataset, summary.rollout), {})
        episodes.setdefault(name, []).append(place)
    for places in (places for episodes in moments.values() for places in episodes.values()):
        records = [read_record(journal, place, secrets) for place in places]
        for record in records:
            if record.tools not in known:
                known[record.tools] = redacted(read_tools(folder, record.tools), secrets)
        yield ExportedEpisode(records, [known[record.tools] for record in records], [*map(trained.of, records)])


def require_turns(episode: ExportedEpisode, journal: Path) -> None:
    """Raise `UserError` where the turns of an episode that is not broken were not recorded."""
    if not episode.first.broken and any(record.turns is None for record in episode.records):
        raise UserError(
            f"{journal} has no turns of the episode {episode.number} ({episode.task}): an earlier version recorded it, "
            "or a generate function of your own; only --to predictions can be written of it"
        )


def require_tokens(episode: ExportedEpisode, journal: Path) -> None:
    """Raise `UserError` where the tokens of an episode that is not broken were not recorded."""
    if not episode.first.broken and not any(record.tokens for record in episode.records):
        raise UserError(
            f"{journal} has no tokens of the episode {episode.number} ({episode.task}), as an endpoint gives none: "
            "export to a format of messages, such as messages, inspect or mini"
        )
