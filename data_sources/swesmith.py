"""SWE-smith: faults put into the code of Python projects; the gold patch is the fault's patch, reversed.

The images hold the projects without the fault. An image's setup puts it in and makes of the result a repository with
one commit, so that no history tells it. As SWE-smith's harness does, the files of the FAIL_TO_PASS tests are run, and
of PASS_TO_PASS those in these files count. Left out are the few projects whose tests are not run by pytest or whose
logs have a parser of their own, and patches that can't be reversed. Upstream: SWE-bench/SWE-smith, swesmith/harness.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from data_sources.corpora import CORPORA
from data_sources.patches import reverse
from data_sources.reader import Reader, TaskError
from data_sources.records import corpus_records
from data_sources.swebench import tests_of
from data_sources.task import Image, Task, TestOracle, Workspace

LEFT_OUT = frozenset(
    {"gin-gonic/gin", "hips/autograd", "paramiko/paramiko", "python/mypy", "tornadoweb/tornado", "un33k/python-slugify"}
)
TIMEOUT = 600.0  # seconds
_PYTEST = "pytest -rA --disable-warnings --color=no --tb=no"
_COMMANDS = {"mido/mido": f"{_PYTEST} -c /dev/null", "pydantic/pydantic": f"/root/.local/bin/uv run {_PYTEST}"}
_REPO = re.compile(r"^[^/]+/(.+?)__(.+)\.([0-9a-f]{8})$")  # swesmith/OWNER__NAME.COMMIT
# It is run again where the sandbox's shell was killed: what is done stays done.
_SETUP = """\
(
cd /testbed || exit 1
git -c safe.directory='*' rev-parse --quiet --verify refs/tags/slime-swe-start >/dev/null && exit
git -c safe.directory='*' apply --whitespace=nowarn - <<'EOF_slime_swe_fault' || exit 1
FAULT
EOF_slime_swe_fault
rm -rf .git && git init --quiet && git add --all &&
    git -c user.name=slime-swe -c user.email=slime-swe@localhost commit --quiet --message=start &&
    git tag slime-swe-start
) && source /opt/miniconda3/bin/activate && conda activate testbed"""


def load(split: str, folder: Path | None = None) -> list[Task]:
    """The tasks of SWE-smith. Raises `CorpusError` where they can't be had, `TaskError` for a bad record."""
    records = corpus_records(CORPORA["swesmith"], split, folder)
    return [task for record in records if (task := _task(record, split)) is not None]


def _task(record: Any, split: str) -> Task | None:
    """None for a task that is left out."""
    reader = Reader(record, key="instance_id")
    name, given = reader.get("instance_id", str), reader.get("repo", str)
    match = _REPO.match(given)
    if match is None:
        raise TaskError(f"task {name!r}: field 'repo' must be ACCOUNT/OWNER__NAME.COMMIT, got {given!r}")
    repo, fault = f"{match[1]}/{match[2]}", reader.get("patch", str)
    try:
        gold = reverse(fault)
    except ValueError:
        return None
    if repo.lower() in LEFT_OUT:
        return None
    image = Image(reader.get("image_name", str), "/testbed", setup(fault))
    metadata = {"repo": repo, "base_commit": match[3]}
    statement = reader.get("problem_statement", str)
    return Task(name, statement, Workspace({}, image), _oracle(reader, repo, gold), "swesmith", split, metadata)


def _oracle(reader: Reader, repo: str, gold: str) -> TestOracle:
    failing = tests_of(reader, "FAIL_TO_PASS")
    reader.require(bool(failing), "FAIL_TO_PASS", "at least one test", failing)
    files = tuple(dict.fromkeys(test.partition("::")[0] for test in failing))
    passing = tests_of(reader, "PASS_TO_PASS")
    return TestOracle(
        fail_to_pass=failing,
        pass_to_pass=tuple(test for test in passing if test.partition("::")[0] in files),
        protected=files,
        command=f"{_COMMANDS.get(repo.lower(), _PYTEST)} {shlex.join(files)}",
        gold_patch=gold,
        timeout_seconds=TIMEOUT,
    )


def setup(fault: str) -> str:
    """Shell that puts the fault into an image's repository, once."""
    return _SETUP.replace("FAULT", fault.removesuffix("\n"))
