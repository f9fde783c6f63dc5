"""Tokens: what ends a turn, and how many the model has."""

from __future__ import annotations

import json

from slime_swe.launch.rehearse.checks import Measured
from slime_swe.launch.rehearse.dumps import Rolled
from slime_swe.launch.rehearse.evidence import Evidence, vocabulary_of


def ends(evidence: Evidence) -> Measured:
    """Stop tokens of the chat template that the checkpoint's files do not name, and replies that neither end in one
    nor are as long as they may be."""
    named = set[int]()
    for file in ("config.json", "generation_config.json"):
        given = json.loads((evidence.toy / file).read_text(encoding="utf-8")).get("eos_token_id")
        named |= set(given if isinstance(given, list) else [given])
    wrong = len(set(evidence.ends) - named)
    for samples in evidence.rollouts:
        wrong += sum(_unended(evidence, sample) for sample in samples)
    return Measured(wrong, 0)


def vocabulary(evidence: Evidence) -> Measured:
    """Rows that Megatron pads the vocabulary with, and tokens beyond it."""
    rows, parallel = vocabulary_of(evidence.config), evidence.recipe.parallel
    asked = int(evidence.asked["vocab_size"])
    unit = int(evidence.asked["make_vocab_size_divisible_by"]) * parallel.tp
    padding = -asked % unit
    held = evidence.layout.arguments.get("padded_vocab_size")
    if held is not None:
        padding = max(padding, int(held) - rows)
    beyond = sum(token >= rows for samples in evidence.rollouts for sample in samples for token in sample.tokens)
    return Measured(abs(asked - rows) + padding + beyond, 0)


def _unended(evidence: Evidence, sample: Rolled) -> int:
    start, wrong, length = len(sample.tokens) - sample.length, 0, 0
    for at, version in enumerate(sample.versions_R()):
        length = length + 1 if version is not None else 0
        following = sample.versions_R()[at + 1] if at + 1 < sample.length else None
        if version is not None and following is None:
            ended = sample.tokens[start + at] in evidence.ends or length % evidence.recipe.rollout.max_response == 0
            wrong += not ended and len(sample.tokens) < evidence.recipe.rollout.max_context
    return wrong
