"""Which docstrings say enough."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst")

from slime_swe.data_sources.specification.source import Definition
from slime_swe.data_sources.specification.tasks import is_enough


@pytest.mark.parametrize(
    ("docstring", "enough"),
    [
        ("The sum of all given prices.", True),
        ("Do it.", False),
        ("", False),
        ("it it it it it it", False),
        ("Twice.\n\n>>> f(1)\n2\n", True),
        (">>> f(1)\n2\n", False),
        ("Twice.\n\n>>> import a, b, c, d, e\n", False),
        ("Twice.\n  >>> f(1)\n 2\n", False),  # no doctest that can be read
    ],
)
def test_words_count_and_examples_that_show_a_result(docstring, enough):
    assert is_enough(Definition("f", (1, 2), "", docstring, 1)) is enough
