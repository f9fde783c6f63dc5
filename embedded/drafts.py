"""Guesses at a request's next tokens, so that one step can compute several of them.

The guesses are checked: a position's token is sampled from logits computed with the true tokens before it, by the same
draw, so whatever is guessed, the result is the same to the last bit (speculative decoding, Leviathan et al. 2023,
arXiv:2211.17192, with an exact match instead of rejection sampling). Only the time depends on them.

An agent copies: what it has just read, and what its siblings on the same task wrote. So a guess continues the text
after an earlier place that looks like the present one: the same eight tokens in anything lately written by any
request, else the same two tokens in the request's own context.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

LONG, SHORT = 8, 2
REMEMBERED = 200_000  # places; a few tens of megabytes


class Drafter:
    def __init__(self, most: int) -> None:
        self.most = most
        self._written: dict[int, int] = {}  # hash of LONG tokens → the token that followed, the last time

    def learn(self, tokens: Sequence[int], start: int) -> None:
        """Remember what was written from position `start` on."""
        if len(self._written) > REMEMBERED:
            self._written.clear()
        for place in range(max(start, LONG), len(tokens)):
            self._written[hash(tuple(tokens[place - LONG : place]))] = tokens[place]

    def guess(self, tokens: list[int], own: OwnPlaces, most: int) -> list[int]:
        """At most `most` tokens that may follow."""
        most = min(most, self.most)
        if most <= 0:
            return []
        last = tuple(tokens[-LONG:])
        guess: list[int] = []
        while len(guess) < most and (token := self._written.get(hash(last))) is not None:
            guess.append(token)
            last = (*last[1:], token)
        return guess if len(guess) > 1 else own.after(tokens, most)


class OwnPlaces:
    """Where each pair of tokens of one context was last seen."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._known = SHORT

    def after(self, tokens: list[int], most: int) -> list[int]:
        """What followed the last two tokens the last time they stood together."""
        end = len(tokens)
        before = tokens[self._known - SHORT : end - 1]
        self._places.update(zip(pairwise(before), range(self._known, end), strict=False))
        self._known = max(self._known, end)
        place = self._places.get((tokens[-2], tokens[-1])) if end >= SHORT else None
        return [] if place is None else tokens[place : place + most]
