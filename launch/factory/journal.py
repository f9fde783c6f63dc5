"""What was found of each candidate, a line each, so that an interrupted `make-tasks` goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import orjson

from slime_swe import files
from slime_swe.data_sources.factory.candidates import Candidate
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.errors import UserError
from slime_swe.launch.factory.proof import Verdict

FORM = 1  # of the lines, and of how candidates are proven: a line of another does not count


class _Line(msgspec.Struct, omit_defaults=True):
    """task: without its files, which the candidate has."""

    digest: str
    form: int
    reason: str = ""
    detail: str = ""
    task: dict[str, Any] | None = None


class Journal:
    """Raises `UserError` where the file holds something else or can't be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = files.read_given(path, "the journal") if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        try:
            lines = msgspec.json.Decoder(_Line).decode_lines(whole)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} is no journal of make-tasks ({error}): remove it, or give another --out"
            ) from error
        if whole != text:  # a killed run left a part of a line
            with files.writing(path):
                files.replace_file(path, whole)
        self._known = {line.digest: line for line in lines if line.form == FORM}

    def __len__(self) -> int:
        return len(self._known)

    def known(self, candidate: Candidate) -> Verdict | None:
        line = self._known.get(candidate.digest)
        if line is None:
            return None
        if line.task is None:
            return Verdict(candidate, None, line.reason, line.detail)
        task = Task.from_dict({**line.task, "workspace": {"files": candidate.broken_files()}})
        return Verdict(candidate, task)

    def add(self, verdict: Verdict) -> None:
        task = None
        if verdict.task is not None:
            task = replace(verdict.task, workspace=Workspace()).to_dict()
            del task["workspace"]
        line = _Line(verdict.candidate.digest, FORM, verdict.reason, verdict.detail, task)
        with files.writing(self.path):
            files.append(self.path, orjson.dumps(msgspec.to_builtins(line)) + b"\n")
        self._known[line.digest] = line
