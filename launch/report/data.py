"""Runs' folders -> what the page shows: one document of JSON's types, and beside it the episodes, in shards."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_swe import __version__
from slime_swe.errors import UserError
from slime_swe.launch.config import read_recipe
from slime_swe.launch.evaluation.folder import read_evaluation
from slime_swe.launch.export.episodes import ExportedEpisode
from slime_swe.launch.report.charts import run_charts
from slime_swe.launch.report.detail import COLUMNS, detail_of, row_of
from slime_swe.launch.report.figures import Segments, group_kind, groups_of, moment_figures
from slime_swe.launch.report.reading import TrainedOrSkipped, read_lines, read_moments
from slime_swe.launch.report.shards import Shards
from slime_swe.launch.report.tokens import ShownTokens, decoder_of, shown_tokens
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.recipes.base import Recipe
from slime_swe.redaction import Secrets, redacted
from slime_swe.rollout.group_outcomes import INFORMATIVE
from slime_swe.rollout.metrics import GAP_BEFORE
from slime_swe.rollout.records import EPISODES, EVALUATIONS, METRICS, Record, is_broken, trajectories
from slime_swe.rollout.trained import TRAINED

SAMPLE = 0.05  # share of the other episodes whose tokens go in
_TEXTS = ("run", "set", "task", "outcome", "stop", "search")  # columns in which texts repeat


@dataclass
class Collected:
    """What all runs have given so far."""

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
    for number, line in by_rollout.items():
        if GAP_BEFORE in line and number - 1 in by_rollout:
            by_rollout[number - 1].setdefault("logprob_diff_mean", line[GAP_BEFORE])
    into.trainer[name] = redacted([*by_rollout.values()], into.secrets)
    into.runs.append(_run(name, folder, recipe, endpoint, into.moments[moments:], into.secrets))
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
        episode = ExportedEpisode(segments, [], [*map(trained.of, segments)])
        wanted = _has_tokens(segments, informative, into)
        shard, place = into.shards.add(detail_of(episode, tokens if wanted else None))
        where = {"run": name, "set": figures["set"], "rollout": figures["rollout"], "shard": shard, "place": place}
        into.rows.append({**where, **row_of(episode)})


def _has_tokens(segments: Segments, informative: set[int], into: Collected) -> bool:
    """Of failures, of informative groups, and of a random sample of the rest."""
    drawn = into.chosen.random() < SAMPLE
    failed = is_broken(segments) or not segments[0].solved
    return into.all_tokens or failed or id(segments) in informative or drawn


def _run(
    name: str, folder: Path, recipe: Recipe, endpoint: str, moments: Iterable[Mapping[str, Any]], secrets: Secrets
) -> dict[str, Any]:
    """The facts at the top of the page."""
    training = [moment for moment in moments if moment["set"] == "train"]
    facts = {
        "name": name,
        "recipe": recipe.name,
        "model": recipe.model.checkpoint,
        "engine": endpoint or recipe.engine,
        "agent": recipe.rollout.agent,
        "recipe_file": (folder / RECIPE_FILE).read_text("utf-8"),
    }
    return redacted(facts, secrets) | {
        "rollouts": len(training),
        "episodes": sum(moment["episodes"] for moment in training),
        "broken": sum(moment["broken"] for moment in training),
        "solved": sum(moment["solved"] for moment in training),
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One list a column; of a column of texts, the texts and a number for each row."""
    columns: dict[str, Any] = {}
    for name in ("run", "set", "rollout", "shard", "place", *COLUMNS):
        values = [row[name] for row in rows]
        if name in _TEXTS:
            places = {text: place for place, text in enumerate(dict.fromkeys(values))}
            columns[name] = {"texts": list(places), "of": [places[text] for text in values]}
        else:
            columns[name] = values
    return columns
