"""Runs' folders -> what the page shows: one document of JSON's types, and beside it the episodes, in shards.

Read this file first: `collect` reads a run. Of its figures `charts` makes the page's charts, of each episode `detail`
makes a row of the list and what is read when it is opened, and `page` writes the document and the shards. What can't be
read of a damaged run is left out, and the page says so.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

from slime_swe import __version__
from slime_swe.attempts import of_last_attempt
from slime_swe.errors import UserError
from slime_swe.journal import Place
from slime_swe.launch.config import read_recipe
from slime_swe.launch.episodes import RecordedEpisode
from slime_swe.launch.evaluation import read_evaluation
from slime_swe.launch.extras import require
from slime_swe.launch.progress import held
from slime_swe.launch.report.charts import Segments, group_kind, groups_of, moment_figures, run_charts
from slime_swe.launch.report.detail import COLUMNS, ShownTokens, decoder_of, detail_of, row_of, shown_tokens
from slime_swe.launch.report.page import Shards
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.recipes.base import Recipe
from slime_swe.redaction import Secrets, redacted
from slime_swe.rollout.alarms import Alarms
from slime_swe.rollout.journals import TRAINED, TrainedSample, TrainedSamples, read_record
from slime_swe.rollout.metrics import GAP_BEFORE, INFORMATIVE
from slime_swe.rollout.records import EPISODES, EVALUATIONS, METRICS, TRAINING, Record, is_broken, trajectories

SAMPLE = 0.05  # share of the other episodes whose tokens go in
_TEXTS = ("run", "set", "task", "outcome", "stop", "search")  # columns in which texts repeat


@dataclass
class Collected:
    """The page's content, from the runs that were read so far."""

    shards: Shards
    secrets: Secrets
    all_tokens: bool = False
    runs: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    moments: list[dict[str, Any]] = field(default_factory=list)
    trainer: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    chosen: random.Random = field(default_factory=lambda: random.Random(0))

    def document(self, comparisons: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        return {
            "version": __version__,
            "runs": self.runs,
            "notes": self.notes,
            "comparisons": list(comparisons),
            "charts": run_charts(self.moments, self.trainer),
            "episodes": _columns(self.rows),
            "shards": self.shards.count,
        }


def collect(folder: Path, name: str, into: Collected) -> None:
    """Read one run. name: how it is called in the report. Raises `UserError` where it has no episode."""
    recipe = read_recipe(folder / RECIPE_FILE)
    name = redacted(name, into.secrets)
    notes: list[str] = []
    trained = TrainedOrSkipped(folder / TRAINED, notes)
    evaluation = read_evaluation(folder)
    if evaluation is not None and evaluation.left:
        notes.append(f"INCOMPLETE: up to {evaluation.left} of {evaluation.episodes} episodes were not played")
    endpoint = evaluation.endpoint if evaluation else ""
    tokens = None if endpoint else _tokens(recipe, into.secrets, notes)
    before, moments = len(into.rows), len(into.moments)
    for journal in (folder / EPISODES, folder / EVALUATIONS):
        for records in read_moments(journal, into.secrets, notes) if journal.is_file() else ():
            if records:
                _add_moment(name, records, trained, tokens, into)
    trained.close()
    if len(into.rows) == before:
        raise UserError(f"{folder} has no episode yet: there is nothing to report")
    into.shards.close()
    lines = [line for line in read_lines(folder / METRICS, notes) if line.get("kind") == "train"]
    by_rollout = {line["rollout_id"]: line for line in lines if isinstance(line.get("rollout_id"), int)}
    alarms = Alarms.of(recipe.alarm_limits, map(_numbers, by_rollout.values())).as_json()
    for number, line in by_rollout.items():
        if GAP_BEFORE in line and number - 1 in by_rollout:
            by_rollout[number - 1].setdefault("logprob_diff_mean", line[GAP_BEFORE])
    into.trainer[name] = redacted([*by_rollout.values()], into.secrets)
    into.runs.append(_run(name, folder, recipe, endpoint, into.moments[moments:], alarms, into.secrets))
    into.notes += [redacted(f"{name}: {note}", into.secrets) for note in notes]


def _tokens(recipe: Recipe, secrets: Secrets, notes: list[str]) -> ShownTokens | None:
    try:
        decode = decoder_of(recipe)
    except UserError as error:
        notes.append(f"tokens are left out, as the tokenizer can't be read: {error}")
        return None
    return lambda record, trained: shown_tokens(record, trained, decode, secrets)


def _add_moment(
    name: str, records: list[Record], trained: TrainedOrSkipped, tokens: ShownTokens | None, into: Collected
) -> None:
    episodes = trajectories(records)
    figures = moment_figures(episodes)
    into.moments.append({"run": name, **figures})
    informative = {id(s) for group in groups_of(episodes).values() if group_kind(group) == INFORMATIVE for s in group}
    for segments in episodes:
        episode = RecordedEpisode(segments, [], [*map(trained.of, segments)])
        wanted = _has_tokens(segments, informative, into)
        shard, place = into.shards.add(detail_of(episode, tokens if wanted else None))
        where = {"run": name, "set": figures["set"], "rollout": figures["rollout"], "shard": shard, "place": place}
        into.rows.append({**where, **row_of(episode)})


# A journal's records, moment by moment. What can't be read is left out and said, so that a damaged run still opens.
_SAID = 3  # damaged lines of one file that are named each


class _Moment(msgspec.Struct):
    """The fields of a record by which those of one moment are found."""

    rollout_id: int | None = None
    dataset: str | None = None
    attempt: int | None = None


def read_moments(journal: Path, secrets: Secrets, notes: list[str]) -> Iterator[list[Record]]:
    """Yield the records of each training rollout, or of each evaluation, in the order of the journal.

    Where a run was killed and has played a moment again, its last attempt counts. notes: is given a sentence for what
    is left out.
    """
    moments: dict[Any, list[Place]] = {}
    skipped = _Skipped(journal, notes)
    for place, moment in of_last_attempt(_places(journal, skipped), _moment, lambda found: found[1].attempt):
        moments.setdefault(_moment((place, moment)), []).append(place)
    for places in moments.values():
        yield [*_records(journal, places, secrets, skipped)]
    skipped.close()


def _moment(found: tuple[Place, _Moment]) -> tuple[str | None, int | None]:
    return found[1].dataset, found[1].rollout_id


class TrainedOrSkipped:
    """The file of what the steps made of a run's samples. notes: is given a sentence for what is left out."""

    def __init__(self, path: Path, notes: list[str]) -> None:
        self._skipped = _Skipped(path, notes)
        self._samples: TrainedSamples | None = None
        try:
            self._samples = TrainedSamples(path)
        except UserError as error:
            notes.append(f"advantages and the trainer's log-probabilities are left out: {error}")

    def of(self, record: Record) -> TrainedSample | None:
        try:
            return self._samples.of(record) if self._samples else None
        except UserError as error:
            self._skipped.add(f"the line of sample {record.index}, rollout {record.rollout_id},", str(error))
            return None

    def close(self) -> None:
        self._skipped.close()


def read_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Read the JSON objects of a file of figures, one a line; none where there is no such file."""
    skipped, found = _Skipped(path, notes), []
    for number, line in enumerate(path.open("rb") if path.is_file() else (), 1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            skipped.add(f"line {number}" if line.endswith(b"\n") else "the last line, half written", str(error))
            continue
        if isinstance(value, dict):
            found.append(value)
    skipped.close()
    return found


NESTED = ("seconds", "serving")  # figures of a line that are objects of figures


def _numbers(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a line that are what they should be: in a damaged run not all are."""
    nested = {name: _numbers(line[name]) for name in NESTED if isinstance(line.get(name), dict)}
    plain = {name: value for name, value in line.items() if name not in NESTED and isinstance(value, int | float)}
    return plain | nested


class _Skipped:
    """The lines of a file that are left out."""

    def __init__(self, path: Path, notes: list[str]) -> None:
        self._path, self._notes, self._more = path, notes, -_SAID

    def add(self, line: str, why: str) -> None:
        self._more += 1
        if self._more <= 0:
            self._notes.append(f"{self._path.name}: {line} was skipped: {why}")

    def close(self) -> None:
        if self._more > 0:
            self._notes.append(f"{self._path.name}: {self._more} more lines were skipped")


def _places(journal: Path, skipped: _Skipped) -> Iterator[tuple[Place, _Moment]]:
    decoder = msgspec.json.Decoder(_Moment)
    start = 0
    with journal.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            place = Place.of(line, start)
            start = place.end
            if not line.endswith(b"\n"):
                skipped.add("the last line, half written", f"{len(line):,} bytes without an end")
                continue
            try:
                yield place, decoder.decode(line)
            except msgspec.DecodeError as error:
                skipped.add(f"line {number}", str(error))


def _records(journal: Path, places: list[Place], secrets: Secrets, skipped: _Skipped) -> Iterator[Record]:
    for place in places:
        try:
            yield read_record(journal, place, secrets)
        except UserError as error:
            skipped.add(f"the record at byte {place.start}", str(error))


def _has_tokens(segments: Segments, informative: set[int], into: Collected) -> bool:
    """Say whether tokens go in: those of failures, of informative groups, and of a random sample of the rest do."""
    drawn = into.chosen.random() < SAMPLE
    failed = is_broken(segments) or not segments[0].solved
    return into.all_tokens or failed or id(segments) in informative or drawn


def _run(
    name: str,
    folder: Path,
    recipe: Recipe,
    endpoint: str,
    moments: Iterable[Mapping[str, Any]],
    alarms: Sequence[Mapping[str, Any]],
    secrets: Secrets,
) -> dict[str, Any]:
    """Return the facts at the top of the page."""
    training = [moment for moment in moments if moment["set"] == TRAINING]
    facts = {
        "name": name,
        "recipe": recipe.name,
        "model": recipe.model.checkpoint,
        "engine": endpoint or recipe.engine,
        "agent": recipe.rollout.agent,
        "recipe_file": (folder / RECIPE_FILE).read_text("utf-8"),
        "alarms": [{"held": held(alarm), "said": alarm["said"]} for alarm in alarms],
    }
    return redacted(facts, secrets) | {
        "rollouts": len(training),
        "episodes": sum(moment["episodes"] for moment in training),
        "broken": sum(moment["broken"] for moment in training),
        "solved": sum(moment["solved"] for moment in training),
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Turn rows into columns: a list each, or for texts that repeat, the texts and a number for each row."""
    columns: dict[str, Any] = {}
    for name in ("run", "set", "rollout", "shard", "place", *COLUMNS):
        values = [row[name] for row in rows]
        if name in _TEXTS:
            places = {text: place for place, text in enumerate(dict.fromkeys(values))}
            columns[name] = {"texts": list(places), "of": [places[text] for text in values]}
        else:
            columns[name] = values
    return columns


# The first run is compared with each other one, as by `slime-swe compare`.
def compare_runs(folders: Sequence[Path], notes: list[str]) -> list[dict[str, Any]]:
    """Compare the first run's newest evaluation of each set with other runs'. notes: is given why one is not there."""
    found: list[dict[str, Any]] = []
    for folder in folders[1:]:
        try:
            found += _compared(folders[0], folder)
        except UserError as error:
            notes.append(f"{folders[0].name} and {folder.name} are not compared: {error}")
    return found


def _compared(a: Path, b: Path) -> Iterator[dict[str, Any]]:
    require("numpy", "scipy", extra="compare")
    from slime_swe.launch.compare import compare  # numpy and scipy are of the `compare` extra
    from slime_swe.launch.compare.sources import matched, read_side, require_same_limits

    for name, left, right in matched(*(read_side(str(folder), "") for folder in (a, b))):
        require_same_limits(left, right)
        found = compare(name, left, right)
        shown = {key: found[key] for key in ("difference", "intervals", "verdict", "p_value", "test", "tasks")}
        rates = {"solve_rate_a": found["a"]["solve_rate"], "solve_rate_b": found["b"]["solve_rate"]}
        yield {"set": name, "a": a.name, "b": b.name, **shown, **rates}
