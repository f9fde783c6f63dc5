"""What the grader runs: each attempt on each input. It knows no output, so there is none to be found here.

`PROGRAM 1 2 0 3` says first, before any of the program has run: whether it is Python, how many attempts it has, how
many variables it never reads, how many things it uses that it may not. Then `GRID 4 012/345` for what call 4 gave, or
`ERROR 4 {…}`. Call 2 * i + a is attempt a on input i. An attempt that takes too long on one input is not made on the
others.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from .forms import digits, grid_of
from .interpreter import PROGRAM, TIMEOUT, Outcome, apart, called
from .program import ATTEMPTS, examine


def main() -> None:
    asked = json.loads(Path("inputs.json").read_text(encoding="utf-8"))
    source = Path(PROGRAM).read_text(encoding="utf-8")
    facts = apart(lambda: examine(source, asked["modules"], asked["functions"]), asked["seconds"])
    attempts = list(facts.value["attempts"]) if facts.value else []
    counts = [len(facts.value[name]) for name in ("attempts", "unused", "outside")] if facts.value else [0, 0, 0]
    _say("PROGRAM", int(facts.error is None), *counts)
    if facts.error:
        _say("ERROR", -1, json.dumps(facts.error))
    end = time.monotonic() + asked["total_seconds"]
    for number, grid in enumerate(asked["inputs"]):
        for attempt in list(attempts):
            left = end - time.monotonic()
            if left <= 0:
                return
            outcome = apart(partial(called, source, attempt, grid), asked["seconds"], left)
            _report(2 * number + ATTEMPTS.index(attempt), outcome)
            if outcome.error and outcome.error["type"] == TIMEOUT:
                attempts.remove(attempt)


def _report(number: int, outcome: Outcome) -> None:
    """Print what a call gave. It may be anything, since the program shares its process with what reports it."""
    try:
        if outcome.error is None:
            return _say("GRID", number, digits(grid_of(outcome.value)).replace("\n", "/"))
    except ValueError:
        pass
    _say("ERROR", number, json.dumps(outcome.error))


def _say(*words: Any) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    main()
