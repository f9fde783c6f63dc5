"""`Exporter`: writes episodes in the format of another tool. It states here what it needs; nothing else names a format.

Read this file first: an exporter is given a run and its episodes, each with all of its samples and without secrets, as
`launch.episodes` reads them. Each format is a file beside it. Adding one is a subclass in one file, given to
`slime-swe export --to` by its dotted path; a line in `EXPORTERS` gives it a short name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.launch.episodes import RecordedEpisode
from slime_swe.launch.evaluation import Limits, limits_of
from slime_swe.recipes.base import Recipe
from slime_swe.redaction import Secrets, redacted

EXPORTERS: Mapping[str, str] = {
    "inspect": "slime_swe.launch.export.inspect_log.InspectLog",
    "atif": "slime_swe.launch.export.atif.Atif",
    "predictions": "slime_swe.launch.export.predictions.Predictions",
    "messages": "slime_swe.launch.export.messages.Messages",
    "mini": "slime_swe.launch.export.mini.Mini",
    "hf": "slime_swe.launch.export.traces.Traces",
}


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

    def add(self, episode: RecordedEpisode) -> None:
        """Write one more episode. Those of one moment come one after another."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left, after the last episode."""


def exporter_class(name: str) -> type[Exporter]:
    """Load the exporter of a name in `EXPORTERS`, or at a dotted path. Raises `UserError` for an unknown one."""
    found: type[Exporter] = load_registered(name, EXPORTERS, "--to")
    return found


@dataclass(frozen=True)
class ExportedRun:
    """A run. name: its own. model: the checkpoint that it began with, or evaluates. agent: as the recipe names it.
    limits: of its episodes, without which a solve rate says little."""

    name: str
    model: str
    agent: str
    limits: Limits

    @classmethod
    def of(cls, folder: Path, recipe: Recipe, secrets: Secrets) -> ExportedRun:
        names = folder.resolve().name, recipe.model.checkpoint, recipe.rollout.agent
        name, model, agent = redacted([*names], secrets)
        return cls(name, model, agent, limits_of(recipe))


def require_turns(episode: RecordedEpisode, journal: Path) -> None:
    """Raise `UserError` where the turns of an episode that is not broken were not recorded."""
    if not episode.first.broken and any(record.turns is None for record in episode.records):
        raise UserError(
            f"{journal} has no turns of the episode {episode.number} ({episode.task}): an earlier version recorded it, "
            "or a generate function of your own; only --to predictions can be written of it"
        )


def require_tokens(episode: RecordedEpisode, journal: Path) -> None:
    """Raise `UserError` where the tokens of an episode that is not broken were not recorded."""
    if not episode.first.broken and not any(record.tokens for record in episode.records):
        raise UserError(
            f"{journal} has no tokens of the episode {episode.number} ({episode.task}), as an endpoint gives none: "
            "export to a format of messages, such as messages, inspect or mini"
        )
