"""docs/what_has_run.md is made from the rehearsals that are recorded, and names what there is."""

from __future__ import annotations

import re

from slime_swe.launch.config import resolve
from slime_swe.launch.rehearse.jobs import digest_of_flags
from slime_swe.recipes.registry import RECIPES
from tests.launch.rehearse.what_has_run import BEFORE, COMMAND, PARTS, REHEARSALS, ROOT, page, rehearsals, same_flags

PAGE = ROOT / "docs" / "what_has_run.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), COMMAND


def test_every_recorded_rehearsal_is_green_and_of_a_recipe():
    recorded = [(folder, outcome) for folder in (REHEARSALS, BEFORE) for outcome in rehearsals(folder)]
    for folder, outcome in recorded:
        assert outcome["ok"], outcome["recipe"]
        assert outcome["recipe"] in RECIPES
        assert (folder / f"{outcome['recipe']}.json").is_file()
        assert all(one["reason"] for one in outcome["differing_flags"])
        assert not [one for one in outcome["differing_flags"] if (one["rehearsed"] or "").startswith("/")]


def test_a_record_says_whether_the_recipe_has_changed_since(monkeypatch, tmp_path):
    own = digest_of_flags(resolve("qwen3_8b"))
    assert same_flags("qwen3_8b", {"flags": own}) == "yes" and same_flags("qwen3_8b", {}) == "not recorded"
    assert same_flags("qwen3_8b", {"flags": digest_of_flags(resolve("qwen3_8b", ["optimizer.lr=1e-7"]))}) == "no"
    monkeypatch.chdir(tmp_path)
    assert digest_of_flags(resolve("qwen3_8b")) == own, "wherever it is asked"


def test_the_files_that_the_page_names_are_there():
    named = {word for _, _, by in PARTS for word in re.findall(r"`((?:tests|benchmarks|launch)/[\w/.]+)`", by)}
    assert named
    assert [word for word in named if not (ROOT / word).exists()] == []


def test_the_readme_s_first_screen_names_the_page():
    head = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40]
    assert any("docs/what_has_run.md" in line for line in head)
