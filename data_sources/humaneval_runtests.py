"""Run the test of a HumanEval task: `python runtests.py FUNCTION`. Prints a line that says whether it has passed."""

import importlib
import os
import sys

TEST = "test_solution.py::check"


def main(name: str) -> int:
    try:
        function = getattr(importlib.import_module("solution"), name)
        test = importlib.import_module("test_solution")
        setattr(test, name, function)  # by which some tests call it
        test.check(function)
    except Exception as error:
        print(f"FAILED {TEST} - {type(error).__name__}: {error}"[:200])
        return 1
    print(f"PASSED {TEST}")
    return 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.getcwd())
    sys.exit(main(sys.argv[1]))
