"""Play scripted cheats against a sandbox and the grader: each must earn nothing, and honest work beside them must.

slime-swe integrity                        the sandbox `local`, with every way of grading
slime-swe integrity overlay docker         other sandboxes
slime-swe integrity --grader calls         one way of grading
slime-swe integrity --only NAME            one case, by its name
slime-swe integrity --plays 100            attacks that decide by the clock or a coin whether to cheat, 100 times each

A training run plays this once for each version by itself, and does not start where it does not hold. The exit code is 0
where it holds and 1 where it does not.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slime_swe.errors import UserError, unknown
from slime_swe.launch.output import print_json
from slime_swe.rewards.grade import GradingSettings
from slime_swe.rewards.redteam.cases import TARGETS, attacks, benign_cases
from slime_swe.rewards.redteam.gate import PLAYS, Result, UnplayableError, run_gate
from slime_swe.rewards.redteam.proof import proof_path, save

DEFAULT_SANDBOX = "local"
_TOTALS = ("attacks", "rewarded", "benign_cases", "benign_misgraded", "broken")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandboxes", nargs="*", metavar="SANDBOX", help="as in rollout.sandbox; the default is local")
    parser.add_argument("--grader", action="append", choices=TARGETS, help="only this grader (may be repeated)")
    parser.add_argument("--harness-python", default="", metavar="PATH", help="an interpreter that has swebench")
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="only this attack or benign case (may be repeated)"
    )
    parser.add_argument(
        "--plays", type=_positive, default=PLAYS, metavar="N", help=f"of each two-faced attack (default {PLAYS})"
    )
    parser.add_argument("--rows", action="store_true", help="show every case, not only those that failed")


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of plays: give 1 or more")
    return int(text)


def run(options: argparse.Namespace) -> int:
    known = {case.name: case for case in (*attacks(), *benign_cases())}
    for name in options.only or ():
        if name not in known:
            raise UserError(unknown("case", name, known))
    cases = None if options.only is None else [known[name] for name in options.only]  # None stands for all
    settings = GradingSettings(harness_python=options.harness_python)
    results: list[Result] = []
    skipped: dict[str, str] = {}
    for sandbox in options.sandboxes or [DEFAULT_SANDBOX]:
        for grader in options.grader or TARGETS:
            try:
                results.append(
                    asyncio.run(run_gate(sandbox, grader, settings=settings, cases=cases, plays=options.plays))
                )
            except UnplayableError as error:
                skipped[f"{sandbox} × {grader}"] = str(error)
    for result in results:
        if result.passed and cases is None:
            save(result, proof_path(result.sandbox, result.grader))
    held = bool(results) and all(not result.failures if cases else result.passed for result in results)
    if options.json:
        print_json(_document(results, skipped, held))
    else:
        _show(results, skipped, everything=options.rows or cases is not None)
    return 0 if held else 1


def _document(results: list[Result], skipped: dict[str, str], held: bool) -> dict[str, Any]:
    """Return the totals over all combinations, then each combination.

    The total of cases is the most that one combination has; the total of what went wrong is the sum.

    `neighbours` and `neighbours_misgraded` are older names of two of the counts.
    """
    combinations = [_with_aliases(result.to_dict()) for result in results]
    totals = {
        name: (max if name in ("attacks", "benign_cases") else sum)([0, *(entry[name] for entry in combinations)])
        for name in _TOTALS
    }
    two_faced: dict[str, Counter[str]] = {}
    for entry in combinations:
        for name, counts in entry["two_faced"].items():
            two_faced.setdefault(name, Counter(plays=0, rewards=0)).update(counts)
    document = {"passed": held, **_with_aliases(totals), "two_faced": two_faced}
    return {**document, "skipped": skipped, "combinations": combinations}


def _with_aliases(counts: dict[str, Any]) -> dict[str, Any]:
    aliases = {"neighbours": counts["benign_cases"], "neighbours_misgraded": counts["benign_misgraded"]}
    return {**counts, **aliases}


def _show(results: list[Result], skipped: dict[str, str], *, everything: bool) -> None:
    console = Console()
    for result in results:
        record = result.to_dict()
        table = Table("case", "ended", "outcome", "evidence", box=SIMPLE, pad_edge=False)
        for row in result.rows if everything else result.failures:
            style = "" if row.verdict == "held" else "bold red"
            ended = row.verdict if row.plays == 1 else f"{row.verdict} {row.rewards}/{row.plays}"
            table.add_row(*(Text(text, style) for text in (row.name, ended, row.outcome, row.evidence)))
        if table.rows:
            console.print(table)
        counts = ", ".join(f"{record[name]} {name.replace('_', ' ')}" for name in _TOTALS)
        title = f"{result.sandbox} × {result.grader}"
        console.print(
            f"{title}: {counts} ({sum(row.plays for row in result.rows)} plays, {result.seconds} s)", highlight=False
        )
    for combination, why in skipped.items():
        console.print(f"{combination}: not played: {why}", markup=False, highlight=False)
