"""Runs pytest, and what failed once more: `python -m tests.second_look [pytest's words]`.

One failure among thousands of tests may be the machine's. So what failed is run again alone, in a fresh process without
workers. What fails again fails the run. What passes then is *flaky*: it is listed, with where both outputs are kept,
and more than three of those fail the run too. Of more than twenty failures none is looked at twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

MOST_FLAKY = 3
MOST_FAILURES = 20
KEPT = Path(".pytest_cache") / "flaky"
_FILE = "SLIME_SWE_TESTS_FAILURES"  # a variable, since workers have the options of the whole run


class Failures:
    """The text of each test that failed, written as JSON by name when the run ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            sections = (f"----- {title} -----\n{text}" for title, text in report.sections)
            self.texts[report.nodeid] = "\n".join([self.texts.get(report.nodeid, ""), report.longreprtext, *sections])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            self.path.write_text(json.dumps(self.texts))


def register(config: pytest.Config) -> None:
    """Have a run of pytest write its failures, where it is one of `look`."""
    if _FILE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(os.environ.pop(_FILE))), "failures")


def look(words: list[str], shown: int | None = None) -> tuple[int, dict[str, str], str]:
    """pytest's exit code, the texts of what failed by name, and what it printed where that is not shown."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "failures.json"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            env=os.environ | {_FILE: str(path)},
            stdout=shown,
            text=True,
            check=False,
        )
        texts = json.loads(path.read_text()) if path.exists() else {}
    return done.returncode, texts, done.stdout or ""


def main(words: list[str]) -> int:
    code, first, _ = look(words)
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(first) <= MOST_FAILURES:
        return code
    print(f"\n{len(first)} failed. They run once more, alone:", flush=True)
    again, second, printed = look(["-q", "-rP", "-n", "0", *first], subprocess.PIPE)
    print(printed, flush=True)
    if again not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return again
    flaky = sorted(first.keys() - second.keys())
    if flaky:
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / "first.txt").write_text("\n\n".join(f"===== {name}\n{first[name]}" for name in flaky))
        (KEPT / "second.txt").write_text(printed)
        print(f"{len(flaky)} flaky: failed among the others and passed alone (both outputs: {KEPT})")
        print(*(f"FLAKY {name}" for name in flaky), sep="\n")
    print(*(f"FAILED TWICE {name}" for name in sorted(second)), sep="\n", end="\n" if second else "")
    if len(flaky) > MOST_FLAKY:
        print(f"More than {MOST_FLAKY} flaky tests fail the run.")
    return int(bool(second) or len(flaky) > MOST_FLAKY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
