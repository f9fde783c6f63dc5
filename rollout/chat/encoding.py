"""Tokenise rendered chat text so that only the template, never a message, can produce control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_REMEMBERED_LENGTH = 16_384  # characters


class TemplateError(ValueError):
    """The tokenizer or its chat template can't be used for token-exact rollouts; the message says which rule fails."""


@dataclass(frozen=True)
class Slot:
    """The place of message number `index`'s content in a rendered text."""

    index: int


@dataclass(frozen=True)
class Run:
    """Text between two control tokens that holds messages, so that it can only be encoded once they are known."""

    pieces: tuple[str | Slot, ...]

    def fill(self, contents: Sequence[str]) -> str:
        return "".join(contents[piece.index] if isinstance(piece, Slot) else piece for piece in self.pieces)


class Encoder:
    """A `tokenizers` pipeline taken apart: the added tokens on one side, the plain text model on the other.

    Tokenizers split a text at added tokens before anything else, so encoding what lies between them piece by piece
    gives the very same ids (`ChatTemplate` proves it for the tokenizer in use) as long as no message holds the text of
    such a token. Where one does ("<|im_end|>" in a file that the agent reads), it stays plain text here.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TemplateError(
                f"{type(tokenizer).__name__} is not a fast tokenizer: the checkpoint needs a tokenizer.json"
            )
        from tokenizers import Tokenizer

        description = json.loads(backend.to_str())
        added = description.pop("added_tokens")
        self.ids_of_added: dict[str, int] = {token["content"]: token["id"] for token in added}
        plain = {**description, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._remember = lru_cache(maxsize=512)(self._encode_plain)
        self._backend = backend
        self._plain = Tokenizer.from_str(json.dumps(plain))
        longest_first = sorted(self.ids_of_added, key=len, reverse=True)
        self._added_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def plain(self, text: str) -> Sequence[int]:
        """Ids of `text` as mere text. Short ones are remembered: a group's episodes see the same prompt and files."""
        return self._remember(text) if len(text) <= _REMEMBERED_LENGTH else self._encode_plain(text)

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def whole(self, text: str) -> list[int]:
        """Ids of `text` as the tokenizer itself has them, added tokens recognised anywhere."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._backend.decode(tokens, skip_special_tokens=False)
        return text

    def holds_added(self, text: str) -> bool:
        return self._added_pattern.search(text) is not None

    def leading_added(self, text: str) -> str | None:
        """The added token that `text` starts with."""
        match = self._added_pattern.match(text)
        return match.group() if match else None

    def compile(self, pieces: Sequence[str | Slot]) -> Scaffold:
        """Prepare a rendered text, given as the template's own text and the slots of messages in it."""
        parts: list[Sequence[int] | Run] = []
        run: list[str | Slot] = []
        for piece in pieces:
            if isinstance(piece, Slot):
                run.append(piece)
                continue
            position = 0
            for match in self._added_pattern.finditer(piece):
                parts.append(self._close([*run, piece[position : match.start()]]))
                parts.append([self.ids_of_added[match.group()]])
                run, position = [], match.end()
            run.append(piece[position:])
        parts.append(self._close(run))
        return Scaffold(self, tuple(parts))

    def _close(self, pieces: Sequence[str | Slot]) -> Sequence[int] | Run:
        """A run without slots is encoded once and for all."""
        run = Run(tuple(pieces))
        return run if any(isinstance(piece, Slot) for piece in pieces) else self.plain(run.fill(()))


@dataclass(frozen=True)
class Scaffold:
    """A rendered text whose control tokens are fixed and whose message contents are still open."""

    encoder: Encoder
    parts: tuple[Sequence[int] | Run, ...]

    def fill(self, contents: Sequence[str]) -> list[int]:
        """Ids of the text with these contents in its slots. Costs time in the length of the contents."""
        ids: list[int] = []
        for part in self.parts:
            ids += self.encoder.plain(part.fill(contents)) if isinstance(part, Run) else part
        return ids
