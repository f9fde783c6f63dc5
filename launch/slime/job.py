"""`Job`: one command that trains under SLiME or its fork, with everything that it needs beside it; the same as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from slime_swe.files import replace_file
from slime_swe.launch.slime.manifest import Manifest, split

SCRIPT = """#!/usr/bin/env bash
# Flags as {} takes them. On a running Ray cluster: export RAY_ADDRESS, and start Ray on every
# node with the variables below.
set -euo pipefail
"""


@dataclass(frozen=True)
class Job:
    """A command as a launcher starts it: every path is absolute, every value is text.

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
        """The arguments of the entry script: all flags with their values."""
        return [argument for group in self.flags.values() for argument in group]

    def write_files(self) -> None:
        """Write `files`, each whole or not at all, over what earlier starts of the run left."""
        for path, content in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content.encode())


def readable(job: Job) -> str:
    """Write the flags in their groups, one a line, then environment and files."""
    groups: dict[str, list[str]] = {heading: lines(argv) for heading, argv in job.flags.items()}
    groups["environment"] = [f"{name}={value}" for name, value in job.environment.items()]
    groups["files"] = []
    for path, content in job.files.items():
        groups["files"] += [f"{path}:", *(f"  {line}" for line in content.splitlines())]
    shown = (f"{heading}\n" + "".join(f"  {line}\n" for line in body) for heading, body in groups.items() if body)
    return "\n".join([" ".join(job.program), f"in {job.directory}, as {job.manifest.source} takes it\n", *shown])


def document(job: Job) -> dict[str, Any]:
    """Return the job in plain JSON types."""
    return {
        "argv": job.argv,
        "flags": {heading: list(argv) for heading, argv in job.flags.items()},
        "environment": dict(job.environment),
        "files": {str(path): content for path, content in job.files.items()},
        "directory": str(job.directory),
        "made_from": dict(job.manifest.made_from),
    }


def lines(argv: Sequence[str]) -> list[str]:
    """Quote each flag with its values for a shell."""
    return [" ".join([name, *map(quote, values)]) for name, values in split(argv)]


def script(job: Job) -> str:
    """Write a bash script that does what the launcher does, without Ray Jobs.

    It starts a Ray of its own on the machine that it runs on. Where RAY_ADDRESS names a running cluster it uses that
    one, whose nodes must have been started with the same environment.
    """
    said = [
        SCRIPT.format(job.manifest.source),
        *(f"export {name}={quote(value)}" for name, value in job.environment.items()),
    ]
    folders = dict.fromkeys([job.directory, *(path.parent for path in job.files)])
    said += ["", shlex.join(["mkdir", "-p", *map(str, folders)]), shlex.join(["cd", str(job.directory)])]
    said += [f"printf %s {quote(content)} > {quote(str(path))}" for path, content in job.files.items()]
    said += ["", "flags=("]
    for heading, argv in job.flags.items():
        said += [f"  # {heading}", *(f"  {line}" for line in lines(argv))]
    said += [")", f'exec {shlex.join(job.program)} "${{flags[@]}}"', ""]
    return "\n".join(said)
