"""What it costs to read an answer that a policy got wrong, by mistake or on purpose: milliseconds of the processor, of
99 in 100 mutated answers to each reader, and of the slowest.

The tests read 100,000 of each (`--all`), and show that none raises another error than its reader's own. `--check` holds
the first figure to 50 ms and the second to 2 s.

    python -m benchmarks.hostile_answers [--count ANSWERS] [--json] [--check] [--save]

It needs the extras `dev` and `diff`: the answers are those of the tests.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from benchmarks.command import Figures, run
from slime_swe.data_sources.arc.tool.program import examine
from slime_swe.data_sources.steps import Call, read_calls
from slime_swe.patches import PatchError, apply_patch, apply_reply
from slime_swe.rewards.arc import read_report
from slime_swe.rewards.diff import similarity
from slime_swe.rewards.steps import agreement
from slime_swe.rewards.vulnerability import read_answer, worth
from tests.data_sources.arc import test_program as programs
from tests.effort import processor_seconds
from tests.mutated_json import mutated as mutated_json
from tests.rewards import test_arc as arc
from tests.rewards import test_call_values as values
from tests.rewards import test_steps as steps
from tests.rewards import test_vulnerability as vulnerability
from tests.slime_swe import mutated_patches as patches
from tests.slime_swe import mutated_replies as replies

Reading = Callable[[], object]  # of one answer
MOST_MS = {"p99": 50.0, "most": 2_000.0}


async def measure(count: int) -> Figures:
    """count: answers to each reader."""
    with TemporaryDirectory() as folder:
        readers: dict[str, Iterator[Reading]] = {
            "patch": _patches(random.Random(0), Path(folder, "repository")),
            "reply": _replies(random.Random(0)),
            "program": _each(partial(programs.mutated, random.Random(0)), examine),
            "grids": _each(partial(arc.mutated_report, random.Random(0)), read_report),
            "values": _each(partial(values.mutated_log, random.Random(0)), values.calls().read),
            "verdict": _each(partial(mutated_json, vulnerability.HONEST, random.Random(0)), _verdict),
            "step": _each(partial(steps.mutated_answer, random.Random(0)), _step),
        }
        figures: Figures = {}
        for name, readings in readers.items():
            taken = [processor_seconds(reading) * 1e3 for reading in islice(readings, count)]
            figures |= {f"{name}_p99_ms": quantiles(taken, n=100)[-1], f"{name}_most_ms": max(taken)}
    return figures


def _each(make: Callable[[], object], read: Callable[..., object]) -> Iterator[Reading]:
    while True:
        yield partial(_refused, read, make())


def _refused(read: Callable[..., object], *given: object) -> None:
    """An answer that is none raises the reader's own error."""
    with contextlib.suppress(ValueError, *programs.NO_PROGRAM):
        read(*given)


def _patches(dice: random.Random, folder: Path) -> Iterator[Reading]:
    made = patches.Repository(folder).patches(dice, 30)
    return (partial(_refused, apply_patch, patches.FILES, patch) for patch in patches.mutated(made, dice))


def _replies(dice: random.Random) -> Iterator[Reading]:
    """To be applied, and the files that they leave compared with those that there were, as `task=diff` does."""

    def read(files: dict[str, str], reply: str) -> None:
        with contextlib.suppress(PatchError):
            left = apply_reply(files, reply)
            for path in left.keys() & files.keys():
                similarity(str(left[path]), files[path])

    return (partial(read, files, reply) for files, reply in replies.mutated(dice))


def _verdict(answer: bytes) -> None:
    worth(read_answer(answer.decode("utf-8", "surrogateescape")), vulnerability.VULNERABLE.oracle, 8)


def _step(answer: str) -> None:
    made: list[Call] = steps.MADE
    agreement(read_calls(answer), made)


LIMITS = {
    f"{name}_{figure}_ms": most
    for name in ("patch", "reply", "program", "grids", "values", "verdict", "step")
    for figure, most in MOST_MS.items()
}

if __name__ == "__main__":
    sys.exit(run(__doc__ or "", "hostile_answers", measure, limits=LIMITS, count=10_000))
