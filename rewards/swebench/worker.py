"""The process that holds swebench: JSON lines in, JSON lines out. Run as a script; imports nothing of this project.

Requests have an `id`, which the answer repeats, and an `op`:

| op | fields | answer |
| --- | --- | --- |
| `script` | instance | `script`: the eval script as the harness runs it |
| `report` | instance, log | `report`: what `get_eval_report` says of the log |
| `run` | instance, patch, seconds, run_id | `report`, `log` and `seconds`, or `unappliable`, or `timed_out` and `log` |
| `cancel` | target | none; that run is killed and its container removed |

An answer with `refused` says what is wrong with the request, one with `error` that grading failed. The first line,
before any request, is `ready` (the version), or `missing` (what can't be imported). At the end of its input the process
kills what it runs, removes the containers and ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "slime-swe"  # the harness files its logs under a model's name
LOG_CHARACTERS = 20_000  # of a run's log, sent back from its end
DOCKER_SECONDS = 120  # for an answer of the daemon, beyond the time that the tests may be silent
UNAPPLIABLE = re.compile(r"^[\d-]+ [\d:,]+ - INFO - >>>>> Patch Apply Failed:\n(.*)", re.MULTILINE | re.DOTALL)
TIMED_OUT = re.compile(r"\n\nTimeout error: \d+ seconds exceeded\.\Z")

Message = dict[str, Any]


def report(instance: Message, log: str, folder: Path) -> Message:
    """The harness's report of a log."""
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    path = folder / "test_output.txt"
    path.write_text(log, errors="replace")
    prediction = {"instance_id": instance["instance_id"], "model_name_or_path": MODEL, "model_patch": ""}
    reports = get_eval_report(make_test_spec(instance), prediction, str(path), include_tests_status=True)
    return dict(reports[instance["instance_id"]])


def script(instance: Message) -> str:
    """The eval script, with the lines that the harness adds to it."""
    from swebench.harness.utils import make_test_spec

    return str(make_test_spec(instance).eval_script)


def refusal(request: Message) -> str:
    """What is wrong with the request; empty where nothing is."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    parser = request["instance"]["log_parser"]
    if parser not in PARSER_REGISTRY:
        return f"swebench has no log parser {parser!r} (available: {', '.join(sorted(PARSER_REGISTRY))})"
    if request["op"] == "run" and shutil.which("docker") is None:
        return "the official harness removes its containers by the docker command, which is not on PATH"
    return ""


def run(request: Message) -> Message:
    """One run of the harness, in the current folder, which must be empty: it reuses whatever report it finds."""
    from swebench.harness.run_evaluation import run_instance
    from swebench.harness.utils import make_test_spec

    instance = request["instance"]
    prediction = {
        "instance_id": instance["instance_id"],
        "model_name_or_path": MODEL,
        "model_patch": request["patch"],
    }
    client = importlib.import_module("docker").from_env(timeout=request["seconds"] + DOCKER_SECONDS)
    started = time.monotonic()
    result = run_instance(
        make_test_spec(instance),
        prediction,
        client,
        request["run_id"],
        request["seconds"],
        skip_patch=not request["patch"],
    )
    took = time.monotonic() - started
    logs = Path("logs/run_evaluation", request["run_id"], MODEL, instance["instance_id"])
    log = _text(logs / "test_output.txt")
    if result is not None:
        return {"report": result[1][instance["instance_id"]], "log": log[-LOG_CHARACTERS:], "seconds": took}
    return _failure(_text(logs / "run_instance.log"), log)


def _failure(story: str, log: str) -> Message:
    """Why `run_instance` gave no report: it tells its own log alone."""
    if unappliable := UNAPPLIABLE.search(story):
        return {"unappliable": unappliable[1][:LOG_CHARACTERS]}
    if TIMED_OUT.search(log):
        return {"timed_out": True, "log": log[-LOG_CHARACTERS:]}
    return {"error": story[-LOG_CHARACTERS:]}


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@dataclass
class Child:
    """A forked run of the harness: its loggers, its folder and its run id are its own."""

    request: Message
    pid: int
    end: int  # a pipe that ends with it
    folder: str

    @classmethod
    def start(cls, request: Message, *not_its: int) -> Child:
        """`not_its`: descriptors that only the parent may hold, so that its end is seen."""
        folder = tempfile.mkdtemp(prefix="slime-swe-harness-")
        end, held = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for descriptor in (end, *not_its):
                    os.close(descriptor)
                os.setpgid(0, 0)
                os.chdir(folder)
                Path("answer.json").write_text(json.dumps(guarded(lambda: run(request))))
            finally:
                os._exit(0)  # without the parent's clean-up
        os.close(held)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # whoever comes first: it may be killed at once
        return cls(request, pid, end, folder)

    def answer(self) -> Message:
        """What it left. Waits for its end."""
        os.waitpid(self.pid, 0)
        left = _text(Path(self.folder, "answer.json"))
        self._clear()
        return json.loads(left) if left else {"error": "the harness's process died"}

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        name = f"sweb.eval.{self.request['instance']['instance_id'].lower()}.{self.request['run_id']}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False, timeout=60)
        self._clear()

    def _clear(self) -> None:
        os.close(self.end)
        shutil.rmtree(self.folder, ignore_errors=True)


def guarded(work: Callable[[], Message]) -> Message:
    """What the work gives. A parser may raise anything, and none of it may end the process that all gradings share."""
    try:
        return work()
    except Exception:
        return {"error": traceback.format_exc()}


class Worker:
    """Answers until its input ends. One thread: parsing takes milliseconds, and runs are processes of their own."""

    def __init__(self, answers: int, folder: Path) -> None:
        self._answers = answers
        self._folder = folder
        self._children: dict[Any, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._unread: list[bytes] = []  # of a line that is not yet whole

    def serve(self) -> None:
        self._selector.register(0, selectors.EVENT_READ)
        try:
            while self._step():
                pass
        finally:
            for child in self._children.values():
                child.kill()

    def _step(self) -> bool:
        """False at the end of the input."""
        for key, _ in self._selector.select():
            if key.fd != 0:
                self._reap(key.data)
            elif not self._read():
                return False
        return True

    def _read(self) -> bool:
        data = os.read(0, 1 << 20)
        *ends, rest = data.split(b"\n")
        for end in ends:
            line = b"".join((*self._unread, end))
            self._unread = []
            self._handle(json.loads(line))
        self._unread.append(rest)
        return bool(data)

    def _handle(self, request: Message) -> None:
        if request["op"] == "cancel":
            self._cancel(request["target"])
        elif refused := refusal(request):
            self.say({"id": request["id"], "refused": refused})
        elif request["op"] == "run":
            child = self._children[request["id"]] = Child.start(request, 0, self._answers)
            self._selector.register(child.end, selectors.EVENT_READ, request["id"])
        else:
            self.say({"id": request["id"], **guarded(lambda: self._grade(request))})

    def _grade(self, request: Message) -> Message:
        if request["op"] == "script":
            return {"script": script(request["instance"])}
        return {"report": report(request["instance"], request["log"], self._folder)}

    def _reap(self, request_id: Any) -> None:
        child = self._children.pop(request_id)
        self._selector.unregister(child.end)
        self.say({"id": request_id, **child.answer()})

    def _cancel(self, request_id: Any) -> None:
        child = self._children.pop(request_id, None)
        if child is not None:
            self._selector.unregister(child.end)
            child.kill()

    def say(self, message: Message) -> None:
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            left = left[os.write(self._answers, left) :]


def missing() -> str:
    """Why swebench can't be used here; empty where it can."""
    try:
        from swebench.harness import run_evaluation, utils
    except ImportError as error:
        return str(error)
    return "" if hasattr(utils, "make_test_spec") else f"swebench 5 is needed, not {run_evaluation.__file__}"


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what swebench prints is no answer
    os.set_inheritable(answers, False)
    with tempfile.TemporaryDirectory(prefix="slime-swe-parser-") as folder:
        worker = Worker(answers, Path(folder))
        if why := missing():
            worker.say({"missing": why})
            return
        from swebench import __version__

        worker.say({"ready": __version__})
        worker.serve()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main()
