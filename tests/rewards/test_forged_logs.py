"""Logs that a policy forged, read by the log parsers of swebench in their own process: each has a report, whatever a
parser raises, and however long it would take."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.rewards.grade import GraderError
from slime_swe.rewards.swebench import worker
from slime_swe.rewards.swebench.harness import Harness
from tests.rewards.swebench_here import harness_python
from tests.rollout.watch import watched

pytestmark = pytest.mark.asyncio(loop_scope="module")

START, END, EXIT = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
# Ids by which some parsers choose how to read.
IDS = {"parse_log_jekyll": ["x-9141", "x-8761"], "parse_log_immutable_js": ["x-2006", "x-2005"]}
VERSIONS = {"parse_log_next": ["1.27", "1.0"], "parse_log_lighthouse": ["2.0", "9.5", "5.0"]}
STATUSES = ["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "ok", "not ok 1", "FAIL", "PASS", "pass", "skip", "✓", "✕",
            "✔", "✖", "×", "✗", "○", "↓", "✘", "↩", "[ok]:", "[err]:", "[PASSED]", "[FAILED]", "[junit] [FAIL]",
            "[  OK  ]", "--- PASS:", "--- FAIL:", "FAIL:", "ERROR:", "test", "1)", "*", "-", "case",
            "BUILD SUCCESS"]  # fmt: skip
NAMES = ["t.py::test_a", "t.py::test_a[a - b]", "test_a (t.T)", "test_a", "com.example.Test > testMethod", "a.b.c",
         "my tests/test größe ü.py::t", "[1]", "[100%]", "x" * 300, "t.py::test[", "T#test_x = 0.01 s = ."]  # fmt: skip
ENDS = ["", " - why", " ... ok", " ... FAIL", " ... skipped", " ... ERROR", " (3 ms)", " (3.2 s)", " (1)", " ok", " E",
        " F", " :", " : ok", " FAILED", " PASSED", " passed", ", []", " in a.c", " ... "]  # fmt: skip
MOCHA = "./node_modules/.bin/mocha tests/run.js --reporter json"
LINES = [
    START, END, f"{EXIT}: 0", f"{EXIT}: 1", f"{EXIT}: -", ">>>>> Patch Apply Failed",
    ">>>>> Tests Errored", ">>>>> Tests Timed Out", "FAIL:", "ERROR:", " ... ", "ok", "____ a.py:f ____",
    "--version is equivalent to version", "test_a ... Testing against Django installed in x silenced).", "{", "}", "[",
    "]", "<doctest>", "</doctest>", '<TestCase name="a"><SubCase name="b"><Expression success="true"/>', "</SubCase>",
    "</TestCase>", "<doctest><TestCase></doctest>", '<!DOCTYPE x [<!ENTITY a "aaaa">]>', "&a;", "<a>", "</a>",
    MOCHA, '{"failures": [], "passes": [{"fullTitle": "a"}]}',
    '{"failures": 5, "passes": [1]}', "[" * 2_000, '{"a":' * 2_000, "./node_modules/.bin/mocha --reporter json",
    '"fullTitle": "a",', '  "passes": [', '  "failures": [', "../..", " xvfb-run ", "Starting browser Chrome", "TOTAL",
    "Running:a)\n\n\n  b", "running 3 test files", "3 passing", "0 passing", "SUMMARY:", "Executed 1 of 1", "    suite",
    "  - suite :", "    * test : ok", "2KPhantomJS 1.0 (Linux 1.0) a FAILED", "Chrome 1.0 (Linux x) a FAILED",
    "  1) a\n Error", "case a: mismatch", "mvn -Dtest=T a", "Suite (a)", "#### TEST", "Failed to launch", "Killed",
    "yarn test", "FAIL a.js", "Tests:  1", "1 specs, 0 failures",
]  # fmt: skip
ODD = ["\0", "\r", "\r\n", "\x85", "\u2028", "\ufeff", "\x1b[31m", "\x1b[", "[31m", "٣", "\ufffd", "é", "\t", " ", "_",
       "9" * 400, "(", ")", "[", "]", ":", ">", "<", "&", '"', "\\", "/"]  # fmt: skip
LONG = [
    "_ ",
    " ",
    "a",
    "\x1b[3",
    "\n",
    "x\n",
    "PASSED ",
    "(",
    "[1m",
    "1)",
    "<a>",
    "{",
    "FAILED a - ",
    " ... ",
    "  1) a",
]


def _line(rng: random.Random) -> str:
    if rng.random() < 0.4:
        return rng.choice(LINES)
    words = [" " * rng.choice([0, 0, 2, 4, 9]), rng.choice(STATUSES), " ", rng.choice(NAMES), rng.choice(ENDS)]
    return "".join(words if rng.random() < 0.6 else rng.sample(words, len(words)))


def forged(rng: random.Random) -> str:
    """A log such as code under test can print, the markers most times where they belong."""
    lines = [_line(rng) for _ in range(rng.randint(0, 25))]
    if rng.random() < 0.1:
        lines.insert(0, rng.choice(LONG) * rng.randint(1, 300))
    if rng.random() < 0.02:
        lines.append(f"{EXIT}: {'9' * rng.choice([4_000, 5_000])}")
    text = "\n".join(lines)
    for _ in range(rng.choice([0, 0, 1, 3])):
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice(ODD) + text[at + rng.randint(0, 3) :]
    return f"{START}\n{text}\n{END}\n{EXIT}: {rng.choice('01')}\n" if rng.random() < 0.9 else text


@pytest.fixture(scope="module")
def parsers() -> list[str]:
    names = "from swebench.harness.log_parsers import PARSER_REGISTRY; print(*PARSER_REGISTRY)"
    done = subprocess.run([harness_python(), "-c", names], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness() -> AsyncIterator[Harness]:
    async with Harness(harness_python()) as started:
        yield started


def instance(parser: str, rng: random.Random, **changes: Any) -> dict[str, Any]:
    return {
        "instance_id": rng.choice(IDS.get(parser, ["x-1"])), "version": rng.choice(VERSIONS.get(parser, ["1"])),
        "image": "x", "repo": "a/b", "FAIL_TO_PASS": ["t.py::test_a"], "PASS_TO_PASS": ["test_a"],
        "eval_type": rng.choice(["pass_and_fail", "fail_only"]), "log_parser": parser, "eval_script": "true\n",
        **changes,
    }  # fmt: skip


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "count", [1_500, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.extended("forged logs")])]
)
async def test_every_forged_log_has_a_report(harness: Harness, parsers: list[str], count: int) -> None:
    """Whatever it holds; the process that reads it stays the same, and keeps no file open."""
    rng = random.Random(count)
    await harness.report(instance("parse_log_pytest", rng), "")
    assert harness._process is not None
    process = harness._process._process.pid
    before, kinds = open_files(process), Counter[str]()
    for number in range(count):
        log, one = forged(rng), instance(parsers[number % len(parsers)], rng)
        kinds[_kind(await harness.report(one, log))] += 1
    assert harness._process._process.pid == process
    assert min(kinds["solved"], kinds["not solved"]) > count // 50
    assert len(kinds) > 3  # some parsers raised
    assert open_files(process) <= before


def _kind(report: dict[str, Any]) -> str:
    if "unreadable" in report:
        assert not report["resolved"]
        return re.findall(r"^(\S+?)(?::|$)", report["unreadable"], re.MULTILINE)[-1]
    return "solved" if report["resolved"] else "not solved"


@pytest.mark.parametrize("piece", ["a" * 99 + "\n", "é\0"])
async def test_the_longest_log_does_not_keep_the_loop(harness: Harness, piece: str) -> None:
    log = between(piece * ((32 << 20) // len(piece.encode())))
    async with watched() as loop:
        await harness.report(instance("parse_log_redis", random.Random(0)), log)
    loop.assert_free()


def between(*lines: str) -> str:
    return "\n".join([START, *lines, END, f"{EXIT}: 0", ""])


RAISING = {
    "a colon at the end of the line": ("parse_log_django", between("FAIL:"), "IndexError"),
    "a number of many digits": (
        "parse_log_pytest", f"{EXIT}: {'9' * 5_000}\n{between('PASSED t.py::test_a')}", "ValueError",
    ),
    "XML that is none": ("parse_log_doctest", between("<doctest><a></doctest>"), "ParseError"),
    "JSON that is none": (
        "parse_log_prismjs", between(MOCHA, "{x}"), "JSONDecodeError",
    ),
    "JSON of another shape": (
        "parse_log_prismjs", between(MOCHA, "{}"), "KeyError",
    ),
    "JSON that is deep": (
        "parse_log_prismjs",
        between(MOCHA, f'{{"a":{"[" * 99_999}{"]" * 99_999}}}'),
        "RecursionError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISING)
async def test_a_log_that_a_parser_raises_at_solves_nothing(harness: Harness, name: str) -> None:
    parser, log, error = RAISING[name]
    report = await harness.report(instance(parser, random.Random(0)), log)
    assert not report["resolved"]
    assert error in report["unreadable"]


async def test_a_parser_that_raises_at_every_log_is_the_task_s_failure(harness: Harness) -> None:
    one = instance("parse_log_immutable_js", random.Random(0), instance_id="x-1")
    with pytest.raises(GraderError, match="Unknown instance id"):
        await harness.report(one, between("x"))


async def test_a_log_that_can_not_be_opened_is_the_machine_s_failure(harness: Harness) -> None:
    with pytest.raises(GraderError, match="No such file"):
        await harness._ask("report", instance=instance("parse_log_pytest", random.Random(0)), log="/nowhere/log")


SLOW = {
    "a pattern that tries every way": ("parse_log_sympy", lambda: between("_ " * 200_000)),
    "lines of one letter": ("parse_log_pytest_v2", lambda: between("x\n" * (15 << 20))),
    "more memory than there may be": (
        "parse_log_next",
        lambda: between(
            " xvfb-run ", *(" " * n + "s" * 99 for n in range(1, 5_000)), *(f"{' ' * 5_000}✓ {n}" for n in range(3_000))
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.extended("tests/rewards/test_forged_logs.py::test_every_forged_log_has_a_report")
        )
        for name in SLOW
    ],
)
async def test_a_log_that_takes_all_time_or_memory_solves_nothing(harness: Harness, name: str) -> None:
    parser, make = SLOW[name]
    log = make()
    report = await harness.report(instance(parser, random.Random(0)), log)
    assert harness._process is not None
    process = harness._process._process.pid
    limit = re.search(r"Max data size +(\d+)", Path(f"/proc/{process}/limits").read_text())
    assert limit is not None and int(limit[1]) == worker.MEMORY_BYTES
    assert not report["resolved"]
    assert (await harness.report(instance(parser, random.Random(0)), ""))["resolved"] is False
    assert harness._process._process.pid == process


@pytest.mark.parametrize(
    "count", [3_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.extended("forged logs")])]
)
async def test_our_own_parser_reads_every_forged_log(count: int) -> None:
    rng = random.Random(count)
    for _ in range(count):
        assert all("::" in name for name in parse_test_log(forged(rng)))


async def test_a_regular_expression_is_interrupted() -> None:
    """It would take days."""
    with pytest.raises(worker.TooSlow), worker.processor_time(0.05):
        re.findall(r"(_*) (.*)\.py:(.*) (_*)", "_ " * 20_000_000)
