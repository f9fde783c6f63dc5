"""Which tests a run takes, and on which worker.

The default set is every test that is not marked `extended("what guards the same promise in the default set")`: a
cheaper test, as `tests/e2e/test_loop.py::test_a_run`, or in words the table, of which the default set has other rows.
Those are for `--all`; a name on the command line (`file.py::test`) takes them too.
"""

from __future__ import annotations

import re

import pytest


def add_options(parser: pytest.Parser) -> None:
    parser.getgroup("selection").addoption("--all", action="store_true", help="also the tests that are marked extended")


def is_extended(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("extended")
    if mark is not None and not (len(mark.args) == 1 and isinstance(mark.args[0], str) and mark.args[0]):
        raise pytest.UsageError(f"{item.nodeid}: name what guards the same in the default set, as extended('a table')")
    return mark is not None


def require_guards(items: list[pytest.Item]) -> None:
    """Raises `pytest.UsageError` where the guard is no test, and no row of the extended one is in the default set."""
    rows = {item.nodeid.partition("[")[0] for item in items if not is_extended(item)}
    alone = {
        name: guard
        for item in items
        for mark in item.iter_markers("extended")
        for name, guard in [(item.nodeid.partition("[")[0], mark.args[0])]
        if "::" not in guard and name not in rows
    }
    if alone:
        found = "\n".join(f"  {name}: {guard!r}" for name, guard in sorted(alone.items()))
        raise pytest.UsageError(
            f"no row of these tables is in the default set; name a test that guards the same:\n{found}"
        )


class Selection:
    """Leaves tests out, groups the others for the workers, and reports how many were left out."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.left_out = 0
        self.mistake = ""

    @pytest.hookimpl(tryfirst=True)  # a worker of xdist writes the groups into the names
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        try:
            self._choose(config, items)
        except pytest.UsageError as error:
            if not hasattr(config, "workerinput"):
                raise
            items.clear()  # of what is raised in a worker nobody hears
            self.mistake = str(error)

    def _choose(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        extended = [item for item in items if is_extended(item)]
        named = any("::" in argument for argument in config.args)
        if not (named or config.getoption("lf", False)):  # both may have a row without the others of its table
            require_guards(items)
        if extended and not (named or config.getoption("--all") or "extended" in config.getoption("-m")):
            self.left_out = len(extended)
            config.hook.pytest_deselected(items=extended)
            items[:] = [item for item in items if not is_extended(item)]
        for item in items if config.pluginmanager.hasplugin("xdist") else []:
            if item.get_closest_marker("xdist_group") is None:  # a file's tests share what is made once for them
                item.add_marker(pytest.mark.xdist_group(item.path.relative_to(config.rootpath).as_posix()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(self.config, "workerinput"):  # a name as one gives it to pytest, without the worker's group
            report.nodeid = re.sub(r"@[^\]]*$", "", report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput |= {"left out": self.left_out, "mistake": self.mistake}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        output = getattr(node, "workeroutput", {})  # none of a worker that was killed
        self.left_out = output.get("left out", self.left_out)
        self.mistake = output.get("mistake", self.mistake)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.mistake:
            terminalreporter.write_line(f"ERROR: {self.mistake}", red=True)
        if self.left_out:
            terminalreporter.write_line(f"left out: {self.left_out} extended tests (bash tests/run.sh --all runs them)")
