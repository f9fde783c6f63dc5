"""The benchmark of made tasks, on a package of a few lines."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.test_smoke import printed
from tests.data_sources.factory import shop


@pytest.mark.extended("tests/launch/factory/test_make_tasks.py::test_what_was_made_is_counted")
@pytest.mark.slow
@pytest.mark.timeout(620)
def test_it_runs_and_prints_its_figures(tmp_path):
    for needed in ("swesmith", "tree_sitter_rust", "coverage"):
        pytest.importorskip(needed, reason="the extra factory")
    archives = " ".join(map(str, shop.releases(tmp_path)))
    flags = ["--packages", archives, "--tasks", "4", "--sample", "1"]
    found = json.loads(printed("make_tasks", "--json", *flags, seconds=600))
    assert found["releases"] == found["packages"] == found["sound_share"] == 1
    assert found["tasks"] == found["faults"] + 1
