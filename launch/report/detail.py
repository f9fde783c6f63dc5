"""What the page shows of one episode: a row of the list, and all the rest, which is read when it is opened."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec
from pygments.lexer import Lexer
from pygments.lexers.data import JsonLexer
from pygments.lexers.diff import DiffLexer
from pygments.token import STANDARD_TYPES, Token

from slime_swe.errors import UserError
from slime_swe.launch.episodes import RecordedEpisode, token_runs
from slime_swe.launch.extras import require
from slime_swe.launch.model import checkpoint_folder
from slime_swe.launch.report.charts import Segments, stop_reason, task_of
from slime_swe.recipes.base import Recipe
from slime_swe.redaction import Secrets
from slime_swe.rollout.episode import Turn
from slime_swe.rollout.journals import TrainedSample
from slime_swe.rollout.records import Record, is_broken, sampled_tokens

COLUMNS = ("task", "outcome", "stop", "reward", "turns", "sampled", "seconds", "group", "number", "search")
_CHANGED = re.compile(r"^(?:\+\+\+|---) [ab]/(.+)$", re.MULTILINE)
_ERROR = 200  # characters of an error that can be searched


def row_of(episode: RecordedEpisode) -> dict[str, Any]:
    """Return the list's columns. `search`: the texts that are searched beside task, outcome and stop reason."""
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


def detail_of(episode: RecordedEpisode, tokens: ShownTokens | None) -> dict[str, Any]:
    """Return an episode in JSON's types. tokens: makes what is shown of a sample's tokens; None leaves them out."""
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


# The report shows of each token its text, whether the policy sampled it, how likely it was, and what the step made of
# it.
Decode = Callable[[Sequence[int]], str]
ShownTokens = Callable[[Record, TrainedSample | None], Any]
_BYTES = 4  # tokens at most that one character of UTF-8 is cut into


def decoder_of(recipe: Recipe) -> Decode:
    """Return what decodes the run's tokens. Raises `UserError` where the tokenizer, or its package, is not here."""
    require("tokenizers")
    from tokenizers import Tokenizer  # of the `embedded` extra

    file = checkpoint_folder(recipe.model.checkpoint, recipe.model.folder) / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{file} is not there")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def shown_tokens(
    record: Record, trained: TrainedSample | None, decode: Decode, secrets: Secrets
) -> list[dict[str, Any]]:
    """Split a sample into runs of tokens of one origin: the policy's one by one, with log-probabilities in nats.

    Tokens of any other origin stand together. Where they are known, `gaps` are how far the trainer's log-probabilities
    are from those, and `advantage` is that of the run's tokens, or of each. A secret is replaced wherever it is in the
    text, also where several tokens make it up.
    """
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    at = record.response_length - len(record.tokens)  # of the run's first token in the response
    before = 0  # sampled tokens
    for sampled, tokens in token_runs(record):
        count = len(tokens)
        pieces = _pieces(tokens, decode) if sampled else [decode(tokens)]
        log_probs = (record.log_probs or [])[at : at + count] if sampled else []
        found.append({"sampled": sampled, "count": count, "pieces": len(pieces), "log_probs": log_probs})
        if sampled and trained:
            found[-1] |= _trained(trained, slice(before, before + count), log_probs)
            before += count
        texts += pieces
        at += count
    texts = _redacted(texts, secrets)
    start = 0
    for run in found:
        run["texts"] = texts[start : start + run["pieces"]]
        start += run.pop("pieces")
        run["log_probs"] = [round(value, 3) for value in run["log_probs"]]
    return found


def _trained(trained: TrainedSample, run: slice, log_probs: Sequence[float]) -> dict[str, Any]:
    """Return a run's advantages and gaps, rounded to the digits worth showing. run: its slice of the sampled tokens."""
    values = trained.advantage
    found: dict[str, Any] = {"advantage": [*map(_short, values[run])] if isinstance(values, list) else _short(values)}
    if trained.log_probs is not None and log_probs:
        found["gaps"] = [_short(abs(a - b), 2) for a, b in zip(trained.log_probs[run], log_probs, strict=True)]
    return found


def _short(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def _pieces(tokens: Sequence[int], decode: Decode) -> list[str]:
    """Return the text that each token adds; where several tokens make up a character, the last one has it."""
    pieces: list[str] = []
    pending: list[int] = []
    for token in tokens:
        pending.append(token)
        text = decode(pending)
        if text.endswith("\ufffd") and len(pending) < _BYTES:
            pieces.append("")
            continue
        pieces.append(text)
        pending = []
    if pending:
        pieces[-1] = decode(pending)
    return pieces


def _redacted(pieces: list[str], secrets: Secrets) -> list[str]:
    """Replace secrets: the first piece of one becomes its replacement, and the rest of them are empty."""
    text, ends = "".join(pieces), [*accumulate(map(len, pieces))]
    for secret, replacement in secrets:
        starts = [match.start() for match in re.finditer(re.escape(secret), text)]
        if starts:
            text = text.replace(secret, replacement)
            ends = [_moved(end, starts, len(secret), len(replacement)) for end in ends]
    return [text[start:end] for start, end in pairwise([0, *ends])]


def _moved(end: int, starts: Sequence[int], length: int, replaced: int) -> int:
    """Return where a piece ends once what begins at `starts` has another length. One that ends within a secret has its
    whole replacement.
    """
    begun = bisect_left(starts, end)
    return (max(end, starts[begun - 1] + length) if begun else end) + begun * (replaced - length)


def changed_files(patch: str) -> list[str]:
    return list(dict.fromkeys(_CHANGED.findall(patch)))


def _turn(turn: Turn) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": turn.role, "text": turn.text, "began": turn.began, "ended": turn.ended}
    if turn.reasoning:
        shown["reasoning"] = turn.reasoning
    if turn.calls:
        shown["calls"] = [{"name": call.name, "arguments": arguments(call.arguments)} for call in turn.calls]
    return shown


# Code and diffs in colour, by Pygments: (class, text) pairs, of which the page makes text nodes and no markup.
Pairs = list[list[str]]
_LONGEST = 100_000  # characters: what is longer stays plain
_GROWTH, _SMALL = 4, 1000  # times as long as it was, and so many characters, a text may become by being laid out

_DIFF, _JSON = DiffLexer(stripnl=False, ensurenl=False), JsonLexer(stripnl=False, ensurenl=False)


def diff(text: str) -> Pairs:
    return _pairs(text, _DIFF)


def arguments(text: str) -> Pairs:
    """Colour the arguments of a tool call. JSON is laid out, one argument a line, unless that makes it much longer: the
    indents of n levels are n² characters."""
    laid_out = _laid_out(text, _GROWTH * len(text) + _SMALL)
    return [["", text]] if laid_out is None else _pairs(laid_out, _JSON)


def _laid_out(text: str, most: int) -> str | None:
    """Indent a JSON text; None where it is no JSON, or would have more than `most` characters."""
    pieces, length = [], 0
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            pieces.append(piece)
            length += len(piece)
            if length > most:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(pieces)


def _pairs(text: str, lexer: Lexer) -> Pairs:
    if len(text) > _LONGEST:
        return [["", text]]
    pairs: Pairs = []
    for kind, value in _lexed(text, lexer):
        within_line = pairs and not pairs[-1][1].endswith("\n")  # else the next line's
        if pairs and (pairs[-1][0] == kind or (value.isspace() and within_line)):
            pairs[-1][1] += value
        else:
            pairs.append([kind, value])
    return pairs


def _lexed(text: str, lexer: Lexer) -> Iterator[tuple[str, str]]:
    for kind, value in lexer.get_tokens(text):
        while kind not in STANDARD_TYPES:
            kind = kind.parent or Token
        yield STANDARD_TYPES[kind], value


def _tools(turns: list[Turn]) -> list[str]:
    return list(dict.fromkeys(call.name for turn in turns for call in turn.calls))


def _error(segments: Segments) -> str:
    failures = [record.infrastructure for record in segments if record.infrastructure]
    return f"{failures[0].where}: {failures[0].detail}" if failures else ""


def _facts(episode: RecordedEpisode) -> dict[str, str]:
    """Return small facts about an episode, by name, as texts."""
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
