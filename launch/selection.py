"""Which episodes of a run a command is about: the options that say so, and what they select."""

from __future__ import annotations

import argparse
from pathlib import Path

from slime_swe.attempts import of_last_attempt
from slime_swe.errors import UserError, unknown
from slime_swe.rollout.journals import read_summaries
from slime_swe.rollout.json_lines import Place
from slime_swe.rollout.records import EPISODES, EVALUATIONS, Summary

Selected = list[tuple[Place, Summary]]


def add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name, its folder, or one that `eval --output` wrote")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument("--rollout", type=int, metavar="K", help="only of rollout K; -1 is the evaluation before it")
    parser.add_argument("--task", metavar="ID", help="only of this task")
    parser.add_argument("--evaluation", metavar="NAME", help="of this evaluation set instead of training")
    parser.add_argument("--solved", action=argparse.BooleanOptionalAction, help="only what solved the task, or did not")
    parser.add_argument(
        "--broken", action=argparse.BooleanOptionalAction, help="only what infrastructure broke, or did not"
    )
    parser.add_argument("--min-reward", type=float, metavar="R", help="only with this reward or more")
    parser.add_argument("--max-reward", type=float, metavar="R", help="only with this reward or less")


def select(folder: Path, options: argparse.Namespace) -> tuple[Path, Selected]:
    """Return the journal and those of its records that the options select. Of a rollout, or of an evaluation, that
    several attempts have played, the last one's. Raises `UserError` where there is no such set."""
    path, summaries = recorded(folder, options.evaluation)
    return path, [(place, summary) for place, summary in summaries if _matches(summary, options)]


def recorded(folder: Path, evaluation: str | None) -> tuple[Path, Selected]:
    """Return the journal of a run's training, of an evaluation's folder, or with `evaluation` of that set, and its
    records. Raises `UserError` where there is no such set."""
    path = _journal(folder, evaluation)
    summaries = of_last_attempt(
        read_summaries(path), lambda one: (one[1].dataset, one[1].rollout), lambda one: one[1].attempt
    )
    names = {summary.dataset or "" for _, summary in summaries}
    if evaluation is not None and evaluation not in names:
        raise UserError(unknown("--evaluation", evaluation, names))
    return path, [found for found in summaries if evaluation in (None, found[1].dataset)]


def _journal(folder: Path, evaluation: str | None) -> Path:
    """Return the file to read. An evaluation of its own has no training episodes."""
    if evaluation is None and ((folder / EPISODES).exists() or not (folder / EVALUATIONS).exists()):
        path = folder / EPISODES
    else:
        path = folder / EVALUATIONS
    if not path.exists():
        raise UserError(f"{path} is not there yet: the run has finished no such step")
    return path


def _matches(summary: Summary, options: argparse.Namespace) -> bool:
    pairs = (
        (options.rollout, summary.rollout),
        (getattr(options, "index", None), summary.index),
        (options.task, summary.task),
        (options.evaluation, summary.dataset),
        (options.solved, summary.outcome == "solved"),
        (options.broken, summary.outcome == "broken"),
    )
    return all(wanted is None or wanted == found for wanted, found in pairs) and _in_range(summary.reward, options)


def _in_range(reward: float | None, options: argparse.Namespace) -> bool:
    """An episode without a reward is in no range."""
    low, high = options.min_reward, options.max_reward
    if low is None and high is None:
        return True
    return reward is not None and (low is None or reward >= low) and (high is None or reward <= high)
