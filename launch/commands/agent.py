"""Check real agents against the recording proxy.

slime-swe agent check mini_swe_agent
slime-swe agent check qwen_code --sandbox docker --json
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console
from rich.table import Table

from slime_swe.errors import UserError
from slime_swe.files import read_given
from slime_swe.launch.agent_check import Report, check_agent
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_path
from slime_swe.launch.output import print_json, visible
from slime_swe.rollout.agents.base import AGENTS, IN_PROCESS

Script = Annotated[list[str], msgspec.Meta(min_length=1)]  # what the policy says, turn by turn
SEED = checkpoint_path(EMBEDDED_SEED)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="run one on a bundled task with a scripted policy, and report")
    check.add_argument(
        "name", metavar="NAME", help=f"{', '.join(sorted({*AGENTS} - IN_PROCESS))}, or a dotted path to one of your own"
    )
    check.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help="what the policy says: a JSON list of turns (default: the agent's own)",
    )
    check.add_argument("--sandbox", default="overlay", metavar="NAME", help="where it runs (default: %(default)s)")
    check.add_argument("--checkpoint", type=Path, default=SEED, metavar="FOLDER",
                       help="whose tokenizer and chat template to use (default: the seed policy's)")  # fmt: skip
    check.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    report = asyncio.run(_check(options))
    if options.json:
        print_json(report)
    else:
        _show(report)
    return 1 if report["problems"] else 0


async def _check(options: argparse.Namespace) -> Report:
    if not options.checkpoint.is_dir():
        raise UserError(f"--checkpoint: there is no folder {options.checkpoint}")
    script = None
    if options.script:
        try:
            script = msgspec.json.decode(
                read_given(options.script, "the script"), type=Annotated[list[str], msgspec.Meta(min_length=1)]
            )
        except msgspec.DecodeError as error:
            raise UserError(f"{options.script} must hold a JSON list of turns, each a text: {error}") from error
    return await check_agent(options.name, str(options.checkpoint), options.sandbox, script)


def _show(report: Report) -> None:
    console = Console()
    table = Table("", f"{report['agent']} {report['version']}", title="agent check", title_justify="left")
    for name, value in report.items():
        if name not in ("agent", "version", "malformed", "problems"):
            table.add_row(name.replace("_", " "), str(len(value) if isinstance(value, list) else value))
    if report["malformed"]:
        table.add_row("after a malformed call", ", ".join(_in_short(report["malformed"])))
    console.print(table)
    for kind in ("edited", "unmatched"):
        for one in report[kind]:
            console.print(visible(f"{kind}:\n{one['diff']}"), markup=False, highlight=False)
    for problem in report["problems"]:
        console.print(visible(f"problem: {problem}"), markup=False, highlight=False)
    if not report["problems"]:
        console.print(f"{report['agent']} is fit for training")


def _in_short(play: Report) -> Iterator[str]:
    yield f"reward {play['reward']}"
    yield play["stop_reason"]
    yield f"{play['turns']} turns"
    yield f"{play['tokens_retained']:.0%} of tokens retained"
    yield f"{play['false_forks']} false forks"
