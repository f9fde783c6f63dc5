"""One recorded trajectory as text: who said what, what it did to the code, and what it earned."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from launch.extras import require


def line_of(record: dict[str, Any]) -> str:
    episode, score = record.get("episode") or {}, record.get("score") or {}
    failed = "infrastructure failure" if record.get("infrastructure") else "not solved"
    outcome = "solved" if score.get("solved") else failed
    return (
        f"rollout {record.get('rollout_id')}  index {record['index']}  {record['task']}  reward {record['reward']}  "
        f"{outcome}  {episode.get('stop_reason')}  {episode.get('turns')} turns"
    )


def readable(record: dict[str, Any], tokenizer_file: Path) -> str:
    """The whole trajectory. What the policy sampled stands under `policy`, everything else under `context`."""
    require("tokenizers")
    from tokenizers import Tokenizer  # of the `embedded` extra; only this needs it

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    parts = [line_of(record)]
    for sampled, tokens in runs(record):
        text = tokenizer.decode(tokens, skip_special_tokens=False).strip("\n")
        parts.append(f"──── {'policy' if sampled else 'context'} · {len(tokens)} tokens\n{text}")
    episode, score = record.get("episode") or {}, record.get("score") or {}
    parts.append(f"──── patch\n{(episode.get('patch') or '(empty)').rstrip()}")
    if score:
        parts.append(f"──── score {score['value']}\n" + "\n".join(_evidence(score)))
    if record.get("infrastructure"):
        where, detail = record["infrastructure"]["where"], record["infrastructure"]["detail"]
        parts.append(f"──── infrastructure failure\n{where}: {detail}")
    return "\n".join(parts)


def runs(record: dict[str, Any]) -> Iterator[tuple[bool, list[int]]]:
    """Runs of tokens of one origin: whether the policy sampled them, and the tokens."""
    tokens = record["tokens"]
    mask = [0] * (len(tokens) - record["response_length"]) + list(record["loss_mask"] or [])
    for sampled, pairs in groupby(zip(mask, tokens, strict=True), key=lambda pair: bool(pair[0])):
        yield sampled, [token for _, token in pairs]


def _evidence(score: dict[str, Any]) -> Iterator[str]:
    for name, value in {**score.get("components", {}), **score.get("evidence", {})}.items():
        text = str(value).rstrip()
        yield f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"
