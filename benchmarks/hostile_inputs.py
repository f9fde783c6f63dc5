"""What input costs that was made to be slow, at the largest size that is allowed: milliseconds of the processor, of the
slowest kind of each reader, in the best of three tries.

The tests show that these grow with the input and no faster, and that the proxy's loop is not held (`tests/effort.py`);
how long they take on a machine is said here. `--check` compares each with a fixed loop of plain Python, `yardstick_ms`,
of the same run, so that a slow processor measures the same.

    python -m benchmarks.hostile_inputs [--scale SHARE] [--json] [--check] [--save]

It needs the extras `dev` and `diff`: the inputs are those of the tests.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from benchmarks.command import Figures, run
from slime_swe.data_sources.contamination import find_overlaps
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.patches import PatchError, apply_reply
from slime_swe.rewards.diff import similarity
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.chat.tool_formats import MAX_TURN
from tests.data_sources import test_contamination as contamination
from tests.effort import processor_seconds, yardstick
from tests.rewards.diff.test_similarity import LONG as TEXTS
from tests.rollout.proxy.test_load import CHAT, HOSTILE, served
from tests.rollout.test_parsers import FILLINGS, STARTS, parse
from tests.slime_swe import test_hostile_patches as patches
from tests.slime_swe.test_hostile_replies import LONG as REPLIES

T = TypeVar("T")
MIB = 1 << 20
TRIES = 3
FIGURES = ("log_ms", "turn_ms", "patch_ms", "reply_ms", "similarity_ms", "overlaps_ms", "proxy_loop_ms")
LINES = ("PASSED a::b\n", "\n", "x", "[] SUBFAIL" * 14_000 + "\n", "FAILED a::" + " - " * 99)


async def measure(scale: float) -> Figures:
    """scale: share of the sizes that are allowed."""
    unit = yardstick()
    size = max(1_000, int(MIB * scale))
    tasks = [contamination.task(f"t{i}", contamination.text(f"t{i}", 250)) for i in range(int(5_500 * scale))]
    turns = ((start + filling * (int(MAX_TURN * scale) // len(filling)), form)
             for form, starts in STARTS.items() for start in starts for filling in FILLINGS)  # fmt: skip
    cost = {
        "log_ms": slowest(parse_test_log, (line * (size // len(line) + 1) for line in LINES)),
        "turn_ms": slowest(lambda turn: parse(*turn), turns),
        "patch_ms": slowest(patches.tried, (make(size) for make in patches.LARGE.values())),
        "reply_ms": slowest(applied, (make(size // 2) for make in REPLIES.values())),
        "similarity_ms": slowest(lambda pair: similarity(*pair), TEXTS.values()),
        "overlaps_ms": slowest(lambda few: find_overlaps(tasks[few:], tasks[:few]), [len(tasks) // 11]),
    }
    figures = {name: seconds * 1e3 for name, seconds in cost.items()}
    return {"yardstick_ms": unit * 1e3, **figures, "proxy_loop_ms": await proxy_loop() * unit * 1e3}


def slowest(work: Callable[[T], object], inputs: Iterable[T]) -> float:
    """Seconds of the processor."""
    return max(min(processor_seconds(partial(work, one)) for _ in range(TRIES)) for one in inputs)


def applied(reply: str) -> None:
    with contextlib.suppress(PatchError):
        apply_reply({"a.py": "a\n" * 100_000}, reply)


async def proxy_loop() -> float:
    """Yardsticks that the proxy's loop works in one stretch at most, of a body of 8 MiB of each kind."""
    tokenizer, busy = load_tokenizer(checkpoint_folder(EMBEDDED_SEED)), 0.0
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        async with served(tokenizer, folder, 1 << 30) as one:
            for body in (make() for make in HOSTILE.values()):
                seen = []
                for _ in range(TRIES):
                    await one.forget(0)
                    await one.report()
                    await one.post(0, CHAT, body)
                    seen.append((await one.report())["busy"])
                busy = max(busy, min(seen))
    return busy


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", "hostile_inputs", measure, ratios=dict.fromkeys(FIGURES, "yardstick_ms"), scale=1.0))
