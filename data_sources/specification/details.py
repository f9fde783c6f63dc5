"""Whether a docstring says enough of what a function does for someone to write it."""

from __future__ import annotations

import doctest
import re

from slime_swe.data_sources.specification.removal import Definition

LEAST_WORDS = 5
_WORD = re.compile(r"[A-Za-z]{2,}")


def is_enough(definition: Definition) -> bool:
    """At least `LEAST_WORDS` words beside examples, or an example that shows a result and some word. What a class does
    is said by its own docstring."""
    text = definition.docstring
    prose = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(">>>"))
    words = len(set(_WORD.findall(prose)))
    return words >= LEAST_WORDS or (words > 0 and _shows_results(text))


def _shows_results(text: str) -> bool:
    try:
        return any(example.want for example in doctest.DocTestParser().get_examples(text))
    except ValueError:
        return False
