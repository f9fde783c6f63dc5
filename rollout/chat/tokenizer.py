"""A checkpoint's tokenizer, and the encoding of rendered chat text in which no message can produce control tokens."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError

_REMEMBERED = 256  # texts, of at most so many characters: 6 MB, and as agents show files
_REMEMBERED_LENGTH = 8192
_LONG = 16_384  # characters or tokens, of which other threads should not have to wait for the end
_TEMPLATES = Path(__file__).parent / "templates"
_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")  # names of the class that takes tokenizer.json as it is

Piece = str | int  # of a rendered text: the template's own text, or the number of the message whose content is there


class TemplateError(UserError):
    """The tokenizer or its chat template can't be used for token-exact rollouts; the message says which rule fails."""


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
        self._remember = lru_cache(maxsize=_REMEMBERED)(self._encode_plain)
        self._backend = backend
        self._plain = Tokenizer.from_str(json.dumps(plain))
        longest_first = sorted(self.ids_of_added, key=len, reverse=True)
        self.added_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def plain(self, text: str) -> Sequence[int]:
        """Ids of `text` as mere text. Short ones are remembered: a group's episodes see the same prompt and files."""
        return self._remember(text) if len(text) <= _REMEMBERED_LENGTH else self._encode_plain(text)

    def _encode_plain(self, text: str) -> array[int]:
        return array("i", _encode(self._plain, text))

    def whole(self, text: str) -> list[int]:
        """Ids of `text` as the tokenizer itself has them, added tokens recognised anywhere."""
        return _encode(self._backend, text)

    def decode(self, tokens: Sequence[int]) -> str:
        if len(tokens) <= _LONG:
            text: str = self._backend.decode(tokens, skip_special_tokens=False)
        else:  # as in `_encode`
            text = self._backend.decode_batch([tokens], skip_special_tokens=False)[0]
        return text

    def ids(self, pieces: Sequence[Piece], contents: Sequence[str]) -> list[int]:
        """Ids of a rendered text with these contents in it. Costs time in the length of the contents, mostly."""
        ids: list[int] = []
        run = ""  # text between two control tokens, which is encoded as a whole
        for piece in pieces:
            if isinstance(piece, int):
                run += contents[piece]
                continue
            position = 0
            for match in self.added_pattern.finditer(piece):
                ids += self.plain(run + piece[position : match.start()])
                ids.append(self.ids_of_added[match.group()])
                run, position = "", match.end()
            run += piece[position:]
        return [*ids, *self.plain(run)]


def _encode(tokenizer: Any, text: str) -> list[int]:
    """Only a batch lets other threads run meanwhile."""
    if len(text) <= _LONG:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    else:
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def shipped_templates() -> dict[str, Path]:
    """Those of this package, by name."""
    return {path.stem: path for path in sorted(_TEMPLATES.glob("*.jinja"))}


def template_path(name: str) -> Path:
    """The file of a shipped template, or at a path. Raises `UserError` with what there is."""
    shipped = shipped_templates()
    path = shipped[name] if name in shipped else Path(name)
    if not path.is_file():
        raise UserError(
            f"model.chat_template={name}: there is no such file, and the shipped templates are {', '.join(shipped)}"
        )
    return path


def load_tokenizer(checkpoint: str | Path, chat_template: str = "") -> Any:
    """A `transformers` tokenizer of a checkpoint folder or hub name, with another chat template where one is named.

    A folder that names the generic class gets that class. `AutoTokenizer` of transformers 5 goes by `model_type`
    instead: it silently puts Qwen's own pre-tokenizer on the vocabulary of any `qwen2` checkpoint.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # seconds to import, and only this needs it

    config = Path(checkpoint) / "tokenizer_config.json"
    named = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class") if config.is_file() else None
    loader = PreTrainedTokenizerFast if named in _GENERIC else AutoTokenizer
    tokenizer = loader.from_pretrained(checkpoint)
    if chat_template:
        tokenizer.chat_template = template_path(chat_template).read_text(encoding="utf-8")
    return tokenizer


def vocabulary_size(checkpoint: str | Path) -> int | None:
    """The number of token ids that the model can sample; None if the checkpoint does not say.

    These are the rows of its embedding, often more than the tokenizer has: padding rows can be sampled too.
    """
    from transformers import PretrainedConfig

    config, _ = PretrainedConfig.get_config_dict(checkpoint)
    size: int | None = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size
