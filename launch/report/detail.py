"""What the page shows of one episode: a row of the list, and all the rest, which is read when it is opened."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from slime_swe.launch.export.episodes import ExportedEpisode
from slime_swe.launch.report.figures import Segments, stop_reason, task_of
from slime_swe.launch.report.highlight import arguments, diff
from slime_swe.launch.report.tokens import ShownTokens
from slime_swe.rollout.records import is_broken, sampled_tokens
from slime_swe.rollout.turns import Turn

COLUMNS = ("task", "outcome", "stop", "reward", "turns", "sampled", "seconds", "group", "number", "search")
_CHANGED = re.compile(r"^(?:\+\+\+|---) [ab]/(.+)$", re.MULTILINE)
_ERROR = 200  # characters of an error that can be searched


def row_of(episode: ExportedEpisode) -> dict[str, Any]:
    """The list's columns. `search`: what is found by words beside task, outcome and stop reason."""
    first = episode.first
    broken = is_broken(episode.records)
    return {
        "task": task_of(episode.records),
        "outcome": "broken" if broken else first.outcome,
        "stop": stop_reason(episode.records),
        "reward": None if first.reward is None else round(first.reward, 4),
        "turns": first.episode.turns if first.episode else 0,
        "sampled": sampled_tokens(episode.records),
        "seconds": round(first.episode.timings.total, 1) if first.episode else 0.0,
        "group": first.group_index,
        "number": episode.number,
        "search": " ".join([*changed_files(episode.patch), *_tools(episode.turns), _error(episode.records)[:_ERROR]]),
    }


def detail_of(episode: ExportedEpisode, tokens: ShownTokens | None) -> dict[str, Any]:
    """Of JSON's types. tokens: makes what is shown of the tokens of a sample; None leaves them out."""
    score = episode.first.score
    return {
        "turns": [_turn(turn) for turn in episode.turns],
        "patch": diff(episode.patch),
        "files": changed_files(episode.patch),
        "components": dict(score.components) if score else {},
        "evidence": {name: _text(value) for name, value in score.evidence.items()} if score else {},
        "error": _error(episode.records),
        "record": _facts(episode),
        "tokens": [*map(tokens, episode.records, episode.trained)] if tokens else None,
    }


def changed_files(patch: str) -> list[str]:
    return list(dict.fromkeys(_CHANGED.findall(patch)))


def _turn(turn: Turn) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": turn.role, "text": turn.text, "began": turn.began, "ended": turn.ended}
    if turn.reasoning:
        shown["reasoning"] = turn.reasoning
    if turn.calls:
        shown["calls"] = [{"name": call.name, "arguments": arguments(call.arguments)} for call in turn.calls]
    return shown


def _tools(turns: list[Turn]) -> list[str]:
    return list(dict.fromkeys(call.name for turn in turns for call in turn.calls))


def _error(segments: Segments) -> str:
    failures = [record.infrastructure for record in segments if record.infrastructure]
    return f"{failures[0].where}: {failures[0].detail}" if failures else ""


def _facts(episode: ExportedEpisode) -> dict[str, str]:
    """Small facts, by name, as texts."""
    first = episode.first
    facts: dict[str, Any] = {
        "samples": len(episode.records),
        "tokens": sum(len(record.tokens) for record in episode.records),
        "sampled by weights": ", ".join(dict.fromkeys(v for r in episode.records for v in r.weight_versions)),
        "attempt of the run": first.attempt,
        "advantage": next((trained.shown_advantage for trained in episode.trained if trained), None),
        "left out of the loss": "yes" if first.remove_sample or (first.episode and first.episode.masked) else "",
    }
    if first.score and first.score.first_edit_solved is not None:
        facts["solved by the first edit"] = "yes" if first.score.first_edit_solved else "no"
    if first.episode:
        counters = msgspec.to_builtins(first.episode.counters)
        facts |= {name.replace("_", " "): value for name, value in counters.items() if name != "first_edit_patch"}
        facts["seconds of model"] = f"{first.episode.timings.engine:.1f}"
        facts["seconds of sandbox"] = f"{first.episode.timings.sandbox:.1f}"
    return {name: _text(value) for name, value in facts.items() if value not in (None, "", 0, False, {})}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and all(isinstance(inner, int | float) for inner in value.values()):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)
