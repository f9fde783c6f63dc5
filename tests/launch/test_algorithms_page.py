"""`docs/algorithms.md`: every row rendered, and both engines asked."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.launch.engines.miles import MILES
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.render import render
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.base import Algorithm

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
ROWS = re.findall(
    r"^\| `(\w+=[^`]+)` \| (.*?) \| .* \| (yes|no: .*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)
CHECKOUTS = Checkouts(Path("/slime"), Path("/megatron"))
UPSTREAMS = {"slime": SLIME, "miles": MILES}
PLAIN = [f"algorithm.{said}" for said in (
    "mismatch=none", "reduction=trajectory", "std_normalization=true", "routing_replay=none", "steps_per_rollout=2",
)]  # fmt: skip
OWN = "algorithm.rollout_logprobs=false"  # with the server's there is no mismatch left to correct


def flags(overrides: list[str]) -> dict[str, list[str]]:
    recipe = resolve("qwen3_coder_30b_a3b_async", [*PLAIN, *overrides])
    upstream = UPSTREAMS[recipe.engine]
    return dict(split(render(recipe, Path("/runs/a"), upstream=upstream, checkouts=CHECKOUTS).words))


@pytest.mark.parametrize(("settings", "named", "_"), ROWS, ids=[settings for settings, *_ in ROWS])
def test_a_row_names_the_flags_that_its_settings_change(settings, named, _):
    engine = "engine=miles" if "lora_" in settings else "engine=slime"
    before, after = flags([engine]), flags([engine, *(f"algorithm.{setting}" for setting in settings.split())])
    said = {flag: value for flag, value in re.findall(r"`(--[a-z0-9-]+) ?([^`]*)`", named)}
    changed = {flag for flag in after if after[flag] != before.get(flag)}
    assert changed <= set(said) <= set(after)
    assert {flag: after[flag] for flag, value in said.items() if value} == {
        flag: [value] for flag, value in said.items() if value
    }


@pytest.mark.parametrize(("settings", "_", "embedded"), ROWS, ids=[settings for settings, *_ in ROWS])
def test_a_row_says_whether_the_embedded_engine_takes_it(settings, _, embedded):
    overrides = [OWN, *(f"algorithm.{setting}" for setting in settings.split())]
    if embedded == "yes":
        resolve("tiny_cpu", overrides)
    else:
        with pytest.raises(UserError, match=rf"^algorithm\.{settings.split()[-1].partition('=')[0]}="):
            resolve("tiny_cpu", overrides)


def test_the_table_has_every_field_of_algorithm():
    named = {setting.partition("=")[0] for settings, *_ in ROWS for setting in settings.split()}
    assert named == {field.name for field in dataclasses.fields(Algorithm)}
