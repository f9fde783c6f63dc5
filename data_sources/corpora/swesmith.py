"""SWE-smith: bugs inserted into Python projects; the gold patch is the bug's patch, reversed.

The images hold the projects without the bug. An image's setup inserts it and commits the result as a repository with
one commit, so that no history shows it. As in SWE-smith's harness, the files of the FAIL_TO_PASS tests are run, and
only the PASS_TO_PASS tests in these files count.

That harness counts a test that the log does not name as passed. For FAIL_TO_PASS also holds tests that failed with the
bug and are gone without it, such as those of a case that the bug put into a table. Here it counts as passed if the gold
patch's log does not name it either.

Left out are the few projects whose tests are not run by pytest or whose logs need a parser of their own, and patches
that can't be reversed. Upstream: SWE-bench/SWE-smith, swesmith/harness.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from slime_swe.data_sources.corpora.corpus import (
    GB,
    Corpus,
    Split,
    load_records,
    read_record,
    statement_faults,
    test_faults,
    tests_of,
)
from slime_swe.data_sources.task import Image, Task, TestsOracle, Workspace
from slime_swe.patches import PatchError, reverse_patch

CORPUS = Corpus(
    name="swesmith",
    title="SWE-smith",
    licence="MIT",
    home="https://github.com/SWE-bench/SWE-smith",
    counted="the readme: about 50,000; an exact figure is not given there",
    sized="arXiv:2504.21798, table 1: 295 GB for 128 repositories",
    needs="each task's image, which its record names",
    splits={"train": Split(None, "Python", "SWE-bench/SWE-smith", "train", images=128, images_gib=295 * GB)},
)
LEFT_OUT = frozenset(
    {"gin-gonic/gin", "hips/autograd", "paramiko/paramiko", "python/mypy", "tornadoweb/tornado", "un33k/python-slugify"}
)
TIMEOUT = 600.0  # seconds
_PYTEST = "pytest -rA --disable-warnings --color=no --tb=no"
_COMMANDS = {
    "mido/mido": f"{_PYTEST} -c /dev/null --rootdir .",
    "pydantic/pydantic": f"/root/.local/bin/uv run {_PYTEST}",
}
# With `-c /dev/null`, pytest before 9.2 takes /dev for the root folder. The records name mido's tests by that.
_FROM_DEV = "../dev/"
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


@dataclass(frozen=True)
class _Record:
    instance_id: str
    problem_statement: str
    repo: str
    patch: str
    image_name: str
    FAIL_TO_PASS: str | list[str]
    PASS_TO_PASS: str | list[str]

    def faults(self) -> Iterator[str]:
        yield from statement_faults(self.problem_statement)
        yield from test_faults(self.FAIL_TO_PASS, self.PASS_TO_PASS)
        if not _REPO.match(self.repo):
            yield f"repo must be ACCOUNT/OWNER__NAME.COMMIT, got {self.repo!r}"


def _task(record: Any, split: str) -> Task | None:
    """Return the task of a record; None for a task that is left out."""
    found = read_record(_Record, record)
    match = _REPO.match(found.repo)
    assert match is not None, found.repo
    repo = f"{match[1]}/{match[2]}"
    try:
        gold = reverse_patch(found.patch)
    except PatchError:
        return None
    if repo.lower() in LEFT_OUT:
        return None
    workspace = Workspace({}, Image(found.image_name, "/testbed", setup(found.patch)))
    metadata = {"repo": repo, "base_commit": match[3]}
    oracle = _oracle(found, repo, gold)
    return Task(found.instance_id, found.problem_statement, workspace, oracle, "swesmith", split, metadata)


def _oracle(record: _Record, repo: str, gold: str) -> TestsOracle:
    failing, passing = _tests(record.FAIL_TO_PASS), _tests(record.PASS_TO_PASS)
    files = tuple(dict.fromkeys(test.partition("::")[0] for test in failing))
    return TestsOracle(
        fail_to_pass=failing,
        pass_to_pass=tuple(test for test in passing if test.partition("::")[0] in files),
        protected=files,
        command=f"{_COMMANDS.get(repo.lower(), _PYTEST)} {shlex.join(files)}",
        gold_patch=gold,
        timeout_seconds=TIMEOUT,
        missing="as_gold",
    )


def _tests(names: str | list[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix(_FROM_DEV) for name in tests_of(names))


def setup(fault: str) -> str:
    """Write shell that puts the fault into an image's repository, once."""
    return _SETUP.replace("FAULT", fault.removesuffix("\n"))


load = partial(load_records, CORPUS, _task)
