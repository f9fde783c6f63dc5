"""Load a checkpoint's tokenizer as the checkpoint has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")  # names of the class that takes tokenizer.json as it is


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
