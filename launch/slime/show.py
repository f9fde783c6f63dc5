"""A job as text: grouped, for people to read, and as a shell script, to be run by hand."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from shlex import quote
from typing import Any

from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import split

SCRIPT = """#!/usr/bin/env bash
# Flags as {} takes them. On a running Ray cluster: export RAY_ADDRESS, and start Ray on every
# node with the variables below.
set -euo pipefail
"""


def readable(job: Job) -> str:
    """Flags in their groups, one a line, then environment and files."""
    groups: dict[str, list[str]] = {heading: lines(argv) for heading, argv in job.flags.items()}
    groups["environment"] = [f"{name}={value}" for name, value in job.environment.items()]
    groups["files"] = []
    for path, content in job.files.items():
        groups["files"] += [f"{path}:", *(f"  {line}" for line in content.splitlines())]
    shown = (f"{heading}\n" + "".join(f"  {line}\n" for line in body) for heading, body in groups.items() if body)
    return "\n".join([" ".join(job.program), f"in {job.directory}, as {job.manifest.source} takes it\n", *shown])


def document(job: Job) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "argv": job.argv,
        "flags": {heading: list(argv) for heading, argv in job.flags.items()},
        "environment": dict(job.environment),
        "files": {str(path): content for path, content in job.files.items()},
        "directory": str(job.directory),
        "made_from": dict(job.manifest.made_from),
    }


def lines(argv: Sequence[str]) -> list[str]:
    """Each flag with its values, quoted for a shell."""
    return [" ".join([name, *map(quote, values)]) for name, values in split(argv)]


def script(job: Job) -> str:
    """A bash script that does what the launcher does, without Ray Jobs.

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
