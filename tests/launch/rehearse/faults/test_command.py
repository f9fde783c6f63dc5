"""The word `faults` among a recipe's overrides, and how outcomes are shown."""

from __future__ import annotations

import json

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.rehearse.checks import Check
from slime_swe.launch.rehearse.faults import DRILLS, MOMENTS, PARTS, Drill, chosen
from slime_swe.launch.rehearse.faults.drill import INJECTIONS, drilled
from slime_swe.launch.rehearse.faults.outcome import Outcome, document, show
from slime_swe.launch.slime.render import render_flags
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.sglang_cpu import serving
from tests.launch.rehearse.small import small_recipe


def test_the_word_alone_asks_for_every_part_at_every_moment():
    drills, others = chosen(["recipe=a", "faults", "run.name=b"])
    assert tuple(drills) == DRILLS and len(DRILLS) == len(PARTS) * len(MOMENTS)
    assert others == ["recipe=a", "run.name=b"]
    assert chosen(["faults=all"])[0] == drills


def test_parts_and_single_drills_are_named():
    drills, _ = chosen(["faults=engine,rank.save,engine.step"])
    assert drills == [*(Drill("engine", moment) for moment in MOMENTS), Drill("rank", "save")]


def test_without_the_word_nothing_is_drilled():
    assert chosen(["recipe=a"]) == ([], ["recipe=a"])


def test_an_unknown_part_is_refused_with_those_there_are(capsys):
    with pytest.raises(UserError, match="Did you mean 'engine'"):
        chosen(["faults=engin"])
    assert run(["rehearse", "recipe=qwen25_coder_1_5b", "faults=disk.lunch"]) == 2
    assert "disk.save" in capsys.readouterr().err


def test_there_are_two_of_what_fails_and_one_of_the_rest(tmp_path):
    recipe, _ = small_recipe(tmp_path)
    counted = {}
    for drill in DRILLS:
        found = drilled(recipe, drill)
        counted[drill.part] = (found.cluster.gpus_per_node, serving(found)["rollout_num_gpus"])
        assert found.run.save_interval == found.run.keep_checkpoints == 1
    assert {part: counts for part, counts in counted.items() if counts != (1, 1)} == {
        "engine": (1, 2),
        "hung_engine": (1, 2),
        "rank": (2, 1),
        "network": (1, 2),
    }


def test_of_two_nodes_each_has_one_engine_whose_ports_are_its_own(tmp_path):
    recipe, _ = small_recipe(tmp_path)
    argv = render_flags(drilled(recipe, Drill("network", "rollout")), {"serving": serving(recipe)}, SLIME)
    words = [word for group in argv.values() for word in group]
    assert words.count("--num-gpus-per-node") == 1
    assert words[words.index("--num-gpus-per-node") + 1] == "1"
    assert {name for name, part in PARTS.items() if part.nodes > 1} == {"network"}


def test_who_fails_by_no_signal_has_a_way_of_its_own():
    assert {name for name, part in PARTS.items() if not part.title} == {*INJECTIONS, "machine"}


def test_a_broken_promise_is_shown_and_fails_the_drill(capsys):
    kept, broken = Check("resumed", True, 0, 0, "a page"), Check("processes", False, 2, 0, "another page")
    outcomes = [
        Outcome("rank", "step", "a_recipe", "2026-01-01", "hangs", 240.4, 8, 1, "the model's weights", (), promises)
        for promises in ((kept,), (kept, broken))
    ]
    found = json.loads(json.dumps(document(outcomes)))
    assert (found["ok"], [drill["ok"] for drill in found["drills"]]) == (False, [True, False])
    show(outcomes)
    text = " ".join(capsys.readouterr().out.split())
    assert "rank.step: processes is 2, at most 0: another page" in text
    assert "hangs" in text and "1 of 2" in text
