"""SWE-bench and everything in its format, by the fields that swebench 5 has made part of the data.

`eval_script`, `log_parser`, `eval_type` and `image` come with each record, so that no table of repositories and
versions is needed. Upstream: SWE-bench/SWE-bench, swebench/harness/utils.py (`make_test_spec`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import orjson

from slime_swe.data_sources.corpora.corpus import (
    Corpus,
    Split,
    load_records,
    patch_faults,
    read_record,
    statement_faults,
    test_faults,
    tests_of,
)
from slime_swe.data_sources.corpora.eval_prologue import END, START, folder_of, setup_of
from slime_swe.data_sources.task import HarnessOracle, Image, Task, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import paths_of

_NINE = "C, C++, Go, Java, JavaScript, TypeScript, PHP, Ruby, Rust"
CORPUS = Corpus(
    name="swebench",
    title="SWE-bench",
    licence="MIT",
    home="https://github.com/SWE-bench/SWE-bench",
    counted="docs/guides/datasets.md and the data sets' cards",
    sized="Verified: logicstar.ai/blog/how-we-made-swe-bench-50x-smaller; full: epoch.ai/blog/swebench-docker",
    needs="each task's image (named in its record), and swebench to grade",
    splits={
        "verified": Split(500, "Python", "SWE-bench/SWE-bench_Verified", "test", images_gib=240.0),
        "lite": Split(300, "Python", "SWE-bench/SWE-bench_Lite", "test"),
        "multilingual": Split(300, _NINE, "SWE-bench/SWE-bench_Multilingual", "test"),
        "full": Split(2294, "Python", "SWE-bench/SWE-bench", "test", images_gib=684.0),
    },
)
NEW_FIELDS = ("image", "eval_script", "log_parser", "eval_type")
_ABOUT = ("repo", "base_commit", "created_at", "version", "difficulty")


@dataclass(frozen=True)
class _Record:
    instance_id: str
    problem_statement: str
    repo: str
    version: str | int | float
    image: str
    eval_script: str
    log_parser: str
    eval_type: Literal["pass_and_fail", "fail_only"]
    patch: str
    FAIL_TO_PASS: str | list[str]
    PASS_TO_PASS: str | list[str]
    test_patch: str = ""
    image_assets: str | dict[str, Any] = ""

    def faults(self) -> Iterator[str]:
        yield from statement_faults(self.problem_statement)
        yield from (f"{name} must not be empty" for name in ("image", "log_parser") if not getattr(self, name))
        yield from test_faults(self.FAIL_TO_PASS, self.PASS_TO_PASS)
        yield from patch_faults("test_patch", self.test_patch)
        if START not in self.eval_script or END not in self.eval_script:
            yield f"eval_script must be one that prints {START!r} and {END!r}, got {self.eval_script[:80]!r}"
        try:
            folder_of(self.eval_script)
        except ValueError as error:
            yield str(error)
        if _names_images(self.image_assets):
            yield "image_assets are not supported: the statement or the tests need images"


def _names_images(assets: str | dict[str, Any]) -> bool:
    """Say whether a field's list, or the JSON of such lists, names any. What is no JSON names one."""
    try:
        lists = orjson.loads(assets) if isinstance(assets, str) and assets.strip() else assets
    except orjson.JSONDecodeError:
        return True
    return any(lists.values()) if isinstance(lists, dict) else bool(lists)


def task_of(record: Any, split: str, *, source: str = "swebench") -> Task:
    """Return the task of one record in SWE-bench's format. Raises `UserError` that names the task and what is wrong."""
    name = record.get("instance_id") if isinstance(record, dict) else None
    missing = [field for field in NEW_FIELDS if isinstance(record, dict) and record.get(field) is None]
    if missing:
        raise UserError(
            f"task {name!r:.80} has no {', '.join(missing)}: it is of SWE-bench's format from before swebench 5, "
            "which left these to the harness; download the data set anew"
        )
    found = read_record(_Record, record)
    oracle = HarnessOracle(
        fail_to_pass=tests_of(found.FAIL_TO_PASS),
        pass_to_pass=tests_of(found.PASS_TO_PASS),
        protected=paths_of(found.test_patch),
        repo=found.repo,
        version=str(found.version),
        eval_script=found.eval_script,
        log_parser=found.log_parser,
        gold_patch=found.patch,
        eval_type=found.eval_type,
    )
    image = Image(found.image, folder_of(found.eval_script), setup_of(found.eval_script))
    about = {field: str(record[field]) for field in _ABOUT if record.get(field) is not None}
    return Task(found.instance_id, found.problem_statement, Workspace({}, image), oracle, source, split, about)


load = partial(load_records, CORPUS, task_of)
