"""The folder of an evaluation: its recipe, its journal, and whether all of it was played.

Each episode is in the journal as soon as it is over. So an evaluation that was killed goes on: what is whole in the
journal is not played again; episodes that infrastructure broke are, and their records go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from slime_swe.attempts import ATTEMPTS, require_ended
from slime_swe.errors import UserError
from slime_swe.files import replace_file, writing
from slime_swe.journal import Place
from slime_swe.launch.config import flatten, read_recipe, save_recipe
from slime_swe.launch.runs import RECIPE_FILE, attempt_with_status, make_folder, record_end
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.journals import append_records, read_records, read_summaries
from slime_swe.rollout.records import EVALUATIONS, Record, Summary, trajectory_of
from slime_swe.sample import Sample

EVALUATION = "evaluation.json"
INCOMPLETE = 1  # exit code
# They change how fast an evaluation is, and not what it plays.
_FREE = {
    *("run.name", "run.dir", "cluster.ray_address", "cluster.interface"),
    *("serving.concurrency", "rollout.sandbox_concurrency", "serving.router_ip", "serving.router_port"),
}


class Evaluation(msgspec.Struct, frozen=True):
    """The model that is evaluated, and how much of it is played.

    endpoint: empty for a checkpoint. episodes: the number in all sets. left: how many of them are not in the journal;
    all, until the evaluation has ended by itself.
    """

    model: str
    endpoint: str
    episodes: int
    left: int

    def write(self, folder: Path) -> None:
        with writing(folder / EVALUATION):
            replace_file(folder / EVALUATION, msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def read_evaluation(folder: Path) -> Evaluation | None:
    """Read a folder's evaluation; None for a run, or one of an earlier version. Raises `UserError` if it is damaged."""
    path = folder / EVALUATION
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Evaluation)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is damaged ({error}): evaluate again into a new folder") from error


def require_complete(folder: Path) -> None:
    """Raise `UserError` where an evaluation was cut short: its figures are of the tasks that happened to come first."""
    found = read_evaluation(folder)
    if found is not None and found.left:
        raise UserError(
            f"{folder} holds an evaluation that was cut short: up to {found.left} of its {found.episodes} episodes "
            "were not played. Go on with it by --resume"
        )


@contextmanager
def output(folder: Path, recipe: Recipe, evaluation: Evaluation, *, resume: bool) -> Iterator[None]:
    """Hold the folder, so that no other process writes it meanwhile.

    Raises `UserError` where it holds something, or with `resume` not this evaluation.
    """
    if resume:
        if not (folder / RECIPE_FILE).is_file():
            raise UserError(f"--resume: --output {folder} holds no evaluation: leave out --resume to begin one")
        with _attempt(folder):
            _require_same(folder, recipe, evaluation)
            _forget_broken(folder / EVALUATIONS)
            evaluation.write(folder)
            yield
        return
    if (folder / RECIPE_FILE).exists():
        require_ended(folder / ATTEMPTS)
        raise UserError(
            f"--output {folder} holds a run or an evaluation already: add --resume to go on with an evaluation, or "
            "give a new folder"
        )
    make_folder(folder, "--output")
    with _attempt(folder):
        begin(folder, recipe, evaluation)
        yield


@contextmanager
def _attempt(folder: Path) -> Iterator[None]:
    """Hold an attempt at the evaluation, and record its end for who watches the folder."""
    with attempt_with_status(folder) as attempt:
        yield
        evaluation = read_evaluation(folder)
        record_end(folder, attempt, INCOMPLETE if evaluation and evaluation.left else 0)


def begin(folder: Path, recipe: Recipe, evaluation: Evaluation) -> None:
    """Write the evaluation and its recipe, which the readers of a run's folder need."""
    evaluation.write(folder)
    with writing(folder / RECIPE_FILE):
        save_recipe(recipe, folder / RECIPE_FILE)


def appending(folder: Path, name: str) -> Callable[[list[Sample]], None]:
    """Return a function that appends episodes of one set to the journal.

    All attempts at an evaluation are one moment to its readers, of which they take the last attempt: so each has the
    number 1.
    """
    return lambda samples: append_records(folder / EVALUATIONS, samples, rollout_id=-1, dataset=name, attempt=1)


def known_episodes(folder: Path, name: str) -> set[int]:
    """Return the indices of the episodes of a set that are in the journal."""
    summaries = read_summaries(folder / EVALUATIONS)
    return {one.trajectory for _, one in summaries if one.dataset == name and one.trajectory is not None}


def records_of(folder: Path, name: str) -> list[Record]:
    """Read the journal's records of a set in the order of its tasks, without their tokens."""
    found = [_without_tokens(record) for record in read_records(folder / EVALUATIONS) if record.dataset == name]
    return sorted(found, key=lambda record: trajectory_of(record) or 0)


def _without_tokens(record: Record) -> Record:
    return msgspec.structs.replace(record, tokens=[], loss_mask=None, log_probs=None, version_spans=None, turns=None)


def _require_same(folder: Path, recipe: Recipe, evaluation: Evaluation) -> None:
    before = dict(flatten(dataclasses.asdict(read_recipe(folder / RECIPE_FILE))))
    now = dict(flatten(dataclasses.asdict(recipe)))
    changed = {key: (before[key], now[key]) for key in now if key not in _FREE and now[key] != before[key]}
    known = read_evaluation(folder)
    if known is None:
        raise UserError(f"--resume: {folder} holds a run, or an evaluation of an earlier version: give a new folder")
    if known.endpoint != evaluation.endpoint:
        changed["the endpoint"] = known.endpoint or "none", evaluation.endpoint or "none"
    if changed:
        listed = "; ".join(f"{key} was {old!r} and is {new!r}" for key, (old, new) in [*changed.items()][:5])
        raise UserError(f"--resume: {folder} evaluates something else: {listed}. Leave these out, or give a new folder")


def _forget_broken(journal: Path) -> None:
    """Take out of the journal the records of broken episodes, and of one whose line a kill has cut short."""
    if not journal.exists():
        return
    found = read_summaries(journal)
    gone = {_episode(summary) for _, summary in found if summary.outcome == "broken"}
    end = found[-1][0].end if found else 0
    if journal.stat().st_size > end and found:  # half a line, which may be of the episode before it
        gone.add(_episode(found[-1][1]))
    kept = [place for place, summary in found if _episode(summary) not in gone]
    if len(kept) == len(found) and journal.stat().st_size == end:
        return
    with writing(journal):
        replace_file(journal, b"".join(_lines(journal, kept)))
        journal.with_suffix(".index").unlink(missing_ok=True)


def _episode(summary: Summary) -> tuple[str | None, int | None]:
    return summary.dataset, summary.trajectory


def _lines(journal: Path, places: list[Place]) -> Iterator[bytes]:
    with journal.open("rb") as file:
        for place in places:
            file.seek(place.start)
            yield file.read(place.length)


# The limits that a solve rate is stated with: more turns and more context solve more tasks.
Limits = Mapping[str, int]  # as `rollout.evaluation.limits` has them


def limits_of(recipe: Recipe) -> dict[str, int]:
    return {"max_turns": recipe.rollout.max_turns, "max_context": recipe.rollout.max_context}


def limits_in(folder: Path) -> dict[str, int] | None:
    """Read the limits of a run or an evaluation; None where its recipe can't be read, as that of another version."""
    try:
        return limits_of(read_recipe(folder / RECIPE_FILE))
    except UserError:
        return None


def in_words(limits: Limits) -> str:
    return f"at most {limits['max_turns']} turns, {limits['max_context']:,} tokens of context"
