"""Why an episode ended as it did, in one sentence: what failed, the first failing test, the stop reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.records import EpisodeRecord, Record, Score

STOPS = {
    StopReason.SUBMITTED: "the agent submitted",
    StopReason.MAX_TURNS: "its turns ran out (rollout.max_turns)",
    StopReason.CONTEXT_FULL: "its context was full (rollout.max_context)",
    StopReason.TIME_BUDGET: "its time ran out (rollout.time_budget)",
    StopReason.MAX_RESPONSE: "its tokens ran out (rollout.max_response)",
    StopReason.NO_TOOL_CALL: "the agent called no tool",
    StopReason.GAVE_UP: "the agent gave up",
}
GRADED = {  # of a score's evidence: its outcome -> why that is no solution
    "empty_patch": "the patch is empty",
    "timeout": "the tests took longer than the oracle allows",
    "forged": "the log of the tests is not believed (forged)",
    "unwitnessed": "no test could show that the patch is what passes it (unwitnessed)",
    "special_cased": "the patch passes the visible values alone (special_cased)",
}
LONGEST = 160  # characters of an error


def explain(record: Record) -> str:
    """One line, which ends with a full stop. What was not recorded is left out."""
    if record.broken:
        failure = record.infrastructure
        said = f"{failure.where}: {first_line(failure.detail)}" if failure else "the episode was aborted"
        return f"Broken by infrastructure, not the policy: {said}."
    stopped = f"; {_stopped(record.episode)}" if record.episode and record.episode.stop_reason else ""
    if record.solved:
        return f"Solved{stopped}."
    return f"Not solved: {_failing(record)}{stopped}."


def _stopped(episode: EpisodeRecord) -> str:
    known = {reason.value: words for reason, words in STOPS.items()}
    turns = f" after {episode.turns} turn{'' if episode.turns == 1 else 's'}" if episode.turns else ""
    return known.get(episode.stop_reason, f"it ended by {episode.stop_reason}") + turns


def _failing(record: Record) -> str:
    score = record.score
    if score is None:
        return f"the reward is {record.reward}, and no score says why"
    outcome, detail = (
        score.evidence.get("outcome"),
        score.evidence.get("detail") or score.evidence.get("rejection_reason"),
    )
    if outcome in GRADED:
        return GRADED[outcome] + (f": {first_line(str(detail))}" if detail and outcome != "empty_patch" else "")
    if detail:
        return first_line(str(detail))
    return _failing_test(score) or f"the score is {score.value}"


def _failing_test(score: Score) -> str:
    """Empty where the evidence names none."""
    tests = score.evidence.get("tests")
    failed = [name for name, passed in tests.items() if not passed] if isinstance(tests, Mapping) else []
    if not isinstance(tests, Mapping) or not failed:
        return ""
    error = _error(score.evidence, failed[0])
    count = f"{len(failed)} of {len(tests)} tests fail{'s' if len(failed) == 1 else ''}"
    return f"{count}, first {failed[0]}" + (f" ({error})" if error else "")


def _error(evidence: Mapping[str, Any], test: str) -> str:
    """What the log's own line about the test says, as pytest writes it: `FAILED test - error`."""
    for line in str(evidence.get("log") or "").splitlines():
        status, _, rest = line.partition(" ")
        name, _, error = rest.partition(" - ")
        if status in ("FAILED", "ERROR") and name == test and error:
            return first_line(error)
    return ""


def first_line(text: str) -> str:
    """At most `LONGEST` characters of it, without a full stop at its end."""
    line = next(iter(text.strip().splitlines()), "").rstrip(".")
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
