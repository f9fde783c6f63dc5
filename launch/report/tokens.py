"""Tokens as the report shows them: what each says, whether the policy sampled it, how likely it was, and what the step
made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slime_swe.errors import UserError
from slime_swe.launch.args import checkpoint_folder
from slime_swe.launch.commands.episodes import runs
from slime_swe.launch.extras import require
from slime_swe.recipes.base import Recipe
from slime_swe.redaction import Secrets
from slime_swe.rollout.records import Record
from slime_swe.rollout.trained import TrainedSample

Decode = Callable[[Sequence[int]], str]
ShownTokens = Callable[[Record, TrainedSample | None], Any]
_BYTES = 4  # tokens at most that one character of UTF-8 is cut into


def decoder_of(recipe: Recipe) -> Decode:
    """How the run's tokens are read. Raises `UserError` where the tokenizer, or its package, is not here."""
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
    """Runs of tokens of one origin: those of the policy one by one, with log-probabilities in nats; others together.

    Where they are known, `gaps` are how far the trainer's log-probabilities are from those, and `advantage` is that of
    the run's tokens, or of each. A secret is replaced wherever it is in the text, also where several tokens make it up.
    """
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    at = record.response_length - len(record.tokens)  # of the run's first token in the response
    before = 0  # sampled tokens
    for sampled, tokens in runs(record):
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
    """Of a run of sampled tokens, counted among those of the sample. Numbers have the digits that are worth showing."""
    values = trained.advantage
    found: dict[str, Any] = {"advantage": [*map(_short, values[run])] if isinstance(values, list) else _short(values)}
    if trained.log_probs is not None and log_probs:
        found["gaps"] = [_short(abs(a - b), 2) for a, b in zip(trained.log_probs[run], log_probs, strict=True)]
    return found


def _short(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def _pieces(tokens: Sequence[int], decode: Decode) -> list[str]:
    """The text that each token adds. Of a character that several tokens make up, the last one has it."""
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
    """The first piece of a secret becomes its replacement, the rest of them are empty."""
    for secret, replacement in secrets:
        start = -1
        while (start := "".join(pieces).find(secret, start + 1)) >= 0:
            pieces = _without(pieces, start, start + len(secret), replacement)
            start += len(replacement) - 1
    return pieces


def _without(pieces: list[str], start: int, end: int, replacement: str) -> list[str]:
    at, kept = 0, []
    for piece in pieces:
        before, after = piece[: max(0, start - at)], piece[max(0, end - at) :]
        touched = at < end and at + len(piece) > start
        first = touched and at <= start
        kept.append(before + (replacement if first else "") + after if touched else piece)
        at += len(piece)
    return kept
