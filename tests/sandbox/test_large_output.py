"""A command that prints 600 MB in one line: the host's memory is bounded, and its loop goes on."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from slime_swe.rewards.room import image_limits
from slime_swe.sandbox.base import Limits
from slime_swe.sandbox.pool import SandboxPool, render
from tests.rollout.watch import held_share, watched
from tests.sandbox.conftest import LIMITS

PRINTED = 600_000_000
KEPT = image_limits(60).output_bytes  # the most that any command keeps
PRINTS = {
    "letters": "head -c {} /dev/zero | tr '\\0' x",
    "random bytes": "head -c {} /dev/urandom | tr '\\n' x",
    "emoji": "yes 🙂 | tr -d '\\n' | head -c {}",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("printing", "kept"),
    [
        ("letters", KEPT),
        *(
            pytest.param(printing, kept, marks=pytest.mark.extended("600 MB of output"))
            for printing in PRINTS
            for kept in (Limits().output_bytes, KEPT)
            if (printing, kept) != ("letters", KEPT)
        ),
    ],
)
async def test_600_mb_in_one_line(pool: SandboxPool, printing: str, kept: int) -> None:
    limits = Limits(cpu_seconds=300, memory_bytes=LIMITS.memory_bytes, output_bytes=kept)
    async with pool.open({}, limits) as sandbox, watched() as loop:
        tracemalloc.start()
        try:
            result = await sandbox.exec(PRINTS[printing].format(PRINTED), timeout=300)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (result.exit_code, result.truncated, "\n" in result.output.strip()) == (0, True, True)
    assert f"[truncated: {PRINTED - kept} bytes missing here]" in result.output
    assert most < 8 * kept + (16 << 20)  # bytes
    loop.assert_free()


TEXTS = {
    "letters": b"x" * KEPT,
    "no text": b"\xff" * KEPT,
    "a character of four bytes": "🙂".encode() + b"x" * (KEPT - 4),
    "random bytes": random.Random(0).randbytes(KEPT),
    "halves of characters": "é🙂日".encode() * (KEPT // 9),
}


@pytest.mark.parametrize("name", TEXTS)
def test_decoding_keeps_no_other_thread_waiting(name: str) -> None:
    data = TEXTS[name]
    assert held_share(lambda: render(data[: len(data) // 2], data[len(data) // 2 :], 1)) < 1 / 8


@pytest.mark.parametrize("text", ["é" * (1 << 20), "日" * (1 << 20), "🙂" * (1 << 19), "x" * ((1 << 20) - 1) + "é"])
def test_pieces_are_decoded_as_the_whole(text: str) -> None:
    data = b"a" + text.encode()
    assert render(data, b"", 0) == render(data[:-2], data[-2:], 0) == f"a{text}"
    broken = b"\xc3" + data + b"\xc3"
    assert render(broken, b"", 0) == broken.decode("utf-8", "replace")
    assert render(broken, data[3:], 7) == (
        broken.decode("utf-8", "ignore") + "\n[truncated: 7 bytes missing here]\n" + data[3:].decode("utf-8", "ignore")
    )
