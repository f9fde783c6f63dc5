"""Try solution.py on the training pairs.

python3 -m arc_tool                       each pair: right, or what is wrong
python3 -m arc_tool trace N [FUNCTION]    the call on pair N line by line, with the variables that change
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from .forms import FORMS, Form, Grid, digits
from .interpreter import PROGRAM, Outcome, apart, called, described, function_of
from .program import ATTEMPTS, examine
from .tracer import differences, indented, sizes, traced

SECONDS = 4.0  # of a call
MOST_CELLS = 10  # that differ, named of a wrong pair


def main(words: list[str]) -> int:
    task = json.loads(Path("task.json").read_text(encoding="utf-8"))
    form, pairs = FORMS.get(task["form"], digits), task["train"]
    try:
        source = Path(PROGRAM).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"{PROGRAM} can't be read: {error}")
        return 2
    if not words:
        return _try(source, task, form)
    if words[0] == "trace" and 2 <= len(words) <= 3 and words[1].isdecimal() and 1 <= int(words[1]) <= len(pairs):
        return _trace(source, pairs[int(words[1]) - 1]["input"], (words[2:] or ATTEMPTS)[0], form)
    print(f"{(__doc__ or '').strip()}\nN is 1 to {len(pairs)}.")
    return 2


def _try(source: str, task: dict[str, Any], form: Form) -> int:
    pairs = task["train"]
    facts = apart(lambda: examine(source, task["modules"], task["functions"]), SECONDS)
    if facts.error:
        print(f"{PROGRAM}: {described(facts.error)}")
        return 1
    for what, names in (("never read", facts.value["unused"]), ("not allowed", facts.value["outside"])):
        if names:
            print(f"{what}: {', '.join(names)}")
    right, shown = set(), False
    for attempt in facts.value["attempts"]:
        for number, pair in enumerate(pairs):
            outcome = apart(partial(called, source, attempt, pair["input"]), SECONDS)
            verdict, details = _judged(outcome, pair["output"], form)
            print(f"{attempt}, pair {number + 1}: {verdict}")
            if outcome.printed:
                print(f"printed:\n{indented(outcome.printed.rstrip())}")
            if details and not shown:  # one is enough to think about
                print(details)
            shown = shown or bool(details)
            right |= {number} if verdict == "right" else set()
    if not facts.value["attempts"]:
        print(f"{PROGRAM} defines no function {ATTEMPTS[0]}(grid)")
    print(f"{len(right)} of {len(pairs)} pairs right")
    return int(len(right) < len(pairs))


def _judged(outcome: Outcome, expected: Grid, form: Form) -> tuple[str, str]:
    """Return the verdict on an outcome, and a text that shows more of a wrong grid."""
    if outcome.error:
        return described(outcome.error), ""
    got = outcome.value
    if got == expected:
        return "right", ""
    grids = f"     expected:\n{indented(form(expected))}\n     got:\n{indented(form(got))}"
    if sizes(got) != sizes(expected):
        (rows, columns), (wanted_rows, wanted_columns) = sizes(got), sizes(expected)
        return f"wrong, {rows} x {columns} in place of {wanted_rows} x {wanted_columns} cells", grids
    cells = differences(got, expected)
    named = [f"     [{r}][{c}] is {got[r][c]}, expected {expected[r][c]}" for r, c in cells[:MOST_CELLS]]
    more = [f"     and {len(cells) - MOST_CELLS} more"] if len(cells) > MOST_CELLS else []
    verdict = f"wrong, {len(cells)} of {len(got) * len(got[0])} cells differ"
    return verdict, "\n".join([*named, *more, grids])


def _trace(source: str, grid: Any, name: str, form: Form) -> int:
    outcome = apart(lambda: traced(function_of(source, name), grid, source, form), SECONDS)
    print("\n".join(outcome.value or []) if outcome.error is None else described(outcome.error))
    if outcome.printed:
        print(f"printed:\n{indented(outcome.printed.rstrip())}")
    return int(outcome.error is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
