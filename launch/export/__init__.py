"""`Exporter`: writes episodes in the format of another tool. It states here what it needs; nothing else names a format.

Adding one is a subclass in one file, given to `slime-swe export --to` by its dotted path; a line in `EXPORTERS` gives
it a short name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from slime_swe.dotted import load_registered
from slime_swe.launch.export.episodes import ExportedEpisode, ExportedRun

EXPORTERS: Mapping[str, str] = {
    "inspect": "slime_swe.launch.export.inspect_log.InspectLog",
    "atif": "slime_swe.launch.export.atif.Atif",
    "predictions": "slime_swe.launch.export.predictions.Predictions",
    "messages": "slime_swe.launch.export.messages.Messages",
    "mini": "slime_swe.launch.export.mini.Mini",
}


class Exporter:
    """One export.

    what: is written, in a few words. opened: the command that reads it, with `{path}`. packages: what it imports, which
    the extra `extra` brings. is_folder: it writes files into a folder, else one file. has_messages: it writes what was
    said, so that episodes need turns. needs_tokens: it writes what was sampled, so that they need tokens. Left out
    are, unless takes_broken, episodes that infrastructure broke, and, unless takes_silent, those in which nothing was
    said.
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
        """path: where to write; an empty folder where `is_folder`, else nothing is there."""
        self.path, self.run = path, run

    def add(self, episode: ExportedEpisode) -> None:
        """Write one more episode. Those of one moment come one after another."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left, after the last episode."""


def exporter_class(name: str) -> type[Exporter]:
    """The format of a name in `EXPORTERS`, or at a dotted path. Raises `UserError`."""
    found: type[Exporter] = load_registered(name, EXPORTERS, "--to")
    return found
