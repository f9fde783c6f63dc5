"""The table of keys in the documentation is the one that the code renders."""

from __future__ import annotations

from pathlib import Path

from tests.launch.key_table import render

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_ends_with_the_rendered_table():
    assert PAGE.read_text(encoding="utf-8").endswith(render()), "python -m tests.launch.key_table renders the new table"
