"""What the benchmarks of plain figures share: their options, and the baseline that they save or are held against."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Figures = Mapping[str, float]
Slower = Callable[[Figures, Figures], list[str]]  # (figures, baseline) -> what is worse, a sentence each


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="fail where a ratio is much worse than its baseline")
    parser.add_argument("--save", action="store_true", help="make these figures the baseline")


def conclude(
    options: argparse.Namespace,
    figures: Figures,
    text: str,
    path: Path,
    slower: Slower,
) -> int:
    """Print, save and check as the options ask; the exit code, 1 where `slower` finds anything."""
    print(json.dumps(figures) if options.json else text)
    if options.save:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")
    worse = slower(figures, json.loads(path.read_text())) if options.check else []
    for line in worse:
        print(line, file=sys.stderr)
    return 1 if worse else 0
