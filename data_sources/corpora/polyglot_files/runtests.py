"""Run test files of the standard library's unittest: `python runtests.py FILE...`. Prints a line for each test."""

from __future__ import annotations

import importlib.util
import os
import sys
import unittest
from typing import Any


class Lines(unittest.TestResult):
    """Prints a line for each test. path: of the file whose tests are run."""

    path = ""

    def say(self, status: str, test: Any, error: Any = None) -> None:
        why = f" - {error[0].__name__}: {error[1]}" if error else ""
        print(f"{status} {self.path}::{type(test).__name__}::{test._testMethodName}{why}".splitlines()[0][:300])

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self.say("PASSED", test)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.say("FAILED", test, err)

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self.say("FAILED", test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.say("FAILED", test, err)


def run(path: str, result: Lines) -> bool:
    """Run the tests of a file and say whether all passed. None passes of a file that can't be imported."""
    result.path = path
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print(f"{path} can't be imported: {type(error).__name__}: {error}")
        return False
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    return result.wasSuccessful()


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.getcwd())
    found = Lines()
    sys.exit(not all([run(path, found) for path in sys.argv[1:]]))
