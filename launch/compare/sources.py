"""What is compared: evaluations of a run, those that `slime-swe eval --output` kept, or a report of SWE-bench's
harness.

RUN, or RUN@K for the evaluation after rollout K (-1: before the first); FOLDER; REPORT.json. Several with commas
between them are repetitions of one side, and their episodes count together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import orjson

from slime_swe.errors import UserError
from slime_swe.launch.evaluation import Limits, in_words, limits_in, require_complete
from slime_swe.launch.runs import find_run
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import EVALUATIONS, Record, is_broken, trajectories


@dataclass(frozen=True)
class Evaluation:
    """One set as one source has it.

    name: empty where the source does not say. outcomes: by task, 1 for each sound episode that solved it, else 0.
    broken: how many episodes infrastructure ended. rollout: the one before it. samplings: hashes that identify the
    episodes by their sampled tokens. folder: that of the run, whose recipe says where the tasks are from. limits: those
    of its episodes; None where nothing says them, as in a report.
    """

    source: str
    name: str
    outcomes: Mapping[str, Sequence[int]]
    broken: int = 0
    rollout: int | None = None
    samplings: frozenset[int] = frozenset()
    folder: Path | None = None
    limits: Limits | None = None


@dataclass(frozen=True)
class Repeated:
    """One set of one side: its evaluations, each an equal part of it."""

    evaluations: tuple[Evaluation, ...]

    @property
    def name(self) -> str:
        return self.evaluations[0].name

    @property
    def outcomes(self) -> dict[str, list[int]]:
        together: dict[str, list[int]] = {}
        for evaluation in self.evaluations:
            for task, found in evaluation.outcomes.items():
                together.setdefault(task, []).extend(found)
        return together

    @property
    def broken(self) -> int:
        return sum(evaluation.broken for evaluation in self.evaluations)


def read_side(text: str, directory: str) -> dict[str, Repeated]:
    """Read the sets of a side by name. directory: the folder of all runs.

    A set that one of several sources lacks is left out. Raises `UserError` where a source can't be read, where no set
    is in all of them, or where two of them hold the same episodes.
    """
    sources = [name for name in text.split(",") if name]
    if not sources or len(set(sources)) < len(sources):
        raise UserError(f"{text!r} must name each source once: RUN, RUN@K, FOLDER or REPORT.json, with commas between")
    found = [read_source(source, directory) for source in sources]
    names = [name for name in found[0] if all(name in sets for sets in found)]
    if not names:
        listed = "; ".join(f"{source} has {_listed(sets)}" for source, sets in zip(sources, found, strict=True))
        raise UserError(f"the repetitions {text} have no evaluation set in common: {listed}")
    sides = {name: Repeated(tuple(sets[name] for sets in found)) for name in names}
    for side in sides.values():
        _require_other_episodes(side.evaluations)
    return sides


def matched(a: Mapping[str, Repeated], b: Mapping[str, Repeated]) -> list[tuple[str, Repeated, Repeated]]:
    """Pair the sets to compare: those of one name, or the only ones. A report, which names no set, is compared with all
    that share a task with it. Raises `UserError` where no two sets can be compared."""
    if "" in a or "" in b:
        pairs = [(left.name or right.name or "reports", left, right) for left in a.values() for right in b.values()]
        return [pair for pair in pairs if pair[1].outcomes.keys() & pair[2].outcomes.keys()] or _refuse(a, b)
    if len(a) == len(b) == 1:
        (left,), (right,) = a.values(), b.values()
        name = left.name if left.name == right.name else f"{left.name} and {right.name}"
        return [(name, left, right)]
    return [(name, a[name], b[name]) for name in a if name in b] or _refuse(a, b)


def require_same_limits(a: Repeated, b: Repeated) -> None:
    """Raise `UserError` where episodes had more turns or context in one evaluation than in another. A source that does
    not say its limits is taken as it is."""
    found = {in_words(e.limits): e.source for e in (*a.evaluations, *b.evaluations) if e.limits is not None}
    if len(found) > 1:
        listed = "; ".join(f"{source}: {words}" for words, source in found.items())
        raise UserError(
            f"the episodes had other limits, so that their solve rates say little of the models ({listed}). Evaluate "
            "again with the same rollout.max_turns and rollout.max_context, or give `slime-swe compare` --other-limits"
        )


def _refuse(a: Mapping[str, Repeated], b: Mapping[str, Repeated]) -> Any:
    raise UserError(f"A and B share no evaluation set: A has {_listed(a)}, and B has {_listed(b)}")


def read_source(source: str, directory: str) -> dict[str, Evaluation]:
    """Read a source's sets by name, each with its newest evaluation or the one that is asked for."""
    path = Path(source)
    if path.suffix == ".json" or path.is_file():
        return {"": read_report(path)}
    name, at, number = source.rpartition("@")
    if at and not path.is_dir() and not (Path(directory) / source).is_dir():
        if not number.removeprefix("-").isdecimal():
            raise UserError(f"{source}: after the @ stands the number of a rollout, e.g. {name}@-1")
        return read_run(source, find_run(name, directory), int(number))
    return read_run(source, find_run(source, directory), None)


def read_run(source: str, folder: Path, rollout: int | None) -> dict[str, Evaluation]:
    """Read a folder's evaluations by set: those of a rollout, or for None the newest.

    Raises `UserError` where the folder has no evaluation, none of this rollout, or one that was cut short.
    """
    require_complete(folder)
    path = folder / EVALUATIONS
    by_set: dict[str, dict[int, list[Record]]] = {}
    for record in map(_without_tokens, read_records(path)):
        by_set.setdefault(record.dataset or "", {}).setdefault(_moment(record), []).append(record)
    if not by_set:
        raise UserError(
            f"{source}: {path} holds no evaluation: give the recipe a set (data.eval), or use `slime-swe eval`"
        )
    chosen = {name: max(found) if rollout is None else rollout for name, found in by_set.items()}
    there = {name: found[chosen[name]] for name, found in by_set.items() if chosen[name] in found}
    if not there:
        moments = sorted({moment for found in by_set.values() for moment in found})
        raise UserError(f"{source}: there is no evaluation of rollout {rollout}, but of {', '.join(map(str, moments))}")
    return {name: _evaluation(source, name, chosen[name], folder, records) for name, records in there.items()}


def _moment(record: Record) -> int:
    return -1 if record.rollout_id is None else record.rollout_id


def _without_tokens(record: Record) -> Record:
    """Drop the tokens, which are most of a journal, and put their hash in place of the response. Where there are none,
    it is the hash of the turns, with the seconds that they took."""
    said = (
        tuple(record.tokens) if record.response_length else msgspec.json.encode(record.turns) if record.turns else None
    )
    sampled = hash((record.task, said)) if said else None
    return msgspec.structs.replace(
        record,
        tokens=[],
        loss_mask=None,
        log_probs=None,
        version_spans=None,
        turns=None,
        episode=None,
        response=str(sampled or ""),
    )


def _evaluation(source: str, name: str, rollout: int, folder: Path, records: Iterable[Record]) -> Evaluation:
    """Make the evaluation of one moment. Where a run was killed and has played it again, the last attempt counts."""
    played = list(records)
    last = max(record.attempt or 0 for record in played)
    outcomes: dict[str, list[int]] = {}
    broken, samplings = 0, set()
    for segments in trajectories(record for record in played if (record.attempt or 0) == last):
        first = segments[0]
        if is_broken(segments):
            broken += 1
            continue
        outcomes.setdefault(str(first.task or first.group_index), []).append(int(first.solved))
        samplings |= {hash(segment.response) for segment in segments if segment.response}
    return Evaluation(source, name, outcomes, broken, rollout, frozenset(samplings), folder, limits_in(folder))


def _require_other_episodes(evaluations: Sequence[Evaluation]) -> None:
    """Raise `UserError` where two evaluations share most of their episodes, as those of one sampling seed do: counted
    twice they would make every interval too narrow.

    Most suffices, as infrastructure can break other episodes of each. A few short ones can be equal by chance.
    """
    for place, one in enumerate(evaluations):
        for other in evaluations[:place]:
            shared = one.samplings & other.samplings
            if 2 * len(shared) > min(len(one.samplings), len(other.samplings)):
                raise UserError(
                    f"{other.source} and {one.source} hold the same episodes, token by token, and are no repetitions: "
                    "evaluate again with another run.seed"
                )


def read_report(path: Path) -> Evaluation:
    """Read a report of SWE-bench's harness: the tasks are `submitted_ids`, those solved `resolved_ids`.

    As the harness counts them, errors and empty patches are not solved; `infra_failure_ids` are broken. Raises
    `UserError` where the file is no such report.
    """
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise UserError(f"{path} is no JSON ({error})") from error
    submitted, resolved, broken = (_ids(content, *names) for names in _REPORT)
    if submitted is None or resolved is None:
        raise UserError(
            f"{path} is no report of SWE-bench's harness: it needs the lists submitted_ids and resolved_ids of task ids"
        )
    if strange := set(resolved) - set(submitted):
        raise UserError(f"{path}: resolved_ids has {sorted(strange)[0]!r}, which is not in submitted_ids")
    failed = set(broken or ()) - set(resolved)
    solved = set(resolved)
    outcomes = {task: [int(task in solved)] for task in dict.fromkeys(submitted) if task not in failed}
    return Evaluation(str(path), "", outcomes, len(failed))


_REPORT = (("submitted_ids", "submitted"), ("resolved_ids", "resolved"), ("infra_failure_ids",))


def _ids(content: Any, *names: str) -> list[str] | None:
    """Return the first list of texts that has one of these names, or None."""
    for name in names:
        found = content.get(name) if isinstance(content, dict) else None
        if isinstance(found, list) and all(isinstance(entry, str) for entry in found):
            return found
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(name or "a report" for name in names))
