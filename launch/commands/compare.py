"""Compare two evaluations of the same tasks: is the difference real, and for which tasks.

slime-swe compare first@-1 first                       a run before its first rollout and now
slime-swe compare base trained,trained-2 --json        folders of `slime-swe eval --output`; two repetitions of B
slime-swe compare base.json trained.json               reports of SWE-bench's harness
slime-swe compare base trained --at-least verified=5 --at-least gitbug=0

A and B: a run's name or folder, RUN@K (its evaluation after rollout K; -1: before the first), a folder that
`eval --output` wrote, or a harness report. docs/compare.md says what each interval answers. The exit code is 1 where an
--at-least is not met.
"""

from __future__ import annotations

import argparse

from slime_swe.launch.extras import require
from slime_swe.launch.output import print_json, table_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="before; repetitions with commas between them")
    parser.add_argument("b", metavar="B", help="after")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument(
        "--at-least",
        action="append",
        default=[],
        metavar="[SET=]POINTS",
        help="ask for so many points more, and the verdict better; 0 for any lift",
    )
    parser.add_argument(
        "--other-limits", action="store_true", help="compare evaluations whose limits of turns or context differ"
    )


def run(options: argparse.Namespace) -> int:
    require("numpy", "scipy", extra="compare")
    from slime_swe.launch.compare import compare, requirements, show  # numpy and scipy are of the `compare` extra
    from slime_swe.launch.compare.sources import matched, read_side, require_same_limits

    a, b = (read_side(text, options.dir) for text in (options.a, options.b))
    pairs = matched(a, b)
    if not options.other_limits:
        for _, left, right in pairs:
            require_same_limits(left, right)
    sets = {name: compare(name, left, right) for name, left, right in pairs}
    required = requirements(options.at_least, sets)
    if options.json:
        first = next(iter(sets))
        print_json({"set": first, **sets[first], "sets": sets, "at_least": required})
    else:
        show(sets, required, table_console())
    return int(any(not requirement["met"] for requirement in required))
