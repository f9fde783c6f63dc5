"""Defects4J 2.0: bugs of Java projects, graded by Defects4J's own `test` command.

There are no images: `metadata["image"]` says what one must hold. FAIL_TO_PASS are the tests that trigger the bug.
PASS_TO_PASS are the other test classes that Defects4J calls relevant, each as `class::*`, since it reports only
failures. A run without a report passes nothing. Upstream: rjust/defects4j, framework/bin/d4j/d4j-test.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from slime_swe.data_sources.corpora.corpus import Corpus, Split, checkout_folder
from slime_swe.data_sources.task import Image, Task, TestsOracle, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import PatchError, paths_of, reverse_patch

CORPUS = Corpus(
    name="defects4j",
    title="Defects4J 2.0",
    licence="MIT",
    home="https://github.com/rjust/defects4j",
    commit="v2.0.0",
    counted="the readme of v2.0.0",
    needs="an image of your own for each task, with Defects4J in it, and swebench to grade",
    splits={"all": Split(835, "Java")},
)
TIMEOUT = 1800.0  # seconds
_PROJECTS = "framework/projects"
# The report is Defects4J's last word: `Failing tests: N`, then each test, or class that could not run, behind a dash.
_RUN = r"""
export TZ=America/Los_Angeles
report=$(defects4j test -r 2>&1 | tee /dev/stderr | sed -n '/^Failing tests: [0-9]*$/,$p')
[ -n "$report" ] || exit 1
verdict() {
    name=$1; shift
    for pattern in "$@"; do
        if printf '%s\n' "$report" | grep -q -e "^  - $pattern\$"; then echo "FAILED $name"; return; fi
    done
    echo "PASSED $name"
}
"""


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Return every active bug's task, by project and number. Raises `UserError`."""
    projects = checkout_folder(CORPUS, split, folder, _PROJECTS) / _PROJECTS
    tables = sorted(projects.glob("*/active-bugs.csv"))
    return [_task(table.parent, row, split) for table in tables for row in _rows(table)]


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _task(project: Path, row: dict[str, str], split: str) -> Task:
    number = row["bug.id"]
    name = f"defects4j-{project.name}-{number}"
    triggers = _triggers((project / "trigger_tests" / number).read_text(encoding="utf-8", errors="replace"))
    if not triggers:
        raise UserError(f"task {name!r}: no test triggers it")
    broken = {test.partition("::")[0] for test in triggers}
    relevant = (project / "relevant_tests" / number).read_text(encoding="utf-8").split()
    others = [test for test in dict.fromkeys(relevant) if test not in broken]
    turned = (project / "patches" / f"{number}.src.patch").read_text(encoding="utf-8", errors="replace")
    oracle = TestsOracle(
        fail_to_pass=tuple(triggers),
        pass_to_pass=tuple(f"{test}::*" for test in others),
        protected=_protected(project, row, triggers),
        command=_RUN + "\n".join([*map(_of_test, triggers), *map(_of_class, others)]),
        gold_patch=_gold(turned, name),
        timeout_seconds=TIMEOUT,
        runner="lines",
    )
    metadata = {
        "repo": f"defects4j/{project.name}",
        "base_commit": row["revision.id.buggy"],
        "report": row["report.url"],
        "image": f"Defects4J 2.0 on PATH, with the Java that it wants, and in /testbed what `defects4j checkout -p "
        f"{project.name} -v {number}b -w /testbed` makes, without its .git, which holds the fix",
    }
    image = Image(f"slime-swe/defects4j:{project.name.lower()}-{number}")
    return Task(name, _statement(triggers), Workspace({}, image), oracle, "defects4j", split, metadata)


def _triggers(text: str) -> dict[str, str]:
    """Map each test to the first line of its failure. Stack traces follow, indented."""
    found: dict[str, str] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("--- "):
            found[line[4:].strip()] = lines[number + 1].strip() if number + 1 < len(lines) else ""
    return {test: why for test, why in found.items() if "::" in test}


def _statement(triggers: dict[str, str]) -> str:
    shown = [f"{test}\n    {why[:200]}" for test, why in list(triggers.items())[:5]]
    return "These tests fail because of a fault in the code:\n" + "\n".join(shown)


def _gold(turned: str, name: str) -> str:
    """Reverse a patch of Defects4J, which leads from the fixed code to the faulty one."""
    try:
        return reverse_patch(turned)
    except PatchError as error:
        raise UserError(f"task {name!r}: {error}") from error


def _protected(project: Path, row: dict[str, str], triggers: Iterable[str]) -> tuple[str, ...]:
    """Return the test files of the fix, and those that hold the triggering tests where the layout is known."""
    patch = project / "patches" / f"{row['bug.id']}.test.patch"
    paths = set(paths_of(patch.read_text(encoding="utf-8", errors="replace"))) if patch.is_file() else set()
    folder = _test_folder(project, row)
    if folder:
        classes = {test.partition("::")[0].partition("$")[0] for test in triggers}
        paths |= {f"{folder}/{name.replace('.', '/')}.java" for name in classes}
    return tuple(sorted(paths))


def _test_folder(project: Path, row: dict[str, str]) -> str:
    layout = project / "dir-layout.csv"
    wanted = {row["revision.id.buggy"], row["revision.id.fixed"]}
    lines = layout.read_text(encoding="utf-8").splitlines() if layout.is_file() else []
    rows = (line.split(",") for line in lines)
    return next((cells[2].strip("/") for cells in rows if len(cells) == 3 and cells[0] in wanted), "")


def _of_test(test: str) -> str:
    return f"verdict {_words(test, _pattern(test), _pattern(test.partition('::')[0]))}"


def _of_class(name: str) -> str:
    return f"verdict {_words(f'{name}::*', _pattern(name), f'{_pattern(name)}::.*')}"


def _pattern(name: str) -> str:
    """Write a basic regular expression for exactly this name."""
    return re.sub(r"([.$*^\[\]\\])", r"\\\1", name)


def _words(*words: str) -> str:
    return " ".join(map(shlex.quote, words))
