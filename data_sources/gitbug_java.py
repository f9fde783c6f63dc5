"""GitBug-Java: recent bugs of Java projects, graded by the reports that Maven or Gradle write of the project's tests.

There are no images: `metadata["image"]` says what one must hold. GitBug-Java itself replays each project's GitHub
workflow; here the project's own build tool runs its tests, offline. Of the tests that ran before and after the fix,
FAIL_TO_PASS failed before and PASS_TO_PASS passed both times. Upstream: gitbugactions/gitbug-java, gitbug/bug.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_sources.corpora import CORPORA
from data_sources.corpus import checkout_folder
from data_sources.log_lines import junit_reports, test_name
from data_sources.patches import paths_of
from data_sources.reader import Reader, TaskError
from data_sources.records import file_records
from data_sources.task import Image, Task, TestOracle, Workspace

CORPUS = CORPORA["gitbug_java"]
TIMEOUT = 1800.0  # seconds
_REPORTS = {"maven": ("surefire-reports",), "gradle": ("test-results/test",)}
_RUN = {
    "maven": "mvn -B -o -fae -Dmaven.test.failure.ignore=true test",
    "gradle": "gradle=./gradlew; [ -x $gradle ] || gradle=gradle; $gradle --offline --continue test",
}
_FAILED = frozenset({"Failure", "Error"})


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Every bug, by project. Raises `CorpusError`, and `TaskError` for a record that can't be read."""
    CORPUS.split(split)
    root = checkout_folder(CORPUS, folder, "data/bugs")
    return [_task(record, where, split) for where, record in _records(root / "data" / "bugs")]


def _records(folder: Path) -> Iterator[tuple[str, Any]]:
    """The files end in .json, and hold one JSON object a line."""
    for path in sorted(folder.glob("*.json")):
        yield from file_records(path, lines=True)


def _task(record: Any, where: str, split: str) -> Task:
    reader = Reader(record, key="commit_hash")
    try:
        return _read(reader, split)
    except (TaskError, LookupError, TypeError) as error:
        raise TaskError(f"{where}: {error}") from error


def _read(reader: Reader, split: str) -> Task:
    repo, commit = reader.get("repository", str), reader.get("commit_hash", str)
    bug = f"{repo.replace('/', '-')}-{commit[:12]}"
    runs = reader.get("actions_runs", list)
    before = _results(runs[0] if reader.get("strategy", str) == "FAIL_PASS" else runs[1])
    after = _results(runs[2])
    tool = runs[2][0]["build_tool"]
    reader.require(tool in _RUN, "build_tool", f"one of {', '.join(_RUN)}", tool)
    passing = [test for test, result in after.items() if result == {"Passed"}]
    failing = [test for test in passing if before.get(test, set()) & _FAILED]
    reader.require(bool(failing), "actions_runs", "runs in which a test fails before the fix and passes after it", bug)
    oracle = TestOracle(
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(test for test in passing if before.get(test) == {"Passed"}),
        protected=_protected(reader.get("test_patch", str), failing),
        command=test_command(tool),
        gold_patch=reader.get("bug_patch", str) or reader.get("non_code_patch", str),
        timeout_seconds=TIMEOUT,
    )
    metadata = {
        "repo": repo,
        "base_commit": reader.get("previous_commit_hash", str),
        "created_at": reader.get("commit_timestamp", str),
        "image": f"in /testbed what `gitbug-java checkout {bug} /testbed` makes, without its .git, which holds the "
        f"fix; the project's Java, and what {tool} downloads, so that it runs offline",
    }
    image = Image(f"slime-swe/gitbug_java:{bug.lower()}")
    name, statement = f"gitbug_java-{bug}", _statement(reader, failing)
    return Task(name, statement, Workspace({}, image), oracle, "gitbug_java", split, metadata)


def _protected(test_patch: str, failing: list[str]) -> tuple[str, ...]:
    """What the test patch changes, and where the failing tests are by custom: some fixes come without a test patch."""
    classes = {test.partition("::")[0].partition("$")[0] for test in failing}
    return tuple(sorted({*paths_of(test_patch), *(f"src/test/java/{name.replace('.', '/')}.java" for name in classes)}))


def test_command(tool: str) -> str:
    """Run all tests, then print a line for each from the reports; those that lay there before are taken away."""
    places = " -o ".join(f"-path '*/{folder}/TEST-*.xml'" for folder in _REPORTS[tool])
    return f"find . -type f \\( {places} \\) -delete\n{_RUN[tool]}\n{junit_reports(_REPORTS[tool])}"


def _results(run: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Test → its results; a test whose name occurs more than once has several."""
    found: dict[str, set[str]] = {}
    for test in run[0]["tests"]:
        results = {result["result"] for result in test["results"]}
        found.setdefault(test_name(test["classname"], test["name"]), set()).update(results)
    return found


def _statement(reader: Reader, failing: list[str]) -> str:
    """The issue that the fix names, without its comments; where there is none, the tests that fail."""
    issues = [issue for issue in reader.get("issues", list) if not issue.get("is_pull_request")]
    if issues:
        return "\n\n".join(f"{issue['title']}\n\n{issue.get('body') or ''}".strip() for issue in issues)
    return "These tests fail because of a fault in the code:\n" + "\n".join(failing[:5])
