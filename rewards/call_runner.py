"""Runs in the sandbox when a task is graded by values: makes the calls and reports what each returned.

It shares a process with the code under test, which can forge its reports; `rewards.call_values` says why that gains
nothing. It knows the answers of the tests only in order to stop a test at its first wrong answer, as the test itself
would. This file is put into the sandbox as text, behind that of `rewards.canonical`, and is never imported.
"""

import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slime_swe.rewards.canonical import canonical


def write_line(line: str) -> None:
    """Not buffered, and between newlines, so that nothing that is printed ends up inside of it."""
    os.write(1, f"\n{line}\n".encode("ascii", "backslashreplace"))


def write_value(number: int, value: "Any") -> str:
    try:
        text = canonical(value)
    except Exception:
        text = "?"
    write_line(f"VALUE {number} {text}")
    return text


def is_right(number: int, call: "Any", functions: "Any") -> bool:
    """Make one call and report what it returned; whether that was expected."""
    name, arguments, expected = call
    try:
        return bool(write_value(number, functions[name](*arguments)) == expected)
    except Exception as error:
        write_line(f"RAISED {number} {type(error).__name__}")
        return False


def functions_of(module_name: str, names: "Any") -> "Any":
    """None where a test file with these imports could not be imported."""
    try:
        module = importlib.import_module(module_name)
        return {name: getattr(module, name) for name in names}
    except Exception as error:
        write_line(f"NOT IMPORTED {module_name} {type(error).__name__}")
        return None


def run(files: "Any", number: int = 0) -> "tuple[int, bool]":
    """Every test of every file up to its first wrong call; the number of calls, and whether all were right."""
    right = True
    for module_name, names, tests in files:
        functions = functions_of(module_name, names)
        for calls in tests:
            passed = functions is not None and all(
                is_right(number + offset, call, functions) for offset, call in enumerate(calls)
            )
            right = right and passed
            number += len(calls)
    return number, right


def run_held_out(files: "Any", number: int) -> None:
    """Every call, the answers of which are not known here."""
    for module_name, names, tests in files:
        functions = functions_of(module_name, names)
        for call in [call for calls in tests for call in calls]:
            if functions is not None:
                is_right(number, call, functions)
            number += 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path[:0] = [os.path.join(os.getcwd(), "src"), os.getcwd()]
    with open(".grader/calls.txt", encoding="utf-8") as file:
        shown, held_out = eval(file.read())
    count, all_right = run(shown)
    if all_right:
        run_held_out(held_out, count)
