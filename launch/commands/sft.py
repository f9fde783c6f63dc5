"""Write solved episodes of runs or evaluations for supervised training, chosen by rules.

slime-swe sft first second --out solved.jsonl                 then: slime-swe train ... warm_start.data=solved.jsonl
slime-swe sft kept --out solved.jsonl --per-task 2 --max-turns 40 --max-tokens 32768
slime-swe sft first --out solved.jsonl --against swebench:verified

RUN is a run's name or folder, or one that `slime-swe eval --output` wrote. Without --evaluation, the episodes are those
of training. Of those that solved their task, none is taken of a task that an evaluation shows, by the comparisons of
docs/corpora.md, and none that is too long. Of the others, those with the fewest errors, turns and tokens first, so many
of each task are taken, and none that says nearly what another says. Turns that ended in an error stay as context and
are not trained.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slime_swe.data_sources.contamination import find_overlaps
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.launch.config import read_recipe
from slime_swe.launch.export import ExportedEpisode, read_episodes, require_turns
from slime_swe.launch.extras import require
from slime_swe.launch.model import checkpoint_path
from slime_swe.launch.output import print_json
from slime_swe.launch.runs import RECIPE_FILE, find_run
from slime_swe.launch.selection import select
from slime_swe.launch.sft import ERROR, Rules, candidates, choose, sft_samples
from slime_swe.recipes.base import Recipe
from slime_swe.redaction import Secrets, secrets_of
from slime_swe.rollout.chat.tokenizer import vocabulary_of
from slime_swe.rollout.json_lines import encoded
from slime_swe.rollout.records import EPISODES

_WORDS = {
    "not_solved": "not solved, or broken by infrastructure",
    "contaminated": "of a task that an evaluation shows",
    "too_many_turns": "of too many turns",
    "too_long": "of too many tokens",
    "nothing_to_train": "without a turn to train",
    "enough_of_the_task": "beyond --per-task",
    "duplicate": "nearly the same as another",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's name or folder, or of an evaluation")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="a new file of JSON lines")
    parser.add_argument("--evaluation", metavar="NAME", help="of this evaluation set instead of training")
    parser.add_argument(
        "--per-task", type=int, default=4, metavar="N", help="of a task, at most (default: %(default)s)"
    )
    parser.add_argument("--max-turns", type=int, default=0, metavar="N", help="none of more turns (0: any)")
    parser.add_argument("--max-tokens", type=int, default=0, metavar="N", help="none of more tokens (0: any)")
    similar = "two are duplicates that have so much of what they say in common (default: %(default)s)"
    parser.add_argument("--similar", type=float, default=0.9, metavar="SHARE", help=similar)
    against = "evaluation sets, instead of those of each run's recipe"
    parser.add_argument("--against", action="append", metavar="SET", help=against)
    error = "how a tool's result that is an error begins, beside those that are marked as failed"
    parser.add_argument("--error", default=ERROR, metavar="PATTERN", help=error)
    parser.add_argument("--train-errors", action="store_true", help="train turns that ended in an error too")


def run(options: argparse.Namespace) -> int:
    require("datasketch", "tokenizers", extra="sft")
    rules = _rules(options)
    if options.out.exists() or options.out.is_symlink():
        raise UserError(f"--out {options.out} is there already: give a new path, or remove it")
    sources = [_Source.of(name, options, secrets_of(os.environ)) for name in options.runs]
    left_out = Counter[str]()
    for source in sources:
        left_out["not_solved"] += source.not_solved
    contaminated = set().union(*(source.contaminated(options.against) for source in sources))
    found = candidates((episode for source in sources for episode in source.read()), rules, contaminated, left_out)
    taken = choose(found, rules, left_out)
    if not taken:
        raise UserError(f"no episode is left to train: {_listed(left_out) or 'there is none'}")
    counts = _write(options.out, sources, taken, rules)
    if options.json:
        print_json({"path": str(options.out), **asdict(counts), "left_out": dict(left_out)})
    else:
        print(f"{options.out}: {counts.said()}\nleft out: {_listed(left_out) or 'none'}")
    return 0


def _rules(options: argparse.Namespace) -> Rules:
    for name, least in (("per_task", 1), ("max_turns", 0), ("max_tokens", 0)):
        if getattr(options, name) < least:
            raise UserError(f"--{name.replace('_', '-')} must be at least {least}")
    if not 0 < options.similar <= 1:
        raise UserError("--similar must be more than 0 and at most 1")
    try:
        errors = None if options.train_errors else re.compile(options.error)
    except re.error as error:
        raise UserError(f"--error {options.error!r} is no regular expression: {error}") from error
    return Rules(options.per_task, options.max_turns, options.max_tokens, options.similar, errors)


@dataclass(frozen=True)
class _Source:
    """One run, or one of its evaluations. `selected`: its solved episodes."""

    folder: Path
    recipe: Recipe
    journal: Path
    selected: Any
    not_solved: int
    secrets: Secrets

    @classmethod
    def of(cls, name: str, options: argparse.Namespace, secrets: Secrets) -> _Source:
        folder = find_run(name, options.dir)
        journal, everything = select(folder, _selection(options.evaluation))
        selected = [one for one in everything if one[1].outcome == "solved"]
        others = [summary for _, summary in everything if summary.outcome != "solved"]
        episodes = {(summary.dataset, summary.rollout, summary.trajectory) for summary in others}
        return cls(folder, read_recipe(folder / RECIPE_FILE), journal, selected, len(episodes), secrets)

    def read(self) -> Iterator[ExportedEpisode]:
        for episode in read_episodes(self.folder, self.journal, self.selected, self.secrets):
            require_turns(episode, self.journal)
            yield episode

    def contaminated(self, against: list[str] | None) -> set[str]:
        """Return the ids of its tasks that an evaluation shows.

        A task that no set of its recipe has is compared by id alone.
        """
        data = self.recipe.data
        evaluation = [task for spec in against or data.evaluation_sets.values() for task in load_tasks(spec)]
        played = {summary.task for _, summary in self.selected}
        sets = data.training_sets if self.journal.name == EPISODES else data.evaluation_sets.values()
        known = {task.id: task for spec in sets for task in load_tasks(spec)} if evaluation else {}
        trained: list[Task] = [known[name] for name in played if name in known]
        shown = {task.id.lower() for task in evaluation}
        same = {name for name in played if name and name.lower() in shown}
        return same | {overlap.trained for overlap in find_overlaps(trained, evaluation)}

    @property
    def vocabulary(self) -> str:
        """The vocabulary of the policy that sampled; empty where its tokenizer is not on this machine."""
        return vocabulary_of(checkpoint_path(self.recipe.model.checkpoint, self.recipe.model.folder))


def _selection(evaluation: str | None) -> argparse.Namespace:
    names = ("rollout", "task", "solved", "broken", "min_reward", "max_reward")
    return argparse.Namespace(evaluation=evaluation, **dict.fromkeys(names))


@dataclass
class _Counts:
    """Counts of what was written. errors: turns that are context alone, as they ended in an error."""

    episodes: int = 0
    samples: int = 0
    tasks: int = 0
    trained_tokens: int = 0
    errors: int = 0

    def said(self) -> str:
        what = f"{self.episodes} episodes of {self.tasks} tasks, {self.samples} samples"
        return f"{what}; {self.trained_tokens} tokens to train; {self.errors} turns that ended in an error are context"


def _write(path: Path, sources: list[_Source], taken: set[int], rules: Rules) -> _Counts:
    """Write the taken episodes beside the path, rename the file when it is whole, and count what it holds."""
    counts, tasks, place = _Counts(), set[str](), 0
    partial = path.with_name(f".{path.name}.partial")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                for source in sources:
                    vocabulary = source.vocabulary
                    for episode in source.read():
                        place += 1
                        if place - 1 not in taken:
                            continue
                        name = f"{source.folder.resolve().name}:{episode.moment}:{episode.number}:{place - 1}"
                        samples = sft_samples(episode, rules.errors)
                        file.writelines(encoded(sample.line(name, vocabulary)) for sample in samples)
                        tasks.add(episode.task)
                        counts.episodes += 1
                        counts.samples += len(samples)
                        counts.trained_tokens += sum(sample.tokens for sample in samples)
                        counts.errors += sum(sample.failed for sample in samples)
            partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    counts.tasks = len(tasks)
    return counts


def _listed(left_out: Counter[str]) -> str:
    return ", ".join(f"{count} {_WORDS[why]}" for why, count in left_out.items() if count)
