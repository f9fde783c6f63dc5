"""Text of tokens and tokens of text, and which tokens end a turn; from the files of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from slime_swe.embedded.weights import CheckpointError
from slime_swe.rollout.chat.tokenizer import END_OF_MESSAGE, eos_token_ids, read_settings


class Detokenizer:
    """`tokenizer.json` by itself: no chat template, no Python tokenizer class."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{directory} has no tokenizer.json; a checkpoint with a fast tokenizer is needed")
        self._tokenizer = Tokenizer.from_file(str(path))
        self.eos_ids = self._eos_ids(directory)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def _eos_ids(self, directory: Path) -> frozenset[int]:
        """What SGLang stops at: `eos_token_id` of the model's configurations, the tokenizer's `eos_token`, and Llama's
        end of a message."""
        token = read_settings(directory, "tokenizer_config.json").get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        named = [self._tokenizer.token_to_id(text) for text in (content, END_OF_MESSAGE) if text]
        return frozenset([*eos_token_ids(directory), *(found for found in named if found is not None)])
