"""SWE-rebench: issues of thousands of Python repositories, by SWE-bench's method; and the Python part of its second
version, which has other fields, images and folders.

Records of the first have SWE-bench's fields, and in `install_config` how the project was installed and tested. As for
SWE-Gym, the step that reinstalls the project is left out: it needs a network, and the images have the project installed
from the repository itself. Upstream: SWE-rebench/SWE-bench-fork, swebench/harness.

The second version has twenty languages and a log parser of its own for nearly each. Taken are the tasks whose log is
pytest's. A test command is complete there, and the repository lies in a folder of its name, with the image's own
Python. Upstream: SWE-rebench/SWE-rebench-V2, scripts/eval.py and combine.Dockerfile.j2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from slime_swe.data_sources.corpora import swebench
from slime_swe.data_sources.corpora.corpus import Corpus, Split, load_records, patch_faults, read_record
from slime_swe.data_sources.corpora.swegym import files_to_test, with_test_patch
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.fields import read

CORPUS = Corpus(
    name="swerebench",
    title="SWE-rebench",
    licence="CC-BY-4.0",
    home="https://swe-rebench.com",
    counted="the Hub's viewer: 21,336 rows of test, 6,542 of filtered; V2: 32,079 in all languages, arXiv:2602.23866",
    needs="each task's image (swerebench/… and swerebenchv2/… on Docker Hub), and swebench to grade",
    splits={
        "filtered": Split(6542, "Python", "nebius/SWE-rebench", "filtered"),
        "test": Split(21336, "Python", "nebius/SWE-rebench", "test"),
        "v2": Split(None, "Python", "nebius/SWE-rebench-V2", "train"),
    },
)
PARSERS = ("parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2")


@dataclass(frozen=True)
class _Install:
    log_parser: str
    test_cmd: str | list[str]


@dataclass(frozen=True)
class _Record:
    instance_id: str
    repo: str
    base_commit: str
    test_patch: str
    install_config: Mapping[str, Any]
    docker_image: str = ""
    image_name: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def faults(self) -> Iterator[str]:
        yield from patch_faults("test_patch", self.test_patch)
        if "/" not in self.repo:
            yield f"repo must be OWNER/NAME, got {self.repo!r}"


def _task(record: Any, split: str) -> Task | None:
    """Return a record's task; None where its log is not pytest's, or no test must change from failing to passing."""
    found = read_record(_Record, record)
    install = read(_Install, found.install_config, f"task {found.instance_id!r:.80}: install_config", partial=True)
    if install.log_parser not in PARSERS or not record.get("FAIL_TO_PASS"):
        return None
    added = (_second if split == "v2" else _first)(found, install.test_cmd)
    added |= {"log_parser": install.log_parser, "eval_type": "pass_and_fail"}
    added |= {"version": record.get("version") or "", "created_at": _date(record.get("created_at"))}
    about = {"difficulty": _difficulty(found.meta)}
    return swebench.task_of({**record, **added, **about}, source="swerebench", split=split)


def _first(found: _Record, test_command: str | list[str]) -> dict[str, Any]:
    command = f"{_joined(test_command, ' ')} {files_to_test(found.test_patch)}"
    named = found.docker_image or found.image_name
    image = named or f"swerebench/sweb.eval.x86_64.{found.instance_id.lower().replace('__', '_1776_')}"
    return {"image": image, "eval_script": with_test_patch(found.base_commit, found.test_patch, command)}


def _second(found: _Record, test_command: str | list[str]) -> dict[str, Any]:
    if not found.image_name:
        raise UserError(f"task {found.instance_id!r:.80} has no image_name")
    folder = f"/{found.repo.partition('/')[2]}"
    command = _joined(test_command, "\n")
    script = with_test_patch(found.base_commit, found.test_patch, command, start=(), folder=folder)
    return {"image": found.image_name, "eval_script": script}


def _joined(command: str | list[str], by: str) -> str:
    return command if isinstance(command, str) else by.join(command)


def _difficulty(meta: Mapping[str, Any]) -> str | None:
    """Return how hard a model called it: a score in the first version, easy, medium or hard in the second."""
    said = meta.get("llm_score") or meta.get("llm_metadata") or {}
    if isinstance(said, list):
        said = said[0] if said else {}
    value = said.get("difficulty_score", said.get("difficulty")) if isinstance(said, Mapping) else None
    return None if value is None else str(value)


def _date(value: Any) -> str | None:
    """Return a date in ISO 8601, also of the milliseconds that some records have."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat()
    return None if value is None else str(value)


load = partial(load_records, CORPUS, _task)
