"""What other settings would have made of a run's episodes: from its record, without a model.

slime-swe replay RUN                                   under the run's own settings, compared with what it recorded
slime-swe replay RUN algorithm.std_normalization=false algorithm.reduction=token
slime-swe replay RUN rollout.samples_per_task=4        averaged over draws of 4 episodes of each group
slime-swe replay RUN 'rollout.mask_truncated=[max_turns]' --episodes changed.jsonl

It computes groups, masks, advantages and weights by the functions that trained. It can't say what the policy would have
learned: later rollouts would have been others (docs/replay.md). The exit code is 1 where the run's own settings do not
give what the run recorded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.journal import encoded
from slime_swe.launch.output import print_json, table_console
from slime_swe.launch.replay.asked import asked
from slime_swe.launch.replay.figures import Row, show
from slime_swe.launch.replay.replayed import Recorded
from slime_swe.launch.runs import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="its name or folder")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the run's recipe")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument(
        "--draws", type=int, default=40, metavar="N", help="of rollout.samples_per_task episodes (default: %(default)s)"
    )
    parser.add_argument("--episodes", type=Path, metavar="PATH", help="a new file: a JSON line for each episode")


def run(options: argparse.Namespace) -> int:
    from slime_swe.launch.replay import replay

    folder = find_run(options.run, options.dir)
    question = asked(folder, options.overrides)
    if options.draws < 1:
        raise UserError(f"--draws is {options.draws}: give 1 or more")
    with ExitStack() as stack:
        lines = None
        if options.episodes:
            if question.is_subsample:
                raise UserError("--episodes is of one replay, and rollout.samples_per_task is averaged over many")
            stack.enter_context(writing(options.episodes))
            lines = stack.enter_context(_new(options.episodes))
        document = replay(folder, question, options.draws, _writer(lines) if lines else None)
    if options.json:
        print_json(document)
    else:
        show(document, question, table_console())
    return int(not document["check"]["holds"])


def _new(path: Path) -> Any:
    try:
        return path.open("xb")
    except FileExistsError:
        raise UserError(f"{path} is there already: give --episodes a new path, or remove it") from None


def _writer(lines: Any) -> Any:
    def write(recorded: Recorded, before: Sequence[Row], after: Sequence[Row]) -> None:
        for places, old, new in zip(recorded.episodes, before, after, strict=True):
            first = recorded.records[places[0]]
            about: dict[str, Any] = {
                "rollout": recorded.rollout,
                "index": first.index,
                "group": first.group_index,
                "task": first.task,
            }
            about |= {"solved": old.solved, "sampled": old.sampled, "seconds": old.seconds}
            lines.write(encoded({**about, "before": _part(old), "after": _part(new)}))

    return write


def _part(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("state", "advantage", "tokens", "loss", "gradient")}
