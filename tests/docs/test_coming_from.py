"""docs/coming_from.md: its commands run, or are refused with the words that stand beside them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slime_swe.launch.cli import parse, run
from slime_swe.launch.plan import rollout
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.registry import load_recipe

ROOT = Path(__file__).parents[2]
GIVEN, _, REFUSED = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8").partition("## What can't be had\n")
NEED_MORE = ("agent", "eval", "tasks")  # a sandbox, an endpoint or the network: they are read, and not run


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"`slime-swe ([^`]*)`", text)]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    """A folder without tasks or runs, and plans of a few simulated steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rollout, "WARM_UP", 1)
    monkeypatch.setattr(rollout, "MEASURED", 2)
    monkeypatch.setattr(rollout, "MOST_TURNS", 300)


@pytest.mark.parametrize("words", commands(GIVEN), ids=" ".join)
def test_what_stands_in_its_place_is_legal(words, capsys):
    assert parse(words)
    if words[0] not in NEED_MORE:
        assert run(words) == 0, capsys.readouterr()


@pytest.mark.parametrize("row", re.findall(r"^\|.*`slime-swe .*\|$", REFUSED, re.MULTILINE))
def test_what_can_not_be_had_is_refused_with_these_words(row, capsys):
    _, command, said, _ = (cell.strip() for cell in row[1:-1].split(" | "))
    assert run(*commands(command)) != 0
    shown = capsys.readouterr()
    assert said in " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`sbatch (\S+)`", GIVEN))))
def test_the_presets_train_the_models_that_are_named(name):
    (recipe,) = re.findall(r"train\.sbatch\" recipe=(\S+)", (ROOT / name).read_text(encoding="utf-8"))
    assert load_recipe(recipe).model.checkpoint.rpartition("/")[2] in GIVEN


def test_the_families_are_named():
    kinds = {kind for family in FAMILIES for kind in load_family(family).model_types}
    assert all(f"`{kind}`" in REFUSED for kind in kinds)
