"""`Job`: one command that trains under SLiME or its fork, with everything that it needs beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slime_swe.files import replace_file
from slime_swe.launch.slime.manifest import Manifest


@dataclass(frozen=True)
class Job:
    """What a launcher starts, as it is: every path is absolute, every value is text.

    program: the interpreter, the module of ours that runs the entry script, if any, and the script.
    flags: heading for people -> that group of flags with their values.
    environment: variables that the command and every Ray worker of it need, added to what is there.
    files: path -> content; all of them lie in `directory` and must be there before the command starts.
    directory: the run's folder, which the command is started in, so that strays of any library land there.
    manifest: the flags that there are.
    """

    program: tuple[str, ...]
    flags: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, str]
    files: Mapping[Path, str]
    directory: Path
    manifest: Manifest = field(repr=False, compare=False)

    @property
    def argv(self) -> list[str]:
        """The whole command."""
        return [*self.program, *self.words]

    @property
    def words(self) -> list[str]:
        """What the entry script is given: all flags with their values."""
        return [argument for group in self.flags.values() for argument in group]

    def write_files(self) -> None:
        """Write `files`, each whole or not at all, over what earlier starts of the run left."""
        for path, content in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content.encode())
