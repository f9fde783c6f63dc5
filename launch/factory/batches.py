"""`Batches`: many runs of a project's tests in one sandbox, at a part of the cost of starting pytest each time."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace

from slime_swe.data_sources.factory.runs import PROGRAM, Job, Run, decoded, encoded, located, longest
from slime_swe.rollout.sandbox.base import Limits, Sandbox

LIMITS = Limits(cpu_seconds=3600, wall_seconds=3600, processes=256)
TRACING = replace(LIMITS, memory_bytes=4 << 30)  # coverage keeps which of all tests ran which line
_PLACE = "/tmp/slime-swe-tests"
_JOBS, _RESULTS, _COVERAGE = f"{_PLACE}/jobs.json", f"{_PLACE}/results.jsonl", f"{_PLACE}/coverage.zip"


class Batches:
    """Of one open sandbox that holds the project, and for one caller at a time."""

    def __init__(self, sandbox: Sandbox, arguments: Sequence[str]) -> None:
        """arguments: of every call of pytest."""
        self._sandbox = sandbox
        self._arguments = list(arguments)
        self._is_ready = self._has_coverage = False

    async def run(self, jobs: Sequence[Job]) -> list[Run]:
        """One after the other, each from the project as it is. Raises `SandboxError`, and `UserError` where none of
        them can be run, or where one is to be traced and coverage is not installed here."""
        if not self._is_ready:
            await self._sandbox.write_file(f"{_PLACE}/{PROGRAM.name}", PROGRAM.read_bytes())
            self._is_ready = True
        if not self._has_coverage and any(job.traced for job in jobs):
            await self._sandbox.write_file(_COVERAGE, _packed("coverage"))
            await self._sandbox.exec(f"python3 -m zipfile -e {_COVERAGE} {_PLACE}")
            self._has_coverage = True
        await self._sandbox.write_file(_JOBS, encoded(jobs, self._arguments))
        command = f"rm -f {_RESULTS}; python3 {_PLACE}/{PROGRAM.name} {_JOBS} {_RESULTS}"
        printed = (await self._sandbox.exec(command, timeout=longest(jobs))).output
        try:
            results = await self._sandbox.read_file(_RESULTS)
        except OSError:  # there is none, or it is no file
            results = b""
        return decoded(results, jobs, printed)


def _packed(package: str) -> bytes:
    """Its modules, those in C too: with its tracer in Python alone coverage is many times slower. An interpreter that
    these are not for has that one."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(located(package).iterdir()):
            if path.suffix in (".py", ".so"):
                archive.write(path, f"{package}/{path.name}")
    return packed.getvalue()
