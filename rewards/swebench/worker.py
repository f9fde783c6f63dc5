"""The process that holds swebench: JSON lines in, JSON lines out. Run as a script; imports nothing of this project.

Requests have an `id`, which the answer repeats, and an `op`:

| op | fields | answer |
| --- | --- | --- |
| `script` | instance | `script`: the eval script as the harness runs it |
| `report` | instance, log: the path of a file | `report`: what `get_eval_report` says of the log |
| `run` | instance, patch, seconds, run_id | `report`, `log` and `seconds`, or `unappliable`, or `timed_out` and `log` |

An answer with `refused` says what is wrong with the request, one with `error` that grading failed. The first line,
before any request, is `ready` (the version), or `missing` (what can't be imported). The process ends with its input.

A policy can print what a parser raises at, or takes hours or all memory for. That is its own failure: the report of
such a log solves nothing, and its field `unreadable` says why. If the harness fails at a log without results too, the
failure is not the log's, and the answer is an `error`.

Each `run` is made in a child of its own, since the harness names its loggers by the instance and writes into the
current folder. Nothing else may be asked meanwhile. If the input ends before the run does, the child is killed, its
container removed, and the process ends.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

MODEL = "slime-swe"  # the harness files its logs under a model's name
NEAREST = 5  # of the names that are shown for an unknown one
LOG_CHARACTERS = 20_000  # of a run's log, sent back from its end
DOCKER_SECONDS = 120  # for an answer of the daemon, beyond the time that the tests may be silent
READ_SECONDS = 30.0  # of processor time, for a log to be read
MEMORY_BYTES = 4 << 30  # of this process, of which swebench's libraries reserve 1.2 GiB
SHOWN = 1_000  # characters of what a parser raised
NO_RESULTS = ">>>>> Start Test Output\n>>>>> End Test Output\n"
# In the traceback of a run: that the harness failed at what a patch or its tests have written.
BY_THE_PATCH = re.compile(
    r"^(UnicodeDecodeError|MemoryError|(\w+\.)*TooSlow)\b"
    r"|^  File \".*/swebench/harness/(grading|log_parsers/\w+)\.py\"",
    re.MULTILINE,
)
UNAPPLIABLE = re.compile(r"^[\d-]+ [\d:,]+ - INFO - >>>>> Patch Apply Failed:\n(.*)", re.MULTILINE | re.DOTALL)
TIMED_OUT = re.compile(r"\n\nTimeout error: \d+ seconds exceeded\.\Z")

Message = dict[str, Any]


class TooSlow(Exception):
    """A log takes more processor time than it may."""


@contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the main thread after so much of this process's time, also within a regular expression."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds:g} s of processor time")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def unreadable(instance: Message, why: str) -> Message:
    """Return the report of a log that the harness fails at. Raises where it fails at one without results too."""
    empty = Path("no_results.txt")
    empty.write_text(NO_RESULTS)
    report(instance, empty)
    return {"resolved": False, "patch_successfully_applied": False, "unreadable": why[-SHOWN:]}


def read(instance: Message, log: Path) -> Message:
    """Return the harness's report of any log, also of one that it fails at."""
    try:
        with processor_time(READ_SECONDS):
            return report(instance, log)
    except OSError:  # the machine's
        raise
    except Exception:  # whatever a parser raises
        why = traceback.format_exc()
    return unreadable(instance, why)


def report(instance: Message, log: Path) -> Message:
    """Return the harness's report of a log."""
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    prediction = {"instance_id": instance["instance_id"], "model_name_or_path": MODEL, "model_patch": ""}
    reports = get_eval_report(make_test_spec(instance), prediction, str(log), include_tests_status=True)
    return dict(reports[instance["instance_id"]])


def script(instance: Message) -> str:
    """Return the eval script, with the lines that the harness adds to it."""
    from swebench.harness.utils import make_test_spec

    return str(make_test_spec(instance).eval_script)


def refusal(request: Message) -> str:
    """Say what is wrong with the request; empty where nothing is."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    parser = request["instance"]["log_parser"]
    if parser not in PARSER_REGISTRY:
        near = difflib.get_close_matches(str(parser), PARSER_REGISTRY, n=NEAREST) or list(PARSER_REGISTRY)[:NEAREST]
        shown = f"such as {', '.join(near)}; {len(PARSER_REGISTRY)} in all: swebench.harness.log_parsers"
        return f"swebench has no log parser {parser!r} (available: {shown})"
    if request["op"] == "run" and shutil.which("docker") is None:
        return "the official harness removes its containers by the docker command, which is not on PATH"
    return ""


def run(request: Message) -> Message:
    """Run the harness once, in the current folder, which must be empty: it reuses whatever report it finds."""
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
    with processor_time(READ_SECONDS):  # the harness reports what is raised here, as it does all exceptions
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
    run_log = _text(logs / "run_instance.log")  # which alone says why there is no report
    if unappliable := UNAPPLIABLE.search(run_log):
        return {"unappliable": unappliable[1][:LOG_CHARACTERS]}
    if TIMED_OUT.search(log):
        return {"timed_out": True, "log": log[-LOG_CHARACTERS:]}
    raised = run_log.rpartition("Error in evaluating model")[2]
    if BY_THE_PATCH.search(raised):
        return {"report": unreadable(instance, raised), "log": log[-LOG_CHARACTERS:], "seconds": took}
    return {"error": run_log[-LOG_CHARACTERS:]}


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def run_in_a_child(request: Message) -> Message:
    """Run the harness in a copy of this process, in an empty folder; end both where the input ends before."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        child = os.fork()
        if child == 0:
            try:
                os.chdir(folder)
                with os.fdopen(writer, "w", encoding="ascii") as file:
                    json.dump(_caught(run, request), file)
            finally:
                os._exit(0)  # what is still open is the parent's
        os.close(writer)
        with os.fdopen(reader, "rb") as said:
            if said not in select.select([said, sys.stdin.buffer], [], [])[0]:
                os.kill(child, signal.SIGKILL)
                name = f"sweb.eval.{request['instance']['instance_id'].lower()}.{request['run_id']}"
                subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False, timeout=20)
                sys.exit()
            text = said.read()
        _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"the run's process ended with status {status} and said nothing"}


def answer(request: Message) -> Message:
    """Answer a request."""
    if refused := refusal(request):
        return {"refused": refused}
    if request["op"] == "script":
        return {"script": script(request["instance"])}
    if request["op"] == "run":
        return run_in_a_child(request)
    return {"report": read(request["instance"], Path(request["log"]))}


def _caught(reply: Callable[[Message], Message], request: Message) -> Message:
    """Return a reply, or what was raised instead: all gradings share this process."""
    try:
        return reply(request)
    except Exception:
        return {"error": traceback.format_exc()}


def missing() -> str:
    """Say why swebench can't be used here; empty where it can."""
    try:
        from swebench.harness import run_evaluation, utils
    except ImportError as error:
        return str(error)
    return "" if hasattr(utils, "make_test_spec") else f"swebench 5 is needed, not {run_evaluation.__file__}"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what swebench prints is no answer

    def say(message: Message) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    if why := missing():
        say({"missing": why})
        return
    from swebench import __version__

    say({"ready": __version__})
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory(prefix="slime-swe-harness-") as folder:
        os.chdir(folder)
        for line in iter(sys.stdin.buffer.readline, b""):
            request = json.loads(line)
            say({"id": request["id"], **_caught(answer, request)})


if __name__ == "__main__":
    main()
