"""docs/recipes.md says of `qwen3_6_35b_a3b` what is rendered of it, beside SLiME's own example."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.render import render
from slime_swe.recipes.checks import lookup
from slime_swe.recipes.registry import load_recipe
from tests.docs.slime_example import Row, cell, rows

RECIPE = load_recipe("qwen3_6_35b_a3b")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.names[0])
def test_our_column_is_what_is_rendered(row: Row):
    if row.names[0].startswith("--") or row.names[0].isupper():
        job = render(RECIPE, Path("/runs/a"), checkouts=Checkouts(Path("/slime"), Path("/megatron")))
        assert row.ours == cell(row.names, job.words, job.environment)
    else:
        (field,) = row.names
        value = lookup(RECIPE, field)
        assert row.ours == (f"{value:g}" if isinstance(value, float) else f"{value}")


def test_the_table_is_found():
    assert len(rows()) > 25
