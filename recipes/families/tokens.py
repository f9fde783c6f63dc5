"""`ControlTokens`: the special tokens of a family's tokenizer that its chat template is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControlTokens:
    """control: those in the chat template. ends: of these, the ones that end a turn, the tokenizer's `eos_token` first.
    pad: its `pad_token`.

    words: added tokens that are not special, such as those around a tool call; a tokenizer has those of its template.
    """

    control: tuple[str, ...]
    ends: tuple[str, ...]
    pad: str
    words: tuple[str, ...] = (
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
    )


CHATML = ControlTokens(("<|im_start|>", "<|im_end|>"), ("<|im_end|>",), "<|endoftext|>")
