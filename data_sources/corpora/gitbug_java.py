"""GitBug-Java: recent bugs of Java projects, graded by the test reports that Maven or Gradle write.

There are no images: `metadata["image"]` says what one must hold. GitBug-Java itself replays each project's GitHub
workflow; here the project's own build tool runs its tests, offline. Of the tests that ran before and after the fix,
FAIL_TO_PASS failed before and PASS_TO_PASS passed both times. Upstream: gitbugactions/gitbug-java, gitbug/bug.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_swe.data_sources.corpora.corpus import (
    Corpus,
    Split,
    checkout_folder,
    file_records,
    patch_faults,
    read_record,
)
from slime_swe.data_sources.task import Image, Task, TestsOracle, Workspace
from slime_swe.data_sources.test_log import junit_reports, test_name
from slime_swe.errors import UserError, unknown
from slime_swe.patches import paths_of

CORPUS = Corpus(
    name="gitbug_java",
    title="GitBug-Java",
    licence="MIT",
    home="https://github.com/gitbugactions/gitbug-java",
    commit="fe986fb7919be62c2a6f611ee16659e849646798",
    counted="arXiv:2402.02961",
    needs="an image of your own for each task, and swebench to grade",
    splits={"all": Split(199, "Java")},
)
TIMEOUT = 1800.0  # seconds
_REPORTS = {"maven": ("surefire-reports",), "gradle": ("test-results/test",)}
_RUN = {
    "maven": "mvn -B -o -fae -Dmaven.test.failure.ignore=true test",
    "gradle": "gradle=./gradlew; [ -x $gradle ] || gradle=gradle; $gradle --offline --continue test",
}
_FAILED = frozenset({"Failure", "Error"})


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Return every bug's task, by project. Raises `UserError`."""
    root = checkout_folder(CORPUS, split, folder, "data/bugs")
    files = sorted((root / "data" / "bugs").glob("*.json"))  # they hold one JSON object a line
    return [task for path in files for task in file_records(path, lambda record: _task(record, split), lines=True)]


def _task(record: Any, split: str) -> Task:
    try:
        return _read(read_record(_Record, record, "commit_hash"), split)
    except (LookupError, TypeError) as error:
        raise UserError(str(error)) from error


@dataclass(frozen=True)
class _Record:
    repository: str
    commit_hash: str
    previous_commit_hash: str
    commit_timestamp: str
    strategy: str
    test_patch: str
    bug_patch: str
    issues: list[dict[str, Any]]
    actions_runs: list[Any]
    non_code_patch: str = ""

    def faults(self) -> Iterator[str]:
        yield from patch_faults("test_patch", self.test_patch)


def _read(record: _Record, split: str) -> Task:
    repo, commit = record.repository, record.commit_hash
    bug = f"{repo.replace('/', '-')}-{commit[:12]}"
    runs = record.actions_runs
    before = _results(runs[0] if record.strategy == "FAIL_PASS" else runs[1])
    after = _results(runs[2])
    tool = runs[2][0]["build_tool"]
    if tool not in _RUN:
        raise UserError(f"task {bug!r}: {unknown('build_tool', tool, _RUN)}")
    passing = [test for test, result in after.items() if result == {"Passed"}]
    failing = [test for test in passing if before.get(test, set()) & _FAILED]
    if not failing:
        raise UserError(f"task {bug!r}: in actions_runs no test fails before the fix and passes after it")
    oracle = TestsOracle(
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(test for test in passing if before.get(test) == {"Passed"}),
        protected=_protected(record.test_patch, failing),
        command=test_command(tool),
        gold_patch=record.bug_patch or record.non_code_patch,
        timeout_seconds=TIMEOUT,
        runner="lines",
    )
    metadata = {
        "repo": repo,
        "base_commit": record.previous_commit_hash,
        "created_at": record.commit_timestamp,
        "image": f"in /testbed what `gitbug-java checkout {bug} /testbed` makes, without its .git, which holds the "
        f"fix; the project's Java, and what {tool} downloads, so that it runs offline",
    }
    image = Image(f"slime-swe/gitbug_java:{bug.lower()}")
    name, statement = f"gitbug_java-{bug}", _statement(record, failing)
    return Task(name, statement, Workspace({}, image), oracle, "gitbug_java", split, metadata)


def _protected(test_patch: str, failing: list[str]) -> tuple[str, ...]:
    """Return the test patch's paths, and by custom those of the failing tests: some fixes come without a test patch."""
    classes = {test.partition("::")[0].partition("$")[0] for test in failing}
    return tuple(sorted({*paths_of(test_patch), *(f"src/test/java/{name.replace('.', '/')}.java" for name in classes)}))


def test_command(tool: str) -> str:
    """Write shell that runs all tests and prints a line for each from the reports, once older reports are removed."""
    places = " -o ".join(f"-path '*/{folder}/TEST-*.xml'" for folder in _REPORTS[tool])
    return f"find . -type f \\( {places} \\) -delete\n{_RUN[tool]}\n{junit_reports(_REPORTS[tool])}"


def _results(run: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Map each test to its results; a test whose name occurs more than once has several."""
    found: dict[str, set[str]] = {}
    for test in run[0]["tests"]:
        results = {result["result"] for result in test["results"]}
        found.setdefault(test_name(test["classname"], test["name"]), set()).update(results)
    return found


def _statement(record: _Record, failing: list[str]) -> str:
    """Return the text of the issues that the fix names, without comments; where there is none, the tests that fail."""
    issues = [issue for issue in record.issues if not issue.get("is_pull_request")]
    if issues:
        return "\n\n".join(f"{issue['title']}\n\n{issue.get('body') or ''}".strip() for issue in issues)
    return "These tests fail because of a fault in the code:\n" + "\n".join(failing[:5])
