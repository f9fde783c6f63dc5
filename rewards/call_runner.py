"""Runs in the sandbox when a task is graded by values: makes the calls and reports what each returned.

It shares a process with the code under test, which can forge its reports; `rewards.call_values` says why that gains
nothing. It knows no answer, so that none can be found in its process. This file is put into the sandbox as text, behind
that of `rewards.canonical`, and is never imported.
"""

import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slime_swe.rewards.canonical import canonical


def write_line(line: str) -> None:
    """Write a line unbuffered and between newlines, so that nothing that is printed ends up inside of it."""
    os.write(1, f"\n{line}\n".encode("ascii", "backslashreplace"))


def make_call(number: int, function: "Any", arguments: "Any") -> None:
    """Make one call and report what it returned or raised."""
    try:
        value = function(*arguments)
    except Exception as error:
        write_line(f"RAISED {number} {type(error).__name__}")
        return
    try:
        text = canonical(value)
    except Exception:
        text = "?"
    write_line(f"VALUE {number} {text}")


def functions_of(module_name: str, names: "Any") -> "Any":
    """Import functions; None where a test file with these imports could not be imported."""
    try:
        module = importlib.import_module(module_name)
        return {name: getattr(module, name) for name in names}
    except Exception as error:
        write_line(f"NOT IMPORTED {module_name} {type(error).__name__}")
        return None


def run(files: "Any") -> None:
    """Make every call of every file, whatever the others gave."""
    number = 0
    for module_name, names, calls in files:
        functions = functions_of(module_name, names)
        for name, arguments in calls:
            if functions is not None:
                make_call(number, functions[name], arguments)
            number += 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path[:0] = [os.path.join(os.getcwd(), "src"), os.getcwd()]
    with open(".grader/calls.txt", encoding="utf-8") as file:
        run(eval(file.read()))
