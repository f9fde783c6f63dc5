"""Which solved episodes are trained on: the rules, in the order in which they are applied; and the lines of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime_swe.launch.export import ExportedEpisode
from slime_swe.launch.export.messages import up_to_last_reply
from slime_swe.rollout.proxy.conversation import chat_message, read_arguments
from slime_swe.rollout.records import Record
from slime_swe.rollout.turns import UNNAMED, Turn

if TYPE_CHECKING:
    from datasketch import MinHash


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


def sketch(turns: Iterable[Turn]) -> MinHash:
    """Sketch the sequences of `WORDS` words and signs in what the policy wrote, its calls among it."""
    from datasketch import MinHash

    words = _WORD.findall("\n".join(part for turn in turns if turn.role == "assistant" for part in _written(turn)))
    found = MinHash(num_perm=PERMUTATIONS)
    starts = range(max(1, len(words) - WORDS + 1))
    found.update_batch({" ".join(words[start : start + WORDS]).encode("utf-8", "replace") for start in starts})
    return found


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
    episodes: Iterable[ExportedEpisode], rules: Rules, contaminated: Collection[str], left_out: Counter[str]
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
        tokens = {"tokens": self.record.tokens, "loss_mask": self.mask, "vocabulary": vocabulary} if self.mask else {}
        return {
            "episode": name,
            "task": self.record.task or "",
            "solved": self.record.solved,
            "reward": self.record.reward,
            "messages": [_message(turn, flag) for turn, flag in zip(self.turns, self.flags, strict=True)],
            "tools": self.tools,
            **tokens,
        }


def sft_samples(episode: ExportedEpisode, errors: re.Pattern[str] | None) -> list[SftSample]:
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
            wrong = _is_malformed(turn)
        else:
            wrong = turn.failed or (turn.role == "tool" and pattern.match(turn.text) is not None)
        if wrong and said is not None and (not failed or failed[-1] is not said):
            failed.append(said)
    return failed


def _is_malformed(turn: Turn) -> bool:
    return any(call.name == UNNAMED or read_arguments(call) is None for call in turn.calls)


def mask_without(record: Record, turns: Iterable[Turn]) -> list[int]:
    """Return the record's loss mask, without the tokens of these turns."""
    mask = list(record.loss_mask or ())
    before = len(record.tokens) - len(mask)
    for turn in turns:
        for place in range(max(0, turn.start - before), max(0, turn.end - before)):
            mask[place] = 0
    return mask


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


def _message(turn: Turn, trained: bool) -> dict[str, Any]:
    return chat_message(turn) | ({FLAG: int(trained)} if turn.role == "assistant" else {})


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
WORDS = 5  # of a shingle
PERMUTATIONS = 128  # the error of an estimate is about 1 / sqrt(PERMUTATIONS)
_WORD = re.compile(r"\w+|[^\w\s]")


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
