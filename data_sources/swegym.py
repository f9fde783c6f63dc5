"""SWE-Gym: SWE-bench's format from before swebench 5, for eleven other repositories.

What its harness adds is added here: the image by its name on Docker Hub, and the command by which each repository's
tests run. Its harness also installs the project anew before the tests; that is left out, since it needs a network and
the images have it installed from the repository itself. Upstream: SWE-Gym/SWE-Bench-Fork, swebench/harness.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from data_sources import eval_script, swebench
from data_sources.corpora import CORPORA
from data_sources.patches import paths_of
from data_sources.reader import Reader, TaskError
from data_sources.records import corpus_records
from data_sources.task import Task

_TEST_COMMANDS = {
    "bokeh/bokeh": "pytest -rA -n0",
    "conan-io/conan": "pytest -n0 -rA",
    "dask/dask": "pytest -n0 -rA --color=no",
    "facebookresearch/hydra": "pytest -rA --tb=long",
    "getmoto/moto": "pytest -n0 -rA",
    "iterative/dvc": "pytest -rA",
    "modin-project/modin": "pytest -n0 -rA",
    "pandas-dev/pandas": "pytest -rA --tb=long",
    "project-monai/monai": "pytest -rA",
    "pydantic/pydantic": "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
    "python/mypy": "pytest -n0 -rA",
}
_BEFORE = {"conan-io/conan": ("export PYTHONPATH=${PYTHONPATH:-}:$(pwd)",)}
_PARSERS = {"pydantic/pydantic": "parse_log_pytest_v2"}
_NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_MYPY_CASE = re.compile(r"\[case ([^\]]+)\]")


def load(split: str, folder: Path | None = None) -> list[Task]:
    """The tasks of SWE-Gym. Raises `CorpusError` where they can't be had, `TaskError` for a bad record."""
    return [_task(record, split) for record in corpus_records(CORPORA["swegym"], split, folder)]


def _task(record: Any, split: str) -> Task:
    reader = Reader(record, key="instance_id")
    repo, patch = reader.get("repo", str), reader.get("test_patch", str)
    if repo.lower() not in _TEST_COMMANDS:
        raise TaskError(
            f"task {reader.name!r}: how the tests of {repo} run is not known; known are {', '.join(_TEST_COMMANDS)}"
        )
    command, before = _command(repo.lower(), patch), _BEFORE.get(repo.lower(), ())
    script = eval_script.with_test_patch(reader.get("base_commit", str), patch, command, before)
    image = f"xingyaoww/sweb.eval.x86_64.{reader.name.replace('__', '_s_').lower()}"
    parser = _PARSERS.get(repo.lower(), "parse_log_pytest")
    added = {"image": image, "eval_script": script, "log_parser": parser, "eval_type": "pass_and_fail"}
    return swebench.task_of({**record, **added}, source="swegym", split=split)


def _command(repo: str, patch: str) -> str:
    command = _TEST_COMMANDS[repo]
    if repo == "python/mypy":  # its cases are in data files, and are chosen by name
        return f"{command} -k {shlex.quote(' or '.join(_MYPY_CASE.findall(patch)))}"
    return f"{command} {shlex.join(file for file in paths_of(patch) if not file.endswith(_NO_TESTS))}"
