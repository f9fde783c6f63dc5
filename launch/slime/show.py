"""A job as text: grouped, for people to read, and as a shell script, to be run by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import load_manifest, split

PROMPTS = "slime_swe.launch.slime.prompts"


def readable(job: Job) -> str:
    """Flags in their groups, one a line, then environment and files."""
    groups: dict[str, list[str]] = {heading: lines(argv) for heading, argv in job.flags.items()}
    groups["environment"] = [f"{name}={value}" for name, value in job.environment.items()]
    groups["files"] = [line for path, content in job.files.items() for line in _file(path, content)]
    groups["files"] += [f"{path}: the tasks of {spec}" for path, spec in job.prompts.items()]
    shown = (f"{heading}\n" + "".join(f"  {line}\n" for line in body) for heading, body in groups.items() if body)
    return "\n".join([" ".join(job.program), f"in {job.directory}, as {made_from()} takes it\n", *shown])


def document(job: Job) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "argv": job.argv,
        "flags": {heading: list(argv) for heading, argv in job.flags.items()},
        "environment": dict(job.environment),
        "files": {str(path): content for path, content in job.files.items()},
        "prompts": {str(path): spec for path, spec in job.prompts.items()},
        "directory": str(job.directory),
        "made_from": dict(load_manifest().made_from),
    }


def script(job: Job) -> str:
    """A bash script that does what the launcher does, without Ray Jobs.

    It starts a Ray of its own on the machine that it runs on. Where RAY_ADDRESS names a running cluster it uses that
    one, whose nodes must have been started with the same environment.
    """
    return "\n".join(_script_lines(job)) + "\n"


def lines(argv: Sequence[str]) -> list[str]:
    """Each flag with its values, quoted for a shell."""
    return [" ".join([name, *map(quote, values)]) for name, values in split(argv)]


def made_from() -> str:
    made = load_manifest().made_from
    return f"SLiME {made['slime'][:9]}"


def _file(path: Path, content: str) -> list[str]:
    return [f"{path}:", *(f"  {line}" for line in content.splitlines())]


def _script_lines(job: Job) -> Iterator[str]:
    yield "#!/usr/bin/env bash"
    yield f"# Flags as {made_from()} takes them. On a running Ray cluster: export RAY_ADDRESS, and start Ray on every"
    yield "# node with the variables below."
    yield "set -euo pipefail"
    yield ""
    for name, value in job.environment.items():
        yield f"export {name}={quote(value)}"
    yield ""
    for folder in dict.fromkeys([job.directory, *(path.parent for path in (*job.files, *job.prompts))]):
        yield f"mkdir -p {quote(str(folder))}"
    yield f"cd {quote(str(job.directory))}"
    for path, content in job.files.items():
        yield f"printf %s {quote(content)} > {quote(str(path))}"
    for path, spec in job.prompts.items():
        yield f"{quote(job.program[0])} -m {PROMPTS} {quote(spec)} {quote(str(path))}"
    yield ""
    yield "flags=("
    for heading, argv in job.flags.items():
        yield f"  # {heading}"
        for line in lines(argv):
            yield f"  {line}"
    yield ")"
    yield f'exec {" ".join(map(quote, job.program))} "${{flags[@]}}"'
