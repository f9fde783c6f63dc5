"""`GuidedEngine`: an engine that samples by a grammar as SGLang does, of a policy whose distribution is known."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from aiohttp import web
from orjson import dumps, loads

STOP = "<|im_end|>"
SHARP = 12.0  # how much the token that the policy would rather say is above the others


@dataclass
class GuidedEngine:
    """A grammar here is a `regex` that is one of `texts`, or several of them with `|` between: an answer is one of them
    and the stop token. wanted: what the policy says by itself, token by token, with a probability near 1 each; where it
    has said something else, any token is as likely as another.

    masked: the log-probabilities are of the cut distribution; else of the whole one. obeys: samples by the grammar at
    all. refused: the status of a request that names a grammar. aborts: of each of the next requests, after how many
    tokens it is aborted. scored_by: the version of the weights that answer for a prompt. unscored: leaves these
    places out. requests: all that came.
    """

    tokenizer: Any
    wanted: str = ""
    masked: bool = True
    obeys: bool = True
    refused: int = 0
    aborts: list[int] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    version: str = "3"
    scored_by: str = "3"
    scores: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    draws: random.Random = field(default_factory=lambda: random.Random(0))

    @cached_property
    def pieces(self) -> dict[int, str]:
        """Each token's text, of those that are text."""
        ids = range(len(self.tokenizer))
        texts = {one: self.tokenizer.decode([one]) for one in ids}
        return {one: text for one, text in texts.items() if "\ufffd" not in text} | {self.stop: ""}

    @cached_property
    def stop(self) -> int:
        return self.tokenizer.convert_tokens_to_ids(STOP)

    def policy(self, said: list[int]) -> dict[int, float]:
        """The whole distribution of the next token, behind these of the turn."""
        wanted = [*self.tokenizer.encode(self.wanted, add_special_tokens=False), self.stop]
        aim = wanted[len(said)] if said == wanted[: len(said)] and len(said) < len(wanted) else None
        weights = {one: math.exp(SHARP * (one == aim)) for one in self.pieces}
        total = sum(weights.values())
        return {one: weight / total for one, weight in weights.items()}

    def allowed(self, texts: list[str], said: list[int]) -> set[int]:
        """By the grammar, behind these tokens."""
        so_far = "".join(self.pieces[one] for one in said)
        found = {one for one, piece in self.pieces.items()
                 if piece and one != self.stop and any(text.startswith(so_far + piece) for text in texts)}  # fmt: skip
        return found | ({self.stop} if so_far in texts else set())

    def kept(self, texts: list[str], said: list[int]) -> float:
        """The share of the policy's probability that the grammar leaves."""
        return sum(self.policy(said)[one] for one in self.allowed(texts, said))

    def sample(self, texts: list[str] | None, length: int) -> tuple[list[int], list[float]]:
        said: list[int] = []
        log_probs: list[float] = []
        while len(said) < length and (not said or said[-1] != self.stop):
            whole = self.policy(said)
            cut = {one: whole[one] for one in self.allowed(texts, said)} if texts and self.obeys else whole
            (token,) = self.draws.choices([*cut], [*cut.values()])
            share = whole[token] / (sum(cut.values()) if self.masked else 1.0)
            said.append(token)
            log_probs.append(math.log(share))
        return said, log_probs

    async def handle(self, request: web.Request) -> web.Response:
        asked = loads(await request.read())
        self.requests.append(asked)
        if self.failures:
            return web.Response(status=self.failures.pop(0))
        grammar = asked["sampling_params"].get("regex")
        if grammar is not None and self.refused:
            return web.Response(status=self.refused, text="Grammar-based generation is not supported")
        answer = self.score(asked) if "logprob_start_len" in asked else self.say(asked, grammar)
        return web.Response(body=dumps(answer), content_type="application/json")

    def say(self, asked: dict[str, Any], grammar: str | None) -> dict[str, Any]:
        texts = [re.sub(r"\\(.)", r"\1", one) for one in grammar.split("|")] if grammar is not None else None
        said, log_probs = self.sample(texts, asked["sampling_params"]["max_new_tokens"])
        finish = "stop" if said[-1] == self.stop else "length"
        if self.aborts:
            cut = self.aborts.pop(0)
            said, log_probs, finish = said[:cut], log_probs[:cut], "abort"
        meta = self._meta(asked, finish, self.version) | {
            "completion_tokens": len(said),
            "output_token_logprobs": [[value, token, None] for value, token in zip(log_probs, said, strict=True)],
        }
        return {"output_ids": said, "meta_info": meta}

    def score(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What the policy alone gives to the tokens of a prompt. What is asked for is one turn, from the token before
        it on."""
        start = asked["logprob_start_len"]
        before, *turn = asked["input_ids"][start:]
        given = [self.policy(turn[:at]).get(token, 0.0) for at, token in enumerate(turn)]
        values = [[math.log(share) if share else None, token, None] for share, token in zip(given, turn, strict=True)]
        meta = self._meta(asked, "length", self.scored_by)
        return {
            "output_ids": [],
            "meta_info": meta | ({"input_token_logprobs": [[None, before, None], *values]} if self.scores else {}),
        }

    def _meta(self, asked: dict[str, Any], finish: str, version: str) -> dict[str, Any]:
        return {
            "finish_reason": {"type": finish},
            "prompt_tokens": len(asked["input_ids"]),
            "cached_tokens": 0,
            "weight_version": version,
        }
