"""Runs the tests of many states of one project, each in a fork of a process that has pytest loaded.

A program of its own, which imports nothing of ours: `python3 runner.py JOBS RESULTS`, in the project's folder. What the
two JSON files hold, `slime_swe.data_sources.factory.runs` says. A line of RESULTS is written as soon as its job is run,
and then the project's folder is as it was.

The code under test shares the process that reports on it: this is for code that nobody rewards.
"""

import contextlib
import gc
import json
import math
import os
import resource
import select
import signal
import sys
import tempfile
import time

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

SHOWN_BYTES = 3000  # of a failure's text, and of what was printed
LOOK = 0.5  # seconds
ARGUMENTS = ["-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir=.", "-o", "addopts="]


class Reports:
    """A plug-in that says what became of each test as soon as it is known, and stops before the next one where the time
    of all is over. The coverage's context is the id of the running test."""

    def __init__(self, job: "Any", descriptor: int, tracer: "Any") -> None:
        self._job = job
        self._descriptor = descriptor
        self._tracer = tracer
        self._end = time.monotonic() + job["wall"]
        self._spent = 0.0
        self._numbers: dict[str, int] = {}
        self.stopped = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> "bool | None":
        if time.process_time() > self._job["seconds"] or time.monotonic() > self._end:
            item.session.shouldstop = "the time of all tests is over"
            self.stopped = True
            return True
        self._switch(item.nodeid)
        return None

    def pytest_runtest_logfinish(self) -> None:
        self._switch("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._spent = report.duration + (0.0 if report.when == "setup" else self._spent)
        if (report.when == "call" and not report.skipped and not hasattr(report, "wasxfail")) or report.failed:
            text = report.longreprtext[-SHOWN_BYTES:] if report.failed and self._job["texts"] else ""
            self._numbers.setdefault(report.nodeid, len(self._numbers))
            self.write("test", report.nodeid, [report.passed, round(self._spent, 4), text])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write("error", report.nodeid)

    def write_lines(self) -> None:
        """Write for each file line → numbers of the tests that executed it; -1 stands for what ran outside of tests."""
        data, root = self._tracer.get_data(), os.getcwd()
        numbers = {"": -1, **self._numbers}
        for path in data.measured_files():
            lines = data.contexts_by_lineno(path)
            found = {line: sorted(numbers[name] for name in set(who) & numbers.keys()) for line, who in lines.items()}
            self.write("lines", os.path.relpath(path, root).replace(os.sep, "/"), found)

    def write(self, *message: "Any") -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _switch(self, context: str) -> None:
        if self._tracer is not None:
            self._tracer.switch_context(context)


class Limit:
    """A plug-in that lets a test fail which takes too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @pytest.hookimpl(wrapper=True)
    def _limited(self) -> "Generator[None, object, object]":
        """Wrap a phase of a test alone: what is raised there is the test's failure, and pytest's own elsewhere."""
        signal.signal(signal.SIGALRM, _too_long)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _limited


def _too_long(number: int, frame: object) -> None:
    raise pytest.fail.Exception("the test takes too long", pytrace=False)


class Tree:
    """The project's files as they are now; `restore` makes them so again."""

    def __init__(self) -> None:
        self._files = {}
        for path, found in self._walk():
            with open(path, "rb") as file:
                self._files[path] = (found.st_mtime_ns, found.st_size, file.read())
        self._changes = 0

    def change(self, files: "dict[str, str | None]") -> None:
        self._changes += 1
        for path, text in files.items():
            path = os.path.join(".", path)
            if text is None:
                os.unlink(path)
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            later = time.time() + self._changes  # a time that no compiled module of another state has
            os.utime(path, (later, later))

    def restore(self) -> None:
        there = {path: (found.st_mtime_ns, found.st_size) for path, found in self._walk()}
        for path in there.keys() - self._files.keys():
            os.unlink(path)
        for path, (modified, size, content) in self._files.items():
            if there.get(path) != (modified, size):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(content)
                os.utime(path, ns=(modified, modified))

    def _walk(self) -> "Any":
        for folder, _, names in os.walk("."):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    yield path, os.stat(path)


def run(job: "Any", batch: "Any") -> "Any":
    started = time.monotonic()
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                test(job, batch, writer, printed.fileno())
            finally:
                os._exit(1)
        os.close(writer)
        try:
            data = read(
                reader, started + job["wall"] + job["test_seconds"] + batch["grace"], Watch(child, job["waiting"])
            )
        finally:  # also where this process is told to end
            os.close(reader)
            for end in (os.killpg, os.kill):  # it may not have begun a session yet
                with contextlib.suppress(OSError):
                    end(child, signal.SIGKILL)
            os.waitpid(child, 0)
        found = result(data)
        if found["timed_out"] or not found["tests"]:
            size = os.fstat(printed.fileno()).st_size
            found["log"] = os.pread(printed.fileno(), SHOWN_BYTES, max(0, size - SHOWN_BYTES)).decode(errors="replace")
    return {**found, "seconds": round(time.monotonic() - started, 3)}


class Watch:
    """Watches a process that may spend so many seconds in all without computing. One that has no processor on a busy
    machine does not wait."""

    def __init__(self, pid: int, most: float) -> None:
        self._stat = f"/proc/{pid}/stat"
        self._left = most
        self._used, self._seen = 0, time.monotonic()

    def is_over(self) -> bool:
        """Say whether the seconds are over, as seen if it is asked every `LOOK` seconds."""
        passed = time.monotonic() - self._seen
        if passed >= LOOK / 2:
            with open(self._stat, encoding="latin-1") as file:
                state, *fields = file.read().rpartition(")")[2].split()
            used = int(fields[10]) + int(fields[11])  # hundredths of a second, of all its threads
            if state != "R" and used - self._used < 10 * passed:
                self._left -= passed
            self._used, self._seen = used, self._seen + passed
        return self._left < 0


def read(descriptor: int, deadline: float, watch: Watch) -> bytes:
    """Read until the other end is closed by all, says that it is done, has waited for too long, or time is over."""
    pieces = []
    while (left := deadline - time.monotonic()) > 0 and not watch.is_over():
        if not select.select([descriptor], [], [], min(left, LOOK))[0]:
            continue
        piece = os.read(descriptor, 1 << 16)
        pieces.append(piece)
        if not piece or b'["done"' in b"".join(pieces[-2:]):
            break
    return b"".join(pieces)


def result(data: bytes) -> "dict[str, Any]":
    found: dict[str, Any] = {"tests": {}, "errors": [], "lines": {}, "timed_out": True}
    for line in data.splitlines():
        try:
            kind, name, *more = json.loads(line)
        except ValueError:
            continue
        if kind == "test":
            passed, seconds, text = more[0]
            before = found["tests"].get(name, [True, 0.0, ""])
            found["tests"][name] = [before[0] and passed, seconds, before[2] or text]
        elif kind == "error":
            found["errors"].append(name)
        elif kind == "lines":
            found["lines"][name] = more[0]
        else:
            found["timed_out"] = name
    return found


def test(job: "Any", batch: "Any", writer: int, printed: int) -> None:
    """Do in the child what `python -m pytest` does."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    tracer = None
    seconds = job["seconds"] + job["test_seconds"] + 1
    if job["traced"]:
        import coverage  # found beside this program

        watched = [os.path.abspath(path) for path in job["traced"]]
        tracer = coverage.Coverage(data_file=None, config_file=False, include=watched, messages=False)
        seconds += batch["grace"]  # to write what was found
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.getrlimit(resource.RLIMIT_CPU)[1]))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in enumerate((null, printed, printed)):
        os.dup2(target, descriptor)
    sys.dont_write_bytecode = not job["compile"]
    sys.path[0] = os.getcwd()
    reports = Reports(job, writer, tracer)
    if tracer is not None:
        tracer.start()
    plugins = [reports, Limit(job["test_seconds"])] if job["test_seconds"] else [reports]
    pytest.main([*ARGUMENTS, *batch["arguments"], *job["tests"]], plugins=plugins)
    if tracer is not None:
        tracer.stop()
        reports.write_lines()
    sys.stdout.flush()  # the process is killed as soon as it is done
    reports.write("done", reports.stopped)


def _end(number: int, frame: object) -> None:
    sys.exit(1)


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    with open(sys.argv[1], encoding="utf-8") as file:
        batch = json.load(file)
    from _pytest.config import get_config

    get_config()  # loads pytest's own plug-ins
    tree = Tree()
    gc.freeze()
    with open(sys.argv[2], "w", encoding="utf-8") as results:
        for job in batch["jobs"]:
            tree.change(job["files"])
            found = run(job, batch)
            if job["compile"]:
                tree = Tree()
            else:
                tree.restore()
            results.write(json.dumps(found) + "\n")
            results.flush()


if __name__ == "__main__":
    main()
