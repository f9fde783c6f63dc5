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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime_swe.data_sources.contamination import find_overlaps
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.journal import encoded
from slime_swe.launch.config import read_recipe
from slime_swe.launch.episodes import RecordedEpisode, read_episodes, select
from slime_swe.launch.export import require_turns
from slime_swe.launch.export.messages import up_to_last_reply
from slime_swe.launch.extras import require
from slime_swe.launch.model import checkpoint_path
from slime_swe.launch.output import print_json
from slime_swe.launch.runs import RECIPE_FILE, find_run
from slime_swe.recipes.base import Recipe
from slime_swe.redaction import Secrets, secrets_of
from slime_swe.rollout.chat.tokenizer import vocabulary_of
from slime_swe.rollout.episode import UNNAMED, Turn
from slime_swe.rollout.proxy.conversation import chat_message, read_arguments
from slime_swe.rollout.records import EPISODES, Record

if TYPE_CHECKING:
    from datasketch import MinHash

_REASONS = {
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


@dataclass(frozen=True)
class Rules:
    """The rules by which episodes are chosen. per_task: episodes of one task, at most. max_turns: of an episode; 0 is
    no bound. max_tokens: of the longest of its samples; 0 is no bound. similar: the share of what two episodes say from
    which on the second is a duplicate. errors: see `sft_samples`."""

    per_task: int = 4
    max_turns: int = 0
    max_tokens: int = 0
    similar: float = 0.9
    errors: re.Pattern[str] | None = None


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
        every = dict.fromkeys(("rollout", "task", "solved", "broken", "min_reward", "max_reward"))
        journal, everything = select(folder, argparse.Namespace(evaluation=options.evaluation, **every))
        selected = [one for one in everything if one[1].outcome == "solved"]
        others = [summary for _, summary in everything if summary.outcome != "solved"]
        episodes = {(summary.dataset, summary.rollout, summary.trajectory) for summary in others}
        return cls(folder, read_recipe(folder / RECIPE_FILE), journal, selected, len(episodes), secrets)

    def read(self) -> Iterator[RecordedEpisode]:
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


# The rules, in the order in which they are applied: those that look at an episode alone, then those that compare.
@dataclass(frozen=True)
class Candidate:
    """An episode that is allowed by itself. place: among all that were read. failed: turns that ended in an error."""

    place: int
    task: str
    turns: int
    tokens: int
    failed: int
    sketch: MinHash

    @property
    def order(self) -> tuple[int, int, int, int]:
        """A key by which the shorter way with fewer errors comes first."""
        return self.failed, self.turns, self.tokens, self.place


def candidates(
    episodes: Iterable[RecordedEpisode], rules: Rules, contaminated: Collection[str], left_out: Counter[str]
) -> list[Candidate]:
    """Return those solved episodes that each rule takes by itself; `left_out` counts the others by reason.
    contaminated: tasks that an evaluation shows."""
    found = []
    for place, episode in enumerate(episodes):
        turns = sum(turn.role == "assistant" for turn in episode.turns)
        tokens = max(len(record.tokens) for record in episode.records)
        samples = sft_samples(episode, rules.errors)
        if episode.task in contaminated:
            left_out["contaminated"] += 1
        elif rules.max_turns and turns > rules.max_turns:
            left_out["too_many_turns"] += 1
        elif rules.max_tokens and tokens > rules.max_tokens:
            left_out["too_long"] += 1
        elif not samples:
            left_out["nothing_to_train"] += 1
        else:
            failed = sum(sample.failed for sample in samples)
            found.append(Candidate(place, episode.task, turns, tokens, failed, sketch(episode.turns)))
    return found


def choose(found: Iterable[Candidate], rules: Rules, left_out: Counter[str]) -> set[int]:
    """Return the places of those that are taken, none like another and so many of a task at most. Of several the one
    with fewest errors, turns and tokens comes first."""
    seen, of_task, taken = Seen(rules.similar), Counter[str](), set[int]()
    for candidate in sorted(found, key=lambda one: one.order):
        if of_task[candidate.task] >= rules.per_task:
            left_out["enough_of_the_task"] += 1
        elif not seen.add(candidate.sketch):
            left_out["duplicate"] += 1
        else:
            of_task[candidate.task] += 1
            taken.add(candidate.place)
    return taken


# Episodes that say nearly the same: MinHash over what the policy wrote (Broder 1997), by datasketch.
SHINGLE = 5  # words and signs, of which overlapping sequences are compared
PERMUTATIONS = 128  # the error of an estimate is about 1 / sqrt(PERMUTATIONS)
_WORD = re.compile(r"\w+|[^\w\s]")


def sketch(turns: Iterable[Turn]) -> MinHash:
    """Sketch the sequences of `SHINGLE` words and signs in what the policy wrote, its calls among it."""
    from datasketch import MinHash

    words = _WORD.findall("\n".join(part for turn in turns if turn.role == "assistant" for part in _written(turn)))
    found = MinHash(num_perm=PERMUTATIONS)
    starts = range(max(1, len(words) - SHINGLE + 1))
    found.update_batch({" ".join(words[start : start + SHINGLE]).encode("utf-8", "replace") for start in starts})
    return found


def _written(turn: Turn) -> list[str]:
    return [turn.reasoning, turn.text, *(f"{call.name} {call.arguments}" for call in turn.calls)]


class Seen:
    """The episodes that have been taken so far. `share`: of shingles in common, from which on two are similar."""

    def __init__(self, share: float) -> None:
        from datasketch import MinHashLSH

        self._share = share
        # It proposes rather more than are similar, and the sketches decide.
        self._index = MinHashLSH(threshold=min(share, 0.9), num_perm=PERMUTATIONS, weights=(0.1, 0.9))
        self._sketches: dict[str, MinHash] = {}

    def add(self, found: MinHash) -> bool:
        """Take an episode by its sketch, unless a similar one is there: then return False."""
        near = self._index.query(found)
        if any(self._sketches[name].jaccard(found) >= self._share for name in near):
            return False
        name = str(len(self._sketches))
        self._sketches[name] = found
        self._index.insert(name, found)
        return True


# A chosen episode as lines of the file: messages for any trainer of chat, and tokens for our own.
FLAG = "step_loss_mask"  # of an assistant's message: 0 is context alone (slime/utils/mask_utils.py)


@dataclass(frozen=True)
class SftSample:
    """A sample of an episode as it is trained. mask: of its response, empty where tokens were not recorded. turns: up
    to the last that was sampled. flags: of each of them, whether it is trained. failed: turns that ended in an error.
    """

    record: Record
    tools: list[dict[str, Any]]
    mask: list[int]
    turns: list[Turn]
    flags: list[bool]
    failed: int

    @property
    def tokens(self) -> int:
        """The number of tokens that are trained."""
        return sum(self.mask)

    def line(self, name: str, vocabulary: str) -> dict[str, Any]:
        """Return the sample as a mapping of JSON's types. `name`: the episode's."""
        replies = [(turn.start, turn.end) for turn, flag in zip(self.turns, self.flags, strict=True) if flag]
        of_tokens = {
            "tokens": self.record.tokens,
            "loss_mask": self.mask,
            "replies": replies,
            "vocabulary": vocabulary,
        }
        return {
            "episode": name,
            "task": self.record.task or "",
            "solved": self.record.solved,
            "reward": self.record.reward,
            "messages": [
                chat_message(turn) | ({FLAG: int(flag)} if turn.role == "assistant" else {})
                for turn, flag in zip(self.turns, self.flags, strict=True)
            ],
            "tools": self.tools,
            **(of_tokens if self.mask else {}),
        }


def sft_samples(episode: RecordedEpisode, errors: re.Pattern[str] | None) -> list[SftSample]:
    """Return the episode's samples that have something to train. errors: how a result that is one begins; None trains
    turns that ended in an error too.

    A turn that several samples show is trained in the first of them alone, as its tokens are.
    """
    found, known = [], set[tuple[Any, ...]]()
    for record, tools in zip(episode.records, episode.tools, strict=True):
        failed = failed_turns(record.turns or [], errors) if errors else []
        mask = mask_without(record, failed) if record.tokens else []
        turns = up_to_last_reply(record)
        flags = [_is_trained(turn, record, mask, failed, known) for turn in turns]
        known |= {_name(turn) for turn in turns}
        if any(flags):
            found.append(SftSample(record, tools, mask, turns, flags, len(failed)))
    return found


def _is_trained(
    turn: Turn, record: Record, mask: Sequence[int], failed: Sequence[Turn], known: set[tuple[Any, ...]]
) -> bool:
    if turn.role != "assistant" or any(turn is one for one in failed):
        return False
    if not record.tokens:
        return _name(turn) not in known
    before = len(record.tokens) - len(mask)
    return any(mask[max(0, turn.start - before) : max(0, turn.end - before)])


def _name(turn: Turn) -> tuple[Any, ...]:
    """Return what tells turns apart: two samples of an episode show the same turn where this is equal."""
    return turn.role, turn.began, turn.ended, turn.text, turn.reasoning


# Which of the policy's turns ended in an error: they stay as context, and are not trained (swe-lego.github.io).
ERROR = r"\s*(Error\b|<tool_use_error>)"  # how the tools of this package and of Claude Code begin to say so


def failed_turns(turns: Sequence[Turn], pattern: re.Pattern[str]) -> list[Turn]:
    """List the assistant turns with a malformed call, or one of whose calls did nothing: its result is marked as
    failed, or begins as the pattern says. A test or a program that fails is no error: to see that, the agent ran it."""
    failed: list[Turn] = []
    said: Turn | None = None
    for turn in turns:
        if turn.role == "assistant":
            said = turn
            wrong = any(call.name == UNNAMED or read_arguments(call) is None for call in turn.calls)
        else:
            wrong = turn.failed or (turn.role == "tool" and pattern.match(turn.text) is not None)
        if wrong and said is not None and (not failed or failed[-1] is not said):
            failed.append(said)
    return failed


def mask_without(record: Record, turns: Iterable[Turn]) -> list[int]:
    """Return the record's loss mask, without the tokens of these turns."""
    mask = list(record.loss_mask or ())
    before = len(record.tokens) - len(mask)
    for turn in turns:
        for place in range(max(0, turn.start - before), max(0, turn.end - before)):
            mask[place] = 0
    return mask


# The file is there whole or not at all.
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
    return ", ".join(f"{count} {_REASONS[why]}" for why, count in left_out.items() if count)
