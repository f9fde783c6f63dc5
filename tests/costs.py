"""What a run's tests cost: the slowest tests and files, and the minutes of each folder, at the end of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

SHOWN = 15
FEW = 60.0  # seconds: a shorter run is over before anybody asks where they went


class Costs:
    """Adds up the seconds of set-up, call and tear-down. A fixture's are those of the test that asked for it first."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.tests.total() < FEW:
            return
        files = summed(self.tests, lambda name: name.partition("::")[0])
        folders = summed(files, lambda name: "/".join(name.split("/")[1:-1][:2]) or name)
        for title, costs in (("tests", self.tests), ("files", files), ("folders", folders)):
            terminalreporter.section(f"the slowest {title}, in seconds")
            for name, seconds in costs.most_common(SHOWN):
                terminalreporter.write_line(f"{seconds:7.1f} {name}")
        terminalreporter.write_line(f"{self.tests.total():7.1f} all {len(self.tests)} tests")


def summed(costs: Counter[str], whole: Callable[[str], str]) -> Counter[str]:
    """The costs of what `whole(name)` is the same for."""
    sums: Counter[str] = Counter()
    for name, seconds in costs.items():
        sums[whole(name)] += seconds
    return sums
