"""A rehearsal with SLiME, Megatron and SGLang themselves, and faults planted into its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.launch.config import resolve
from slime_swe.launch.engines import engine_of
from slime_swe.recipes.registry import RECIPES

pytestmark = pytest.mark.timeout(3600)

ROOT = Path(__file__).parents[2]
RECIPE = "qwen3_coder_30b_a3b"
SMALL = ["parallel.tp=1", "parallel.cp=1", "parallel.ep=2", "parallel.max_tokens_per_gpu=65536"]
SMALL += ["cluster.gpus_per_node=2", "serving.gpus_per_engine=2", "serving.ep=2"]
"""Two ranks: what is tested are the checks, not the layout."""
REHEARSED = [name for name in RECIPES if engine_of(resolve(name, [])).rehearsed]
FOUND = {
    "half_of_the_rotation": {"log_probabilities", "layout_log_probabilities"},
    "shifted_masks_and_other_advantages": {"masks", "denominators", "advantages"},
    "lost_optimizer_states": {"resume_weights"},
}


def outcome_of(*words: str):
    """What a module prints, run in a process of its own."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=False
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def rehearsed(slime_home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rehearsal")
    words = [f"recipe={RECIPE}", *SMALL, f"run.dir={folder}", "run.name=a", "--json"]
    return folder / "a", outcome_of("slime_swe.launch.cli", "rehearse", *words)


def test_a_rehearsal_passes_every_check(rehearsed):
    _, outcome = rehearsed
    assert [check for check in outcome["checks"] if not check["ok"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("recipe", REHEARSED)
def test_each_recipe_passes_every_check_that_can_be_made(slime_home, tmp_path, recipe):
    outcome = outcome_of(
        "slime_swe.launch.cli", "rehearse", f"recipe={recipe}", f"run.dir={tmp_path}", "run.name=a", "--json"
    )
    assert [check for check in outcome["checks"] if check["ok"] is False] == []
    assert outcome["ok"] is True


@pytest.mark.slow
def test_faults_are_found_by_their_checks(rehearsed):
    folder, _ = rehearsed
    failed = outcome_of("tests.contract.planted_faults", str(folder), RECIPE, *SMALL)
    assert {name: checks for name, checks in FOUND.items() if not checks <= set(failed[name])} == {}, failed
