"""Run QuixBugs' own tests without pytest: `python runtests.py python_testcases/test_gcd.py`.

The tests ask pytest for four things: `mark.parametrize`, `skip`, `approx` and two switches. A module of that name gives
them. Each test may take a few seconds; code that never ends is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

SECONDS = 2


class Skipped(Exception):
    pass


class Approximately:
    """A number that is equal to any number at most `abs` away."""

    def __init__(self, expected: float, abs: float) -> None:
        self.expected, self.margin = expected, abs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, float)) and -self.margin <= other - self.expected <= self.margin


def skip(reason: str) -> None:
    raise Skipped(reason)


def parametrize(names: str, values: list[Any]) -> Callable[[Any], Any]:
    def attach(test: Any) -> Any:
        test.parameters = values
        return test

    return attach


def stand_in() -> types.ModuleType:
    """Make the module that the tests import as pytest."""
    module = types.ModuleType("pytest")
    vars(module).update(use_correct=False, run_slow=False, skip=skip, approx=Approximately)
    vars(module)["mark"] = types.SimpleNamespace(parametrize=parametrize)
    return module


def stop(signum: int, frame: object) -> None:
    raise TimeoutError(f"takes more than {SECONDS} seconds")


def cases(path: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield (test id, the test) for each test of a file, in its order."""
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, test in list(vars(module).items()):
        if not name.startswith("test") or not isinstance(test, types.FunctionType):
            continue
        if not hasattr(test, "parameters"):
            yield f"{path}::{name}", test
            continue
        for number, values in enumerate(test.parameters):
            yield f"{path}::{name}[{number}]", partial(test, *values)


def outcome(test: Callable[[], None]) -> str:
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        test()
    except Skipped:
        return "SKIPPED"
    except Exception as error:
        return f"FAILED - {type(error).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "PASSED"


def main(path: str) -> int:
    sys.modules["pytest"] = stand_in()
    sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "python_testcases")]
    signal.signal(signal.SIGALRM, stop)
    failed = 0
    for name, test in cases(path):
        status, _, why = outcome(test).partition(" - ")
        failed += status == "FAILED"
        print(f"{status} {name}" + (f" - {why}" if why else ""), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main(sys.argv[1]))
