"""SWE-Gym: SWE-bench's format from before swebench 5, for eleven other repositories.

This module adds what SWE-Gym's harness adds: the image, by its name on Docker Hub, and each repository's test command.
The harness also reinstalls the project before the tests. That step is left out: it needs a network, and the images have
the project installed from the repository itself. Upstream: SWE-Gym/SWE-Bench-Fork, swebench/harness.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from slime_swe.data_sources.corpora import swebench
from slime_swe.data_sources.corpora.corpus import GB, Corpus, Split, load_records, patch_faults, read_record
from slime_swe.data_sources.corpora.eval_prologue import END, START
from slime_swe.data_sources.task import Task
from slime_swe.patches import added_paths, paths_of, read_patch

CORPUS = Corpus(
    name="swegym",
    title="SWE-Gym",
    licence="MIT",
    home="https://github.com/SWE-Gym/SWE-Gym",
    counted="the data set's card",
    sized="arXiv:2504.21798, table 1: 6 TB",
    needs="each task's image (xingyaoww/sweb.eval.x86_64.… on Docker Hub), and swebench to grade",
    splits={"train": Split(2438, "Python", "SWE-Gym/SWE-Gym", "train", images_gib=6000 * GB)},
)
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


FOLDER = "/testbed"
_CONDA = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
_END_OF_PATCH = "EOF_slime_swe_test_patch"


@dataclass(frozen=True)
class _Record:
    instance_id: str
    repo: str
    test_patch: str
    base_commit: str

    def faults(self) -> Iterator[str]:
        yield from patch_faults("test_patch", self.test_patch)
        if self.repo.lower() not in _TEST_COMMANDS:
            yield f"repo: how the tests of {self.repo} run is not known; known are {', '.join(_TEST_COMMANDS)}"


def _task(record: Any, split: str) -> Task:
    found = read_record(_Record, record)
    repo, patch = found.repo.lower(), found.test_patch
    script = with_test_patch(found.base_commit, patch, _command(repo, patch), _BEFORE.get(repo, ()))
    image = f"xingyaoww/sweb.eval.x86_64.{found.instance_id.replace('__', '_s_').lower()}"
    parser = _PARSERS.get(repo, "parse_log_pytest")
    added = {"image": image, "eval_script": script, "log_parser": parser, "eval_type": "pass_and_fail"}
    return swebench.task_of({**record, **added}, source="swegym", split=split)


def _command(repo: str, patch: str) -> str:
    command = _TEST_COMMANDS[repo]
    if repo == "python/mypy":  # its cases are in data files, and are chosen by name
        return f"{command} -k {shlex.quote(' or '.join(_MYPY_CASE.findall(patch)))}"
    return f"{command} {files_to_test(patch)}"


def files_to_test(patch: str) -> str:
    """Return the files that hold tests once a test patch is applied, as words of a shell: of one that it renames, its
    new name, and none that it deletes."""
    there = {change.new_path for change in read_patch(patch) if change.new_path is not None}
    return shlex.join(sorted(file for file in there if not file.endswith(_NO_TESTS)))


def with_test_patch(
    commit: str,
    patch: str,
    test_command: str,
    before: Sequence[str] = (),
    *,
    start: Sequence[str] = _CONDA,
    folder: str = FOLDER,
) -> str:
    """Write Bash for an image: the test files as at `commit`, with the test patch; the tests; the files put back.

    start: activates the Python environment, in a SWE-bench image conda's.
    """
    added = added_paths(patch)
    kept = [path for path in paths_of(patch) if path not in added]
    reset = [f"git checkout {commit} -- {shlex.join(kept)}"] if kept else []
    reset += [f"rm -rf -- {shlex.join(added)}"] if added else []
    apply = f"git apply -v - <<'{_END_OF_PATCH}'\n{patch.removesuffix(chr(10))}\n{_END_OF_PATCH}"
    lines = ["#!/bin/bash", "set -uxo pipefail", *start, f"cd {folder}"]
    lines += [f"git config --global --add safe.directory {folder}", *before, *reset, apply]
    return "\n".join([*lines, f": '{START}'", test_command, f": '{END}'", *reset]) + "\n"


load = partial(load_records, CORPUS, _task)
