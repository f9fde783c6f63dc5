"""A checkpoint's tokenizer, and the encoding of rendered chat text in which no message can produce control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError

_REMEMBERED_LENGTH = 16_384  # characters
_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")  # names of the class that takes tokenizer.json as it is


class TemplateError(UserError):
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


def load_tokenizer(checkpoint: str | Path) -> Any:
    """A `transformers` tokenizer of a checkpoint folder or hub name.

    A folder that names the generic class gets it. `AutoTokenizer` of transformers 5 goes by `model_type` instead: it
    puts Qwen's own pre-tokenizer on the vocabulary of any `qwen2` checkpoint, without a word.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # seconds to import, and only this needs it

    config = Path(checkpoint) / "tokenizer_config.json"
    named = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class") if config.is_file() else None
    loader = PreTrainedTokenizerFast if named in _GENERIC else AutoTokenizer
    return loader.from_pretrained(checkpoint)


def vocabulary_size(checkpoint: str | Path) -> int | None:
    """How many token ids the model can sample; None where the checkpoint does not say.

    These are the rows of its embedding, which are often more than the tokenizer has: padding can be sampled too.
    """
    from transformers import PretrainedConfig

    config, _ = PretrainedConfig.get_config_dict(checkpoint)
    size: int | None = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size
