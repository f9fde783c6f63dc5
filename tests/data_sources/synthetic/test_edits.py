from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slime_swe.data_sources.synthetic.edits import as_replacement

BEFORE = "def f(a):\n    b = a\n    return b\n"


def test_one_changed_line() -> None:
    assert as_replacement(BEFORE, BEFORE.replace("b = a", "b = -a")) == ("b = a", "b = -a")


def test_added_lines_come_with_the_line_that_follows() -> None:
    after = BEFORE.replace("    return b", "    if b:\n        b = 1\n    return b")
    assert as_replacement(BEFORE, after) == ("return b", "if b:\n        b = 1\n    return b")


def test_removed_lines_take_the_line_that_follows() -> None:
    assert as_replacement(BEFORE, BEFORE.replace("    b = a\n", "")) == ("b = a\n    return b", "return b")


def test_a_line_that_is_not_unique_cannot_be_replaced() -> None:
    assert as_replacement("a = 1\nb = 2\na = 1\n", "a = 1\nb = 2\na = 3\n") is None


lines = st.lists(st.sampled_from(["a = 1", "    b = 2", "return c", "", "    if d:"]), min_size=1, max_size=8)


@given(lines, lines)
def test_a_replacement_does_what_it_says(before: list[str], after: list[str]) -> None:
    old, new = "\n".join(before) + "\n", "\n".join(after) + "\n"
    if old == new:
        return
    replacement = as_replacement(old, new)
    if replacement is not None:
        assert old.count(replacement[0]) == 1
        assert old.replace(*replacement) == new
