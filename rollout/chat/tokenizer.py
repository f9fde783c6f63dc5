"""A checkpoint's tokenizer, and the encoding of rendered chat text in which no message can produce control tokens."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError

END_OF_MESSAGE = "<|eom_id|>"  # of Llama 3.1 and later; SGLang ends a turn at it wherever a tokenizer has it
_DIGITS = 16  # of a vocabulary's hash
_REMEMBERED = 256  # texts, of at most so many characters: 12 MB, and as agents show files
_REMEMBERED_LENGTH = 8192
_LONG = 16_384  # characters or tokens, of which other threads should not have to wait for the end
_TEMPLATES = Path(__file__).parent / "templates"
_MOST_ID = (1 << 31) - 1  # of a token
_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")  # names of the class that takes tokenizer.json as it is

Piece = str | int  # of a rendered text: the template's own text, or the number of the message whose content is there
Span = tuple[int, int]  # from a place up to another


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
        """Return the ids of mere text. Short texts are remembered: a group's episodes see the same prompt and files."""
        return self._placed(text)[0]

    def _placed(self, text: str) -> tuple[array[int], array[int]]:
        """Return the ids of mere text, and at which character each of them begins."""
        return self._remember(text) if len(text) <= _REMEMBERED_LENGTH else self._encode_plain(text)

    def _encode_plain(self, text: str) -> tuple[array[int], array[int]]:
        encoding = _encoding(self._plain, text)
        return array("i", encoding.ids), array("i", [start for start, _ in encoding.offsets])

    def whole(self, text: str) -> list[int]:
        """Return the ids of `text` as the tokenizer itself has them, added tokens recognised anywhere."""
        ids: list[int] = _encoding(self._backend, text).ids
        return ids

    def knows(self, token: int) -> bool:
        """Say whether a token of this id is in the vocabulary."""
        return 0 <= token <= _MOST_ID and self._backend.id_to_token(token) is not None

    def decode(self, tokens: Sequence[int]) -> str:
        if len(tokens) <= _LONG:
            text: str = self._backend.decode(tokens, skip_special_tokens=False)
        else:  # as in `_encoding`
            text = self._backend.decode_batch([tokens], skip_special_tokens=False)[0]
        return text

    def ids(self, pieces: Sequence[Piece], contents: Sequence[str]) -> list[int]:
        """Return the ids of a rendered text with these contents, in time that grows mostly with their length."""
        return self.placed(pieces, contents)[0]

    def placed(self, pieces: Sequence[Piece], contents: Sequence[str]) -> tuple[list[int], list[Span]]:
        """Return the ids, and for each content the fewest of them that hold it."""
        ids: list[int] = []
        spans = [(0, 0)] * len(contents)
        for text, inside, control in self._runs(pieces, contents):
            found, begins = self._placed(text)
            for number, start, end in inside:
                first, last = _covering(begins, start, end)
                spans[number] = len(ids) + first, len(ids) + last
            ids += found
            ids += control
        return ids, spans

    def _runs(
        self, pieces: Sequence[Piece], contents: Sequence[str]
    ) -> Iterator[tuple[str, list[tuple[int, int, int]], list[int]]]:
        """Yield each text between two control tokens, which is encoded as a whole; the contents in it, as (number,
        first character, end); and the control token behind it."""
        run, inside = "", []
        for piece in pieces:
            if isinstance(piece, int):
                inside.append((piece, len(run), len(run) + len(contents[piece])))
                run += contents[piece]
                continue
            position = 0
            for match in self.added_pattern.finditer(piece):
                yield run + piece[position : match.start()], inside, [self.ids_of_added[match.group()]]
                run, inside, position = "", [], match.end()
            run += piece[position:]
        yield run, inside, []


def _covering(begins: Sequence[int], start: int, end: int) -> Span:
    """Find the fewest tokens that hold the characters from `start` to `end`, by the character at which each begins."""
    first, last = bisect_left(begins, start), bisect_left(begins, end)
    if start < end and (first == len(begins) or begins[first] > start):
        first -= 1
    return first, max(first, last)


def _encoding(tokenizer: Any, text: str) -> Any:
    """Encode a text, a long one as a batch: only a batch lets other threads run meanwhile."""
    if len(text) <= _LONG:
        return tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.encode_batch([text], add_special_tokens=False)[0]


def shipped_templates() -> dict[str, Path]:
    """Return the paths of this package's chat templates by name."""
    return {path.stem: path for path in sorted(_TEMPLATES.glob("*.jinja"))}


def template_path(name: str) -> Path:
    """Find the file of a shipped template, or at a path. Raises `UserError` with the names that there are."""
    shipped = shipped_templates()
    path = shipped[name] if name in shipped else Path(name)
    if not path.is_file():
        raise UserError(
            f"model.chat_template={name}: there is no such file, and the shipped templates are {', '.join(shipped)}"
        )
    return path


def load_tokenizer(checkpoint: str | Path, chat_template: str = "") -> Any:
    """Load a `transformers` tokenizer of a checkpoint folder or hub name, with another chat template if one is named.

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


def eos_token_ids(checkpoint: str | Path) -> list[int]:
    """Read what a checkpoint's `config.json` and `generation_config.json` name as `eos_token_id`, one id or a list.

    SGLang and the embedded engine end a turn at each of these, whatever a request says; SGLang does so by
    `ModelConfig._get_hf_eos_token_id`, of which both files together count. Neither file has to be there, and what is no
    number of a token is left out. Raises `UserError` for a file that can't be read as JSON.
    """
    named: list[Any] = []
    for file in ("config.json", "generation_config.json"):
        given = read_settings(checkpoint, file).get("eos_token_id")
        named += given if isinstance(given, list) else [given]
    return list(dict.fromkeys(one for one in named if type(one) is int and one >= 0))


def read_settings(checkpoint: str | Path, file: str) -> Mapping[str, Any]:
    """Read a JSON file of a checkpoint folder or hub name; empty where there is none, or it holds no object."""
    path = Path(checkpoint) / file
    if not Path(checkpoint).is_dir():
        from transformers.utils.hub import cached_file  # seconds to import, and a folder needs none of it

        try:
            found = cached_file(checkpoint, file)
        except OSError:
            return {}
        assert found is not None, file
        path = Path(found)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} must be JSON in UTF-8: {error}") from error
    return content if isinstance(content, dict) else {}


def vocabulary_size(checkpoint: str | Path) -> int | None:
    """Return the number of token ids that the model can sample; None if the checkpoint does not say.

    These are the rows of its embedding, often more than the tokenizer has: padding rows can be sampled too.
    """
    from transformers import PretrainedConfig

    config, _ = PretrainedConfig.get_config_dict(checkpoint)
    size: int | None = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size


def vocabulary_of(checkpoint: Path) -> str:
    """Return what tells vocabularies apart: a hash over every token and its id, whatever else `tokenizer.json` says.
    Empty where the folder has none."""
    from tokenizers import Tokenizer

    file = checkpoint / "tokenizer.json"
    if not file.is_file():
        return ""
    ids = sorted(Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True).items(), key=itemgetter(1, 0))
    return sha256(json.dumps(ids).encode()).hexdigest()[:_DIGITS]
