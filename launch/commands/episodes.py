"""Show a trajectory of a run or of an evaluation, or list those that match.

slime-swe episodes RUN                                 the last one
slime-swe episodes RUN --solved --rollout 39
slime-swe episodes RUN --evaluation heldout --list --sort reward
slime-swe episodes FOLDER --list                       what `slime-swe eval --output FOLDER` wrote

RUN is a run's name or folder. An evaluation before the first rollout is numbered -1, any other like the rollout
before it.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from slime_swe.errors import UserError, unknown
from slime_swe.launch.args import checkpoint_folder
from slime_swe.launch.config import read_recipe
from slime_swe.launch.extras import require
from slime_swe.launch.output import print_json, print_rows
from slime_swe.launch.runs import RECIPE_FILE, find_run
from slime_swe.rollout.records import EPISODES, EVALUATIONS, Record, Score, read_records

COLUMNS = ("rollout", "index", "task", "outcome", "reward", "turns", "sampled", "stop_reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name, its folder, or one that `eval --output` wrote")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument("--rollout", type=int, metavar="K", help="only of rollout K; -1 is the evaluation before it")
    parser.add_argument("--index", type=int, metavar="I", help="only the sample of this index")
    parser.add_argument("--task", metavar="ID", help="only of this task")
    parser.add_argument("--evaluation", metavar="NAME", help="of this evaluation set instead of training")
    parser.add_argument("--solved", action=argparse.BooleanOptionalAction, help="only what solved the task, or did not")
    parser.add_argument("--list", action="store_true", help="one line for each that matches")
    parser.add_argument("--sort", choices=COLUMNS, metavar="COLUMN", help=f"order the list: {', '.join(COLUMNS)}")


def run(options: argparse.Namespace) -> int:
    folder = find_run(options.run, options.dir)
    path = _journal(folder, options.evaluation)
    matching = (record for record in read_records(path) if matches(record, options))
    if options.list:
        return _list(matching, options.sort, as_json=options.json)
    last = deque(matching, maxlen=1)
    if not last:
        raise UserError(f"no episode in {path} matches: `slime-swe episodes {options.run} --list` shows what there is")
    if options.json:
        print_json(msgspec.to_builtins(last[0]))
    else:
        model = read_recipe(folder / RECIPE_FILE).model
        print(readable(last[0], checkpoint_folder(model.checkpoint, model.folder) / "tokenizer.json"))
    return 0


def _journal(folder: Path, evaluation: str | None) -> Path:
    """The file to read. An evaluation of its own has no training episodes."""
    if evaluation is None and ((folder / EPISODES).exists() or not (folder / EVALUATIONS).exists()):
        path = folder / EPISODES
    else:
        path = folder / EVALUATIONS
    if not path.exists():
        raise UserError(f"{path} is not there yet: the run has finished no such step")
    if evaluation is not None:
        names = {record.dataset or "" for record in read_records(path)}
        if evaluation not in names:
            raise UserError(unknown("--evaluation", evaluation, names))
    return path


def matches(record: Record, options: argparse.Namespace) -> bool:
    pairs = (
        (options.rollout, record.rollout_id),
        (options.index, record.index),
        (options.task, record.task),
        (options.evaluation, record.dataset),
        (options.solved, record.solved),
    )
    return all(wanted is None or wanted == found for wanted, found in pairs)


def _list(records: Iterable[Record], sort: str | None, *, as_json: bool) -> int:
    rows = [row_of(record) for record in records]
    if sort:
        rows.sort(key=lambda row: (row[sort] is None, row[sort]))
    if as_json:
        print_json(rows)
    else:
        print_rows(COLUMNS, [["–" if row[name] is None else str(row[name]) for name in COLUMNS] for row in rows])
    return 0


def row_of(record: Record) -> dict[str, Any]:
    """The columns of one sample; `sampled` counts the policy's tokens."""
    episode = record.episode
    return {
        "rollout": record.rollout_id,
        "index": record.index,
        "task": record.task,
        "outcome": outcome_of(record),
        "reward": record.reward,
        "turns": episode.turns if episode else None,
        "sampled": sum(record.loss_mask or ()),
        "stop_reason": episode.stop_reason if episode else None,
    }


def outcome_of(record: Record) -> str:
    return "broken" if record.broken else "solved" if record.solved else "not solved"


def readable(record: Record, tokenizer_file: Path) -> str:
    """The whole trajectory. What the policy sampled stands under `policy`, everything else under `context`."""
    require("tokenizers")
    from tokenizers import Tokenizer  # of the `embedded` extra; only this needs it

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    parts = ["  ".join(f"{name} {value}" for name, value in row_of(record).items() if value is not None)]
    for sampled, tokens in runs(record):
        text = tokenizer.decode(tokens, skip_special_tokens=False).strip("\n")
        parts.append(f"──── {'policy' if sampled else 'context'} · {len(tokens)} tokens\n{text}")
    patch = record.episode.patch if record.episode else ""
    parts.append(f"──── patch\n{(patch or '(empty)').rstrip()}")
    if record.score:
        parts.append(f"──── score {record.score.value}\n" + "\n".join(_evidence(record.score)))
    if record.infrastructure:
        parts.append(f"──── infrastructure failure\n{record.infrastructure.where}: {record.infrastructure.detail}")
    return "\n".join(parts)


def runs(record: Record) -> Iterator[tuple[bool, Sequence[int]]]:
    """Runs of tokens of one origin: whether the policy sampled them, and the tokens."""
    mask = [0] * (len(record.tokens) - record.response_length) + list(record.loss_mask or [])
    for sampled, pairs in groupby(zip(mask, record.tokens, strict=True), key=lambda pair: bool(pair[0])):
        yield sampled, [token for _, token in pairs]


def _evidence(score: Score) -> Iterator[str]:
    for name, value in {**score.components, **score.evidence}.items():
        text = str(value).rstrip()
        yield f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"
