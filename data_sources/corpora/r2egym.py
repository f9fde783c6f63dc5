"""R2E-Gym: commits of Python projects with the tests that fail before and pass after, and an image for each.

An image has the repository before the commit in `/testbed`, its environment in `/testbed/.venv`, a `run_tests.sh`
beside it, and the grading tests in `/r2e_tests`. The image's setup removes these tests, so an agent's sandbox has none
of them. The grader opens the image without its setup, and the eval script puts them in place. R2E-Gym also hides
`run_tests.sh`. It stays here, since it shows no test, and without it a patch that adds a file of that name could not be
applied.

R2E-Gym compares the results of all tests with a list. Here a test counts if both that list and R2E-Gym's own run of the
fixed commit say that it passes. It is a FAIL_TO_PASS test if it did not pass in the run before the fix, else a
PASS_TO_PASS test. Tests that fail even after the fix do not count. Records without a FAIL_TO_PASS test are left out.
Upstream: R2E-Gym/R2E-Gym, src/r2egym/agenthub/runtime/docker.py, repo_analysis and commit_models/diff_classes.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import orjson

from slime_swe.data_sources.corpora.corpus import GB, Corpus, Split, load_records, read_record, statement_faults
from slime_swe.data_sources.corpora.eval_prologue import END, START
from slime_swe.data_sources.task import HarnessOracle, Image, Task, Workspace
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.errors import UserError
from slime_swe.fields import Choice, read

CORPUS = Corpus(
    name="r2egym",
    title="R2E-Gym",
    licence="Apache-2.0",
    home="https://github.com/R2E-Gym/R2E-Gym",
    counted="rows of Subset: the card of PrimeIntellect/R2E-Gym-Subset-Validated; V1: the readme, more than 8.1K; "
    "Lite's train: the Hub's viewer, 4.58K; no exact figures are given for these",
    sized="of Subset: arXiv:2504.21798, table 1: 4 TB",
    needs="each task's image (namanjain12/…_final on Docker Hub), and swebench to grade",
    splits={
        "subset": Split(4578, "Python", "R2E-Gym/R2E-Gym-Subset", "train", images_gib=4000 * GB),
        "lite": Split(None, "Python", "R2E-Gym/R2E-Gym-Lite", "train"),
        "v1": Split(None, "Python", "R2E-Gym/R2E-Gym-V1", "train"),
    },
)
REPOS = {
    "aiohttp": "aio-libs/aiohttp",
    "bokeh": "bokeh/bokeh",
    "coveragepy": "nedbat/coveragepy",
    "datalad": "datalad/datalad",
    "mypy": "python/mypy",
    "numpy": "numpy/numpy",
    "orange3": "biolab/orange3",
    "pandas": "pandas-dev/pandas",
    "pillow": "python-pillow/Pillow",
    "pyramid": "Pylons/pyramid",
    "scrapy": "scrapy/scrapy",
    "statsmodels": "statsmodels/statsmodels",
    "sympy": "sympy/sympy",
    "tornado": "tornadoweb/tornado",
}
TIMEOUT = 600.0  # seconds; R2E-Gym gives them half as long
T = TypeVar("T")
_ENVIRONMENT = "export VIRTUAL_ENV=/testbed/.venv PATH=/testbed/.venv/bin:$PATH"
# These show the tests or the fix, and were in the repository in R2E-Gym's first images.
_REVEALING = ("r2e_tests", "syn_issue.json", "expected_test_output.json", "execution_result.json", "parsed_commit.json",
            "modified_files.json", "modified_entities.json")  # fmt: skip
# It is run again where the sandbox's shell was killed: by then the tests are gone, and what lies there is the agent's.
SETUP = f"""\
{{ [ ! -e /r2e_tests ] || rm -rf {" ".join(f"/testbed/{name}" for name in _REVEALING)} /r2e_tests; }} &&
{_ENVIRONMENT}"""
# Extended regular expressions that sed and Python read alike. Runners of unittest name modules in place of files.
_COLOURS = r"\x1b\[[0-9;]*m|\r"
_TEST = r"^(PASSED|FAILED|ERROR) (\S*r2e_tests[./])?(test_[0-9]+)(\.py)?::"
_AS_FILE = r"\1 r2e_tests/\3.py::"
EVAL_SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
cd /testbed
{_ENVIRONMENT}
rm -rf r2e_tests
cp -a /r2e_tests r2e_tests
find r2e_tests -depth -name __pycache__ -exec rm -rf {{}} +
: '{START}'
bash run_tests.sh 2>&1 | sed -E -e 's/{_COLOURS}//g' -e 's#{_TEST}#{_AS_FILE}#'
: '{END}'
"""
_SIGNS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
_FULL_HASH = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class _Runs:
    """The output of R2E-Gym's own runs of the commit before and of the fix."""

    old_commit_res_stdout: str
    new_commit_res_stdout: str


@dataclass(frozen=True)
class _Commit:
    old_commit_hash: str
    commit_date: str
    file_diffs: list[dict[str, Any]]


@dataclass(frozen=True)
class _Record:
    """A record of the data set. Three of the fields are JSON texts."""

    docker_image: str
    repo_name: Annotated[str, Choice(REPOS)]
    commit_hash: str
    problem_statement: str
    parsed_commit_content: str
    execution_result_content: str
    expected_output_json: str

    def faults(self) -> Iterator[str]:
        yield from statement_faults(_statement(self.problem_statement))

    @property
    def repo(self) -> str:
        return REPOS[self.repo_name]


def _task(record: Any, split: str) -> Task | None:
    """Return the task of a record; None for a task that is left out."""
    found = read_record(_Record, record, "docker_image")
    about = partial(_content, found.docker_image)
    parsed = about(_Commit, "parsed_commit_content", found.parsed_commit_content)
    runs = about(_Runs, "execution_result_content", found.execution_result_content)
    failing, passing = _tests(runs, _object(found.docker_image, "expected_output_json", found.expected_output_json))
    if not failing:
        return None
    commit, short = found.commit_hash, found.repo_name
    oracle = HarnessOracle(
        fail_to_pass=failing,
        pass_to_pass=passing,
        # With these, every new file beside them is the oracle's: the whole environment, which Git does not know.
        protected=("run_tests.sh", ".venv/pyvenv.cfg", *dict.fromkeys(test.partition("::")[0] for test in failing)),
        repo=found.repo,
        version=commit[:12],
        eval_script=EVAL_SCRIPT,
        log_parser="parse_log_pytest",
        gold_patch=_gold(found.docker_image, parsed),
        timeout_seconds=TIMEOUT,
    )
    image = Image(found.docker_image, "/testbed", SETUP)
    name, statement = f"r2egym-{short}-{commit[:12]}", _statement(found.problem_statement)
    return Task(name, statement, Workspace({}, image), oracle, "r2egym", split, _about(found, parsed))


def _content(name: str, kind: type[T], field: str, text: str) -> T:
    return read(kind, _object(name, field, text), f"task {name!r}: {field}", partial=True)


def _object(name: str, field: str, text: str) -> dict[str, Any]:
    """Decode a field that holds a JSON object. Raises `UserError` that names the task and the field."""
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        content = None
    if not isinstance(content, dict):
        raise UserError(f"task {name!r}: {field} must be the JSON of an object, got {text[:80]!r}")
    return content


def _about(record: _Record, commit: _Commit) -> dict[str, str]:
    """Return the metadata. The base commit is often written `HASH^`, which can't be resolved without the repository."""
    base = {"base_commit": commit.old_commit_hash} if _FULL_HASH.fullmatch(commit.old_commit_hash) else {}
    return {"repo": record.repo, "fix_commit": record.commit_hash, **base, "created_at": commit.commit_date}


def _statement(text: str) -> str:
    match = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", text, re.DOTALL)
    return (match[1] if match else text).strip()


def _tests(runs: _Runs, listed: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return FAIL_TO_PASS and PASS_TO_PASS."""
    before, after = _results(runs.old_commit_res_stdout), _results(runs.new_commit_res_stdout)
    expected = _expected(listed)
    sound = [test for test, passed in after.items() if passed and expected.get(_key(test))]
    failing = tuple(test for test in sound if not before.get(test))
    return failing, tuple(test for test in sound if before.get(test))


def _results(log: str) -> dict[str, bool]:
    """Read which tests passed in a recorded run, by the names that the eval script gives them."""
    _, _, summary = re.sub(_COLOURS, "", log).partition("short test summary info")
    return parse_test_log(re.sub(_TEST, _AS_FILE, summary, flags=re.MULTILINE))


def _expected(content: Mapping[str, str]) -> dict[str, bool]:
    """Map `Class.test[first word` to whether the fixed code passes: a log names tests by what has no space."""
    passes: dict[str, bool] = {}
    for key, status in content.items():
        words = re.sub(_COLOURS, "", key).split()
        if words:
            passes[words[0]] = passes.get(words[0], True) and status == "PASSED"
    return passes


def _key(test: str) -> str:
    """Name a test as R2E-Gym's list does, which leaves out the file."""
    return test.partition("::")[2].replace("::", ".")


def _gold(name: str, commit: _Commit) -> str:
    """Return the commit's changes of Python files, the patch that R2E-Gym has proved its tasks with."""
    try:
        lines = [line for file in commit.file_diffs if _path(file).endswith(".py") for line in _file_patch(file)]
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(f"task {name!r}: parsed_commit_content can't be read: {error!r}") from error
    if not lines:
        raise UserError(f"task {name!r}: parsed_commit_content must be a commit that changes a Python file")
    return "".join(f"{line}\n" for line in lines)


def _path(file: Mapping[str, Any]) -> str:
    return str(file["header"]["file"]["path"])


def _file_patch(file: Mapping[str, Any]) -> Iterator[str]:
    path, modes, index = _path(file), file["header"]["misc_line"], file["index_line"]
    yield f"diff --git a/{path} b/{path}"
    if modes:
        yield modes
    if index:
        yield f"index {index['old_commit_hash']}..{index['new_commit_hash']} {index['mode']}".rstrip()
    if file["minus_file"] and file["plus_file"]:
        yield f"--- {file['minus_file']['path']}"
        yield f"+++ {file['plus_file']['path']}"
    for hunk in file["hunks"]:
        yield from _hunk(hunk)


def _hunk(hunk: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a hunk, as many as it says: R2E-Gym takes the end of a whole diff for one more empty line."""
    ranges = [hunk["descriptor"][name] for name in ("old_range", "new_range")]
    old, new = (1 if lines["length"] is None else lines["length"] for lines in ranges)
    spans = ["{start}".format(**lines) + ("" if lines["length"] is None else f",{lines['length']}") for lines in ranges]
    yield f"@@ -{spans[0]} +{spans[1]} @@ {hunk['descriptor']['section']}".rstrip()
    for line in hunk["line_group"]["all_lines"]:
        sign = _SIGNS[line["type"]]
        if line["type"] != "note" and old + new == 0:
            return
        old -= sign in " -"
        new -= sign in " +"
        yield sign + line["content"]


load = partial(load_records, CORPUS, _task)
