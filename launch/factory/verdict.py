"""Prints 1 where every expected test passed by a log of `pytest -rA`, else 0: `verdict.py EXPECTED.json LOG`.

It stands beside a Harbor task's tests and imports nothing of ours.
"""

import json
import re
import sys


def verdict(expected: "list[str]", log: str) -> int:
    outcomes: dict[str, bool] = {}
    shown = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", log)  # without colours
    for status, rest in re.findall(r"^(PASSED|FAILED|ERROR) (\S.*)$", shown, re.MULTILINE):
        for name in (rest, rest.split(" - ")[0]):
            outcomes[name] = outcomes.get(name, True) and status == "PASSED"
    return int(all(outcomes.get(name, False) for name in expected))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as names, open(sys.argv[2], encoding="utf-8", errors="replace") as output:
        print(verdict(json.load(names), output.read()))
