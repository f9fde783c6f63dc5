"""Cut tool results so that they fit what is left of the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MIN_SHOWN = 80  # characters: a result cut shorter than this would tell the policy nothing


def fit(texts: Sequence[str], encode: Callable[[list[str]], list[int]], room: int) -> list[int] | None:
    """`encode(texts)`, with the texts cut as little as needed for at most `room` tokens; None where that is no use.

    All texts are cut at one length, the largest that fits, so that short ones stay whole.
    """
    tokens = encode(list(texts))
    if len(tokens) <= room:
        return tokens
    fitting = None
    low, high = MIN_SHOWN, max(map(len, texts))
    while low <= high:
        middle = (low + high) // 2
        tokens = encode([cut(text, middle) for text in texts])
        if len(tokens) <= room:
            fitting, low = tokens, middle + 1
        else:
            high = middle - 1
    return fitting


def cut(text: str, length: int) -> str:
    """The text's first and last parts, `length` characters in all, with a marker that says how many are missing."""
    if len(text) <= length:
        return text
    head = length // 2
    return f"{text[:head]}\n[cut: {len(text) - length} characters]\n{text[len(text) - (length - head) :]}"
