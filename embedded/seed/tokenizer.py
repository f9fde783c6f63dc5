"""The seed policy's tokenizer: byte-level pieces made for tool calls and Python.

The scaffold of a tool call, a newline with its indentation and an operator with its spaces are one piece each, so that
an action is tens of tokens; a name is one piece, or two of which the second starts with its underscore.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VOCAB_SIZE = 1280
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# Words of the language, the templates and the tools take the spaces around them; names take none. So a piece of a name
# is the same token wherever it stands, and copying it is copying a token. (With a space or an underscore inside the
# pieces a name has three forms, and 700 steps of training did not learn to turn one into another.)
_WORDS = """
    Add All Cost Count Distance Each Edited Error False Files First Hours How In Index KeyError Keys Largest Last
    Length Level Limit List Longest Minutes None Numbers Pay Percent Place Please Price Product Repair Running
    Share Smallest Split Stock Sum Sums Steps TypeError The Tests Tools Total True Value Whether Whole Border
    Second S A An a above add after all and append are as assert at back backwards bash be before below between by
    called capitals code command copy count counts cut dash def dict differs divides double doubled each empty
    enumerate equal even exchanged exit fail failed first fit fits for found front from get half hours how if
    import in instead is it items keys largest last least left len less letters line list max min minus minutes
    most much must negative neighbours never new no not number numbers occurrences occurs odd of often old once
    one or order others passed path percent plus price products range reads red rejected repair repeats reports
    rest result results return returns reversed rounds run same short show sorted squares step str strictly submit
    sum than that the their then there this times to too tests two upper use user values view when whether with
    without wrong year zeros zip builds build code lower too few
"""

_PIECES = "|".join(
    (
        r"<tool_call>\n<function=\w+>\n(?:<parameter=\w+>\n|</function>\n</tool_call>)",
        r"\n</parameter>\n(?:<parameter=\w+>\n|</function>\n</tool_call>)",
        r"(?:system|user|assistant)\n(?:<tool_response>\n)?",
        r"\n</tool_response>",
        r"tests/test_|\.py::test_|\.py|_more\b|FAILED |\[exit code ",
        r"\)?:\n *",
        r"\n+ *",
        rf" ?\b(?:{'|'.join(sorted(set(_WORDS.split())))})\b ?",
        r" (?:[-<>=!+*/]=|//|[-+*/%<>=]) ",
        r", ",
        r"_?[A-Za-z]+",
        r"\d",
        r"[-<>=!+*/]=|//|\(\)|[^\sA-Za-z0-9]",
        r"\s",
    )
)

# ChatML as Qwen writes it, but tools by signature, not by schema: the schemas would be half of every context.
CHAT_TEMPLATE = Path(__file__).parent / "checkpoint" / "chat_template.jinja"


def train_tokenizer(texts: Iterable[str]) -> Any:
    """Make a `transformers` fast tokenizer with the chat template above.

    Its vocabulary is the commonest pieces of `texts`. A piece that is in it is one token (`ignore_merges`), any other
    is spelt in bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    splitter = _splitter()
    counts: Counter[str] = Counter()
    for text in texts:
        for run in re.split("|".join(map(re.escape, SPECIAL_TOKENS)), text):
            counts.update(piece for piece, _ in splitter.pre_tokenize_str(run))
    words = dict.fromkeys(
        [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(w for w, _ in counts.most_common())]
    )
    vocabulary = {word: index for index, word in enumerate(list(words)[:VOCAB_SIZE])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
    )


def _splitter() -> Any:
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
