"""Check real agents against the recording proxy.

slime-swe agent check mini_swe_agent
slime-swe agent check qwen_code --sandbox docker --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slime_swe.errors import UserError
from slime_swe.launch.agent_check import Report, check_agent
from slime_swe.launch.output import print_json
from slime_swe.rollout.agents.base import AGENTS

SEED = Path(str(files("slime_swe.embedded"))) / "seed" / "checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="run one on a bundled task with a scripted policy, and report")
    check.add_argument(
        "name", metavar="NAME", help=f"{', '.join(sorted({*AGENTS} - {'native'}))}, or a dotted path to one of your own"
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
        print_json(asdict(report))
    else:
        _show(report)
    return 1 if report.problems else 0


async def _check(options: argparse.Namespace) -> Report:
    if not options.checkpoint.is_dir():
        raise UserError(f"--checkpoint: there is no folder {options.checkpoint}")
    script = _read_script(options.script) if options.script else None
    return await check_agent(options.name, str(options.checkpoint), options.sandbox, script)


def _read_script(file: Path) -> list[str]:
    try:
        turns = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise UserError(f"{file} must hold a list of turns, each a text")
    return turns


def _show(report: Report) -> None:
    console = Console()
    table = Table("", f"{report.agent} {report.version}", title="agent check", title_justify="left")
    calls = ", ".join(f"{name} {count}" for name, count in report.tool_calls.items()) or "none"
    for label, value in (
        ("reward", f"{report.reward:+.0f} ({report.stop_reason})"),
        ("model calls", str(report.turns)),
        ("sampled tokens", f"{report.tokens_sampled}, {report.tokens_retained:.1%} retained"),
        ("training sequences", f"{report.forks + 1} ({report.forks} forks)"),
        ("tool calls", f"{report.tool_calls_parsed} parsed, {report.tool_calls_executed} executed: {calls}"),
        ("first prompt", f"{report.first_prompt_tokens} tokens"),
        ("prefix cache", f"at most {report.prefix_cache_ceiling:.1%} of prompt tokens"),
        ("edited, unmatched", f"{len(report.edited)}, {len(report.unmatched)} messages"),
        ("sampling overridden", ", ".join(report.overridden) or "nothing"),
        ("seconds", f"{report.seconds:.1f}"),
    ):
        table.add_row(label, value)
    console.print(table)
    for kind, differences in (("edited", report.edited), ("unmatched", report.unmatched)):
        for one in differences:
            console.print(f"{kind}:\n{one['diff']}", markup=False, highlight=False)
    for problem in report.problems:
        console.print(f"problem: {problem}", markup=False, highlight=False)
    if not report.problems:
        console.print(f"{report.agent} is fit for training")
