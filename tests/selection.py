"""Which tests a run takes, and on which worker.

A test marked `matrix("what the table is of")` is one more row of a table whose first rows every run takes. A run leaves
these out, and says so, unless `--all`, `--share K/N` or a name (`file.py::test`) asks for them. Of N shares each marked
test is in just one, which depends on its name alone; `--share commit` takes the next eighth with each commit.
"""

from __future__ import annotations

import re
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

SHARES = 8
Counts = dict[str, tuple[int, int]]  # table -> tests left out, tests of the table


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--all", action="store_true", help="also the tests that are marked matrix")
    group.addoption("--share", metavar="K/N", help="also the K-th of N shares of those; 'commit': one by the commit")


def share_of(name: str, shares: int) -> int:
    """1..`shares`: the same for one test whatever else there is, so that no commit moves a test to another share."""
    return zlib.crc32(name.encode()) % shares + 1


def asked_share(text: str, root: Path) -> tuple[int, int]:
    """`K/N` as numbers; `commit` counts the commits up to this one, so that eight in a row see every share."""
    if text == "commit":
        return commits(root) % SHARES + 1, SHARES
    share, slash, shares = text.partition("/")
    if not (slash and share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
        raise pytest.UsageError(f"--share {text}: give K/N with K from 1 to N, as 3/8, or 'commit'")
    return int(share), int(shares)


def commits(root: Path) -> int:
    """Of a clone without history the commit's own hash, which is as good as a count but for the order."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    if git("rev-parse", "--is-shallow-repository") == "true":
        return int(git("rev-parse", "HEAD"), 16)
    return int(git("rev-list", "--count", "--first-parent", "HEAD"))


def table_of(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("matrix")
    if mark is None:
        return None
    if len(mark.args) != 1:
        raise pytest.UsageError(f"{item.nodeid}: say what the table is of, as matrix('sandbox backends')")
    return str(mark.args[0])


class Selection:
    """Leaves tests out, groups the others for the workers, and reports what was left out."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.counts: Counts = {}
        text = config.getoption("--share")
        self.share = asked_share(text, config.rootpath) if text else None

    def takes(self, item: pytest.Item) -> bool:
        asked = self.config.getoption("--all") or any("::" in argument for argument in self.config.args)
        if asked or table_of(item) is None or "matrix" in self.config.getoption("-m"):
            return True
        return self.share is not None and share_of(item.nodeid, self.share[1]) == self.share[0]

    @pytest.hookimpl(tryfirst=True)  # a worker of xdist writes the groups into the names
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if not self.takes(item)]
        self.counts = count(items, left_out)
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if self.takes(item)]
        for item in items if config.pluginmanager.hasplugin("xdist") else []:
            if item.get_closest_marker("xdist_group") is None:  # a file's tests share what is made once for them
                item.add_marker(pytest.mark.xdist_group(item.path.relative_to(config.rootpath).as_posix()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(self.config, "workerinput"):  # a name as one gives it to pytest, without the worker's group
            report.nodeid = re.sub(r"@[^\]]*$", "", report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["left out"] = self.counts

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.counts = getattr(node, "workeroutput", {}).get("left out", self.counts)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        share = "" if self.share is None else " that are not in share {}/{}".format(*self.share)
        for table, (left_out, tests) in sorted(self.counts.items()):
            if left_out:
                terminalreporter.write_line(f"left out: {left_out} of {tests} tests marked matrix ({table}){share}")
        if any(left_out for left_out, _ in self.counts.values()):
            terminalreporter.write_line("bash tests/run.sh --all runs them; --share K/8 an eighth of them")


def count(items: Iterable[pytest.Item], left_out: Iterable[pytest.Item]) -> Counts:
    tests, without = (Counter(filter(None, map(table_of, some))) for some in (items, left_out))
    return {table: (without[table], tests[table]) for table in tests}
