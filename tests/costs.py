"""What a run's tests cost: the slowest tests, files and folders at the end of its report, and a budget. The seconds of
all tests are in .pytest_cache/v/costs.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable

import pytest

from tests.effort import yardstick

SHOWN = 15
FEW = 60.0  # seconds: a shorter run is over before anybody asks where they went
BUDGET = 100_000  # yardsticks of the processors' time that the default set takes, with what it starts
MOST = 2  # times the budget


class Costs:
    """Adds up the seconds of set-up, call and tear-down. A fixture's are those of the test that asked for it first.

    A run of the whole default set fails where its workers, and the processes that these waited for, took more than
    twice the budget of processor time, in yardsticks of the same run: so another load of the machine changes little.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests: Counter[str] = Counter()
        self.work = 0.0  # yardsticks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.work += getattr(node, "workeroutput", {}).get("work", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        work = sum(usage.ru_utime + usage.ru_stime for usage in usages) / yardstick()
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["work"] = work
            return
        self.work += work
        if self._is_over():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _is_over(self) -> bool:
        chosen = (self.config.getoption(name) for name in ("--all", "-k", "-m", "--last-failed"))
        whole = self.config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(chosen)
        return whole and self.work > MOST * BUDGET

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.tests.total() < FEW or hasattr(self.config, "workerinput"):
            return
        if self.config.pluginmanager.hasplugin("cacheprovider"):
            self.config.cache.set("costs", dict(self.tests.most_common()))
        files = summed(self.tests, lambda name: name.partition("::")[0])
        folders = summed(files, lambda name: "/".join(name.split("/")[1:-1][:2]) or name)
        for title, costs in (("tests", self.tests), ("files", files), ("folders", folders)):
            terminalreporter.section(f"the slowest {title}, in seconds")
            for name, seconds in costs.most_common(SHOWN):
                terminalreporter.write_line(f"{seconds:7.1f} {name}")
        terminalreporter.write_line(
            f"{self.tests.total():7.1f} all {len(self.tests)} tests, {self.work:.0f} yardsticks of work"
        )
        if self._is_over():
            terminalreporter.write_line(
                f"The default set took more than {MOST} times the {BUDGET} yardsticks that it should take: make it "
                "cheaper, or mark as extended what a cheaper test guards (tests/costs.py)."
            )


def summed(costs: Counter[str], whole: Callable[[str], str]) -> Counter[str]:
    """The costs of what `whole(name)` is the same for."""
    sums: Counter[str] = Counter()
    for name, seconds in costs.items():
        sums[whole(name)] += seconds
    return sums
