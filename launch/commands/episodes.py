"""Show a trajectory of a run or of an evaluation, or list those that match.

slime-swe episodes RUN                                 the last one
slime-swe episodes RUN --solved --rollout 39
slime-swe episodes RUN --no-solved --no-broken         the last one that the policy failed: its first line says why
slime-swe episodes RUN --list --min-reward 0.5
slime-swe episodes RUN --evaluation heldout --list --sort reward
slime-swe episodes FOLDER --list                       what `slime-swe eval --output FOLDER` wrote

RUN is a run's name or folder. An evaluation before the first rollout is numbered -1, any other like the rollout
before it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from slime_swe.errors import UserError
from slime_swe.launch.config import read_recipe
from slime_swe.launch.episodes import Selected, add_selection, select, token_runs
from slime_swe.launch.extras import require
from slime_swe.launch.model import checkpoint_path
from slime_swe.launch.output import print_json, print_rows, visible
from slime_swe.launch.runs import RECIPE_FILE, find_run
from slime_swe.rollout.episode import StopReason, Turn
from slime_swe.rollout.journals import TRAINED, TrainedSample, TrainedSamples, read_record
from slime_swe.rollout.records import EpisodeRecord, Record, Score, Summary

COLUMNS = ("rollout", "index", "task", "outcome", "reward", "turns", "sampled", "stop_reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--index", type=int, metavar="I", help="only the sample of this index")
    parser.add_argument("--list", action="store_true", help="one line for each that matches")
    parser.add_argument("--sort", choices=COLUMNS, metavar="COLUMN", help=f"order the list: {', '.join(COLUMNS)}")


def run(options: argparse.Namespace) -> int:
    folder = find_run(options.run, options.dir)
    path, selected = select(folder, options)
    if options.list:
        return _list(selected, options.sort, as_json=options.json)
    if not selected:
        raise UserError(f"no episode in {path} matches: `slime-swe episodes {options.run} --list` shows what there is")
    last = read_record(path, selected[-1][0])
    trained = TrainedSamples(folder / TRAINED).of(last)
    if options.json:
        shown = {"explanation": explain(last), **msgspec.to_builtins(last)}
        print_json({**shown, "trained": msgspec.to_builtins(trained)})
    else:
        model = read_recipe(folder / RECIPE_FILE).model
        print(readable(last, checkpoint_path(model.checkpoint, model.folder) / "tokenizer.json", trained))
    return 0


def _list(selected: Selected, sort: str | None, *, as_json: bool) -> int:
    rows = [row_of(summary) for _, summary in selected]
    if sort:
        rows.sort(key=lambda row: (row[sort] is None, row[sort]))
    if as_json:
        print_json(rows)
    else:
        print_rows(COLUMNS, [["–" if row[name] is None else str(row[name]) for name in COLUMNS] for row in rows])
    return 0


def row_of(summary: Summary) -> dict[str, Any]:
    """Return the columns of one sample; `sampled` counts the policy's tokens."""
    return {name: getattr(summary, name) for name in COLUMNS}


def readable(record: Record, tokenizer_file: Path, trained: TrainedSample | None = None) -> str:
    """Render the whole trajectory, after a sentence on how it ended. What the policy sampled stands under `policy`,
    everything else under `context`; an episode without tokens shows each message under its role."""
    facts = row_of(Summary.of(record)) | ({"advantage": trained.shown_advantage} if trained else {})
    parts = [explain(record), "  ".join(f"{name} {value}" for name, value in facts.items() if value is not None)]
    parts += _by_tokens(record, tokenizer_file) if record.tokens else map(_message, record.turns or ())
    patch = record.episode.patch if record.episode else ""
    parts.append(f"──── patch\n{(patch or '(empty)').rstrip()}")
    if record.score:
        parts.append(f"──── score {record.score.value}\n" + "\n".join(_evidence(record.score)))
    if record.infrastructure:
        parts.append(f"──── infrastructure failure\n{record.infrastructure.where}: {record.infrastructure.detail}")
    return visible("\n".join(parts))


# One sentence explains an episode's end: what failed, the first failing test, the stop reason.
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
    """Explain in one sentence how an episode ended, leaving out what was not recorded."""
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
    """Name the first failing test with its error, or return an empty text where the evidence names none."""
    tests = score.evidence.get("tests")
    failed = [name for name, passed in tests.items() if not passed] if isinstance(tests, Mapping) else []
    if not isinstance(tests, Mapping) or not failed:
        return ""
    error = _error(score.evidence, failed[0])
    count = f"{len(failed)} of {len(tests)} tests fail{'s' if len(failed) == 1 else ''}"
    return f"{count}, first {failed[0]}" + (f" ({error})" if error else "")


def _error(evidence: Mapping[str, Any], test: str) -> str:
    """Find the error in pytest's summary line about the test, `FAILED test - error`; empty where the log has none."""
    for line in str(evidence.get("log") or "").splitlines():
        status, _, rest = line.partition(" ")
        name, _, error = rest.partition(" - ")
        if status in ("FAILED", "ERROR") and name == test and error:
            return first_line(error)
    return ""


def first_line(text: str) -> str:
    """Return the first line of a text: at most `LONGEST` characters, without a full stop at its end."""
    line = next(iter(text.strip().splitlines()), "").rstrip(".")
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def _by_tokens(record: Record, tokenizer_file: Path) -> Iterator[str]:
    require("tokenizers")
    from tokenizers import Tokenizer  # of the `embedded` extra; only this needs it

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    for sampled, tokens in token_runs(record):
        text = tokenizer.decode(tokens, skip_special_tokens=False).strip("\n")
        yield f"──── {'policy' if sampled else 'context'} · {len(tokens)} tokens\n{text}"


def _message(turn: Turn) -> str:
    calls = [f"{call.name} {call.arguments}" for call in turn.calls]
    return "\n".join([f"──── {turn.role}", *filter(None, (turn.reasoning, turn.text)), *calls])


def _evidence(score: Score) -> Iterator[str]:
    for name, value in {**score.components, **score.evidence}.items():
        text = str(value).rstrip()
        yield f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"
