"""SWE-bench and everything in its format, by the fields that swebench 5 has made part of the data.

`eval_script`, `log_parser`, `eval_type` and `image` come with each record, so that no table of repositories and
versions is needed. Upstream: SWE-bench/SWE-bench, swebench/harness/utils.py (`make_test_spec`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson

from data_sources.corpora import CORPORA
from data_sources.patches import paths_of
from data_sources.reader import Reader, TaskError
from data_sources.records import corpus_records
from data_sources.task import EVAL_TYPES, HarnessOracle, Image, Task, Workspace

NEW_FIELDS = ("image", "eval_script", "log_parser", "eval_type")
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
_ABOUT = ("repo", "base_commit", "created_at", "version", "difficulty")
_ACTIVATES = re.compile(r"^(source \S*/activate|conda activate \S+)$")


def load(split: str, folder: Path | None = None) -> list[Task]:
    """The tasks of one part of SWE-bench. Raises `CorpusError` where it can't be had, `TaskError` for a bad record."""
    records = corpus_records(CORPORA["swebench"], split, folder)
    return [task_of(record, source="swebench", split=split) for record in records]


def task_of(record: Any, *, source: str, split: str) -> Task:
    """The task of one record in SWE-bench's format. Raises `TaskError` naming the first field that is wrong."""
    reader = Reader(record, key="instance_id")
    missing = [name for name in NEW_FIELDS if not reader.has(name)]
    if missing:
        raise TaskError(
            f"task {reader.name!r} has no {', '.join(missing)}: it is of SWE-bench's format from before swebench 5, "
            "which left these to the harness; download the data set anew"
        )
    script = reader.get("eval_script", str)
    reader.require(START in script and END in script, "eval_script", f"one that prints {START!r} and {END!r}", script)
    image = Image(reader.get("image", str), folder_of(script), setup_of(script))
    return Task(
        id=reader.get("instance_id", str),
        statement=reader.get("problem_statement", str),
        workspace=Workspace({}, image),
        oracle=_oracle(reader, script),
        source=source,
        split=split,
        metadata={name: str(reader.get(name, object)) for name in _ABOUT if reader.has(name)},
    )


def _oracle(reader: Reader, script: str) -> HarnessOracle:
    failing = tests_of(reader, "FAIL_TO_PASS")
    reader.require(bool(failing), "FAIL_TO_PASS", "at least one test", failing)
    kind = reader.get("eval_type", str)
    reader.require(kind in EVAL_TYPES, "eval_type", f"one of {', '.join(EVAL_TYPES)}", kind)
    return HarnessOracle(
        fail_to_pass=failing,
        pass_to_pass=tests_of(reader, "PASS_TO_PASS"),
        protected=paths_of(reader.get("test_patch", str)) if reader.has("test_patch") else (),
        repo=reader.get("repo", str),
        version=str(reader.get("version", (str, int, float))),
        eval_script=script,
        log_parser=reader.get("log_parser", str),
        gold_patch=reader.get("patch", str),
        eval_type=kind,
    )


def tests_of(reader: Reader, field: str) -> tuple[str, ...]:
    """Names of tests: a list, or as older data sets have it, the JSON of one."""
    value = reader.get(field, (str, list))
    try:
        names = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        names = None
    ok = isinstance(names, list) and all(isinstance(name, str) for name in names)
    reader.require(ok, field, "a list of strings, or its JSON", value)
    return tuple(names)


def folder_of(script: str) -> str:
    """Where an eval script expects the repository: what it first changes to."""
    match = re.search(r"^cd (/\S*)$", script, re.MULTILINE)
    return match[1] if match else "/testbed"


def setup_of(script: str) -> str:
    """The lines by which an eval script activates its Python environment; an agent's commands need them too."""
    lines = (line.strip() for line in script.partition(START)[0].splitlines())
    return "\n".join(dict.fromkeys(line for line in lines if _ACTIVATES.match(line)))
