"""Two published rewards of a patch by its likeness to the gold patch, after the papers alone."""

from __future__ import annotations

from collections.abc import Mapping

from slime_swe.data_sources.diff.oracle import DiffOracle

Similarities = Mapping[str, float]  # of each file that both patches change, 0 to 1


def swe_rl(similarities: Similarities, gold: set[str], answer: set[str]) -> float:
    """The mean similarity over all files that either changes, 0 for one that only one of them does. An answer that is
    no patch is worth -1 (`DiffOracle.refused_quality`). SWE-RL, arXiv:2502.18449."""
    return sum(similarities.values()) / len(gold | answer)


def code_repair_rl(similarities: Similarities, gold: set[str], answer: set[str], oracle: DiffOracle) -> float:
    """The weighted sum of two shares of the larger number of files that one of them changes: the similarities of those
    that both change, and the number of these. The weights are the oracle's, and ours by default."""
    most = max(len(gold), len(answer))
    return (oracle.similarity_weight * sum(similarities.values()) + oracle.files_weight * len(similarities)) / most


def quality(oracle: DiffOracle, similarities: Similarities, gold: set[str], answer: set[str]) -> float:
    """By the name that the oracle gives. 0 where neither changes a file."""
    if not gold | answer:
        return 0.0
    if oracle.reward == "swe_rl":
        return swe_rl(similarities, gold, answer)
    return code_repair_rl(similarities, gold, answer, oracle)
