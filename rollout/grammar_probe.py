"""Whether an engine samples by a grammar, and says with what probability it did."""

from __future__ import annotations

import math

from slime_swe.errors import UserError
from slime_swe.rollout.client import EngineClient, Generation
from slime_swe.rollout.grammar import Grammar
from slime_swe.rollout.replies import EngineError, Transient

_PROMPT = [0]  # any token will do
_APART = ("A", "B")  # two grammars that share no text


async def require_grammar(client: EngineClient, grammar: Grammar) -> None:
    """Raise `UserError` where the engine can't sample by this grammar, or does not say with what probability it did.

    Of two grammars that share no text, the forced first tokens differ, and have probability 1 each as they were
    sampled. As the policy's own, the two sum to 1 at most, whatever the model.
    """
    try:
        one, other = [await _forced(client, letter) for letter in _APART]
        params = {"temperature": 1.0, "max_new_tokens": 1, "stop_token_ids": [], **grammar.params}
        await client.generate(_PROMPT, params, tolerance=grammar.tolerance)
    except Transient:
        raise
    except EngineError as error:
        raise UserError(
            f"rollout.grammar: the engine can't sample by it as grammar_kind={grammar.kind}, or not say what the "
            f"policy alone would do (SGLang does, with --grammar-backend xgrammar or, on a CPU, llguidance): {error}"
        ) from error
    if one.tokens == other.tokens:
        raise UserError(
            "rollout.grammar: the engine samples the same where two grammars share no text: it follows none"
        )
    shares = [math.exp(said.log_probs[0]) for said in (one, other)]
    if sum(shares) < 1.5:
        raise UserError(
            f"rollout.grammar: the engine returns the policy's own log-probabilities of what a grammar forced (of "
            f"{' and '.join(_APART)}: {shares[0]:.2g} and {shares[1]:.2g}), and not those that it sampled with: which "
            "tokens the grammar changed can't be told. SGLang returns the latter"
        )


async def _forced(client: EngineClient, letter: str) -> Generation:
    """The first token of a text that has to be this letter."""
    params = {"temperature": 1.0, "max_new_tokens": 1, "stop_token_ids": [], "regex": letter}
    return await client.generate(_PROMPT, params)
