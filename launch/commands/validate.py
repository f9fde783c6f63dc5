"""Prove tasks: the gold patch solves each, no patch does not, and flaky tests are found by repetition.

slime-swe validate synthetic:heldout
slime-swe validate path/to/tasks.jsonl --sandbox docker --runs 5 --write sound.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from slime_swe.data_sources.registry import load_tasks, prepare_file, write_tasks
from slime_swe.errors import UserError
from slime_swe.launch.output import print_json, visible
from slime_swe.launch.progress import Bar
from slime_swe.rewards.grade import GradingSettings
from slime_swe.rewards.validation import (
    Finding,
    Record,
    Status,
    ValidationSettings,
    summary,
    usable,
    validate_all,
)

SHOWN_LINES = 8  # of the log of a task that is not sound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", metavar="SET", help="a task set, e.g. synthetic:heldout or path/to/tasks.jsonl")
    parser.add_argument("--sandbox", default="local", metavar="NAME", help="where tests run (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, metavar="N",
                        help="runs with the gold patch, and as many without (default: %(default)s)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="tasks at once (default: one for each processor)")  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N tasks")
    parser.add_argument("--record", type=Path, metavar="FILE",
                        help="keeps what was found (default: runs/validation/SET.jsonl)")  # fmt: skip
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the usable tasks, without flaky tests (.jsonl)"
    )
    parser.add_argument("--harness-python", default="", metavar="PATH", help="an interpreter that has swebench")


def run(options: argparse.Namespace) -> int:
    for name in ("runs", "jobs", "limit"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UserError(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.write:
        prepare_file(options.write, "--write")
    tasks = load_tasks(options.spec)[: options.limit]
    grading = GradingSettings(harness_python=options.harness_python)
    settings = ValidationSettings(options.sandbox, options.runs, options.jobs, grading)
    name = re.sub(r"[^\w.-]+", "-", options.spec.removesuffix(".jsonl")).strip("-")
    record = Record(options.record or Path("runs", "validation", f"{name}.jsonl"), settings)
    started = time.monotonic()
    with Bar("validating", len(tasks)) as bar:

        def on_finding(finding: Finding) -> None:
            bar.advance(_line(finding), keep=finding.status is not Status.SOUND)

        findings = asyncio.run(validate_all(tasks, settings, record, on_finding))
    if options.write:
        write_tasks(options.write, usable(tasks, findings))
    seconds = round(time.monotonic() - started, 3)
    wrong = [finding for finding in findings if finding.status is not Status.SOUND]
    if options.json:
        found = {"seconds": seconds, "findings": msgspec.to_builtins(wrong), "record": str(record.path)}
        print_json({**summary(findings), **found})
    else:
        _show(summary(findings), wrong)
        print(f"{len(findings)} tasks in {seconds:.1f} s; kept in {record.path}")
    return 1 if wrong else 0


def _line(finding: Finding) -> str:
    what = f"{finding.task}: {finding.status.value} ({finding.seconds:.1f} s)"
    return f"{what}: {finding.detail}" if finding.detail else what


def _show(found: Mapping[str, Any], wrong: Sequence[Finding]) -> None:
    table = Table("tasks", "", box=None)
    for status, count in found["counts"].items():
        if count:
            table.add_row(str(count), status)
    if found["unwitnessed"]:
        table.add_row(str(found["unwitnessed"]), "of these without a witness: no patch is rewarded")
    if found["quarantined_tests"]:
        table.add_row(str(found["quarantined_tests"]), "tests quarantined as flaky")
    Console().print(table)
    for finding in wrong:
        print(visible(_line(finding)))
        print(visible("".join(f"    {line}\n" for line in finding.log.splitlines()[-SHOWN_LINES:])), end="")
