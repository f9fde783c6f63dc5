"""The seed policy's tokenizer: byte-level pieces made for tool calls and Python.

The scaffold of a tool call, a newline with its indentation, and a word with the space or underscore before it are one
piece each, so that an action is tens of tokens and a name is copied piece by piece.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

VOCAB_SIZE = 1536
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

_PIECES = "|".join(
    (
        r'<tool_call>\n\{"name": "\w+", "arguments": \{(?:"\w+": "|\}\}\n</tool_call>)',
        r'", "\w+": "',
        r'"\}\}\n</tool_call>',
        r"(?:system|user|assistant)\n(?:<tool_response>\n)?",
        r"\n</tool_response>",
        r"tests/test|\.py::test|\.py",
        r"\\n *",
        r"\)?:\n *",
        r'\.?"""\n *',
        r"\n+ *",
        r"[ _]?[A-Za-z]+",
        r" ?\d",
        r' ?(?:[-<>=!+*/]=|//|"""|\(\)|[^\sA-Za-z0-9])',
        r"\s",
    )
)

# ChatML as Qwen writes it, but tools by signature, not by schema: the schemas would be half of every context.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{%- if loop.first and tools %}{{ '\\nTools:' }}
{%- for tool in tools %}{{ ' ' + tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')' }}
{%- endfor %}{% endif -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""


def train_tokenizer(texts: Iterable[str]) -> Any:
    """A `transformers` fast tokenizer with the chat template above; its vocabulary is the commonest pieces of `texts`.

    A piece that is in the vocabulary is one token (`ignore_merges`), any other is spelt in bytes.
    """
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    splitter = _splitter()
    counts: Counter[str] = Counter()
    for text in texts:
        for run in re.split("|".join(map(re.escape, SPECIAL_TOKENS)), text):
            counts.update(piece for piece, _ in splitter.pre_tokenize_str(run))
    words = dict.fromkeys([*SPECIAL_TOKENS, *sorted(splitter_alphabet()), *(w for w, _ in counts.most_common())])
    vocabulary = {word: index for index, word in enumerate(list(words)[:VOCAB_SIZE])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def splitter_alphabet() -> list[str]:
    """The 256 characters that stand for bytes."""
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel.alphabet()


def _splitter() -> Any:
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
