"""How alike two pieces of code are, by runs of tokens as BLEU counts them (Papineni et al., 2002).

A constant, a returned argument and a quotation share no run with code that does something: unlike a ratio of
characters, the measure gives them nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

GRAM = 4  # tokens of a run
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)'
    r"|'''(?:\\.|[^\\])*?(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'(?:\\.|[^'\\\n])*'?"
    r"|\#[^\n]*|\w+|[^\w\s]",
    re.DOTALL,
)


def shared_runs(a: Mapping[str, str], b: Mapping[str, str]) -> float:
    """Of texts by their paths: twice the runs of `GRAM` tokens that both have in one file over all of both, 0 to 1;
    0 where neither has any. A string is one token, and Python's comments count for nothing."""
    left, right = _runs(a), _runs(b)
    every = left.total() + right.total()
    return 2 * (left & right).total() / every if every else 0.0


def _runs(texts: Mapping[str, str]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for path, text in texts.items():
        tokens = [token for token in _TOKEN.findall(text) if not token.startswith("#")]
        found.update((path, *tokens[first : first + GRAM]) for first in range(len(tokens) - GRAM + 1))
    return found
