"""A run on GPUs is rehearsed once for each version of what the outcome depends on, and refused where a check fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.config import resolve
from slime_swe.launch.preflight import check_rehearsal
from slime_swe.launch.rehearse.checks import Check
from slime_swe.launch.rehearse.proof import fingerprint, kept_at, require_passed
from slime_swe.launch.rehearse.rehearsal import Outcome
from slime_swe.launch.slime.checkouts import Checkouts
from tests.launch.doctor import machines
from tests.launch.rehearse.gpus import node

RECIPE = "qwen3_coder_30b_a3b"
FACTS = {"code": "a"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Played:
    """Rehearsals that end so."""

    def __init__(self, *checks: Check) -> None:
        self.checks, self.folders = checks, list[Path]()

    def __call__(self, folder: Path) -> Outcome:
        self.folders.append(folder)
        return Outcome(RECIPE, "gpu", "2026-01-01", 1.0, {}, self.checks, (), (), "qwen3")


GOOD, BAD = Check("masks", True, 0, 0, "a"), Check("served_weights", False, 0.7, 0.05, "the weight update")
NOT_MADE = Check("memory", None, None, None, "why")


def test_a_rehearsal_that_has_passed_is_not_made_again():
    recipe, played = resolve(RECIPE), Played(GOOD, NOT_MADE)
    for _ in range(2):
        require_passed(recipe, FACTS, played)
    assert len(played.folders) == 1
    kept = json.loads(kept_at(recipe, FACTS).read_bytes())
    assert kept["ok"] and kept["fingerprint"] == FACTS
    require_passed(recipe, {"code": "b"}, played)
    assert len(played.folders) == 2


def test_a_run_whose_rehearsal_fails_is_refused_until_it_passes(tmp_path):
    recipe = resolve(RECIPE, [f"run.dir={tmp_path}"])
    failing = Played(GOOD, BAD)
    for _ in range(2):
        with pytest.raises(UserError, match=r"served_weights: 0\.7, limit 0\.05; look at the weight update") as refused:
            require_passed(recipe, FACTS, failing)
        assert "--no-rehearsal" in str(refused.value) and str(tmp_path) in str(refused.value)
    assert len(failing.folders) == 2
    assert json.loads(kept_at(recipe, FACTS).read_bytes())["ok"] is False
    require_passed(recipe, FACTS, Played(GOOD))


def test_a_check_without_a_finite_value_is_refused_with_its_name(tmp_path):
    recipe = resolve(RECIPE, [f"run.dir={tmp_path}"])
    gone = Check("layout_loss", False, float("inf"), 1e-5, "the split")
    with pytest.raises(UserError, match=r"layout_loss: inf, limit 1e-05; look at the split"):
        require_passed(recipe, FACTS, Played(gone))
    assert json.loads(kept_at(recipe, FACTS).read_bytes())["checks"][0]["value"] == "inf"


def test_a_rehearsal_that_ends_in_an_error_says_how_to_go_on():
    def broken(folder: Path) -> Outcome:
        raise InfrastructureError("train.py ended with code 1")

    with pytest.raises(InfrastructureError, match=r"--no-rehearsal\ntrain\.py ended with code 1"):
        require_passed(resolve(RECIPE), FACTS, broken)


@pytest.fixture
def checkouts(tmp_path):
    for name in ("slime/slime/a.py", "megatron/megatron/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    return Checkouts(tmp_path / "slime", tmp_path / "megatron")


def changed(checkouts, overrides=(), gpus=8):
    """The parts of a fingerprint that differ from the recipe's on eight GPUs."""
    before = fingerprint(resolve(RECIPE), node(8), checkouts)
    after = fingerprint(resolve(RECIPE, overrides), node(gpus), checkouts)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("run.num_rollouts=7", set()),
        ("run.name=a", set()),
        ("data.train=[synthetic:heldout]", set()),
        ("rollout.max_turns=3", set()),
        ("parallel.recompute=none", {"recipe"}),
        ("algorithm.mismatch=icepop", {"recipe"}),
        ("serving.mem_fraction=0.61", {"recipe"}),
        ("model.config.rope_theta=10000", {"recipe"}),
        ("slime.flags.attention-backend=fused", {"recipe"}),
    ],
)
def test_what_is_rehearsed_counts(checkouts, override, parts):
    assert changed(checkouts, [override]) == parts


def test_the_node_and_slime_s_sources_count(checkouts):
    assert changed(checkouts, gpus=4) == {"recipe", "gpus"}
    before = fingerprint(resolve(RECIPE), node(8), checkouts)
    (checkouts.loop / "slime" / "a.py").write_text("2")
    after = fingerprint(resolve(RECIPE), node(8), checkouts)
    assert {name for name in before if before[name] != after[name]} == {"slime"}
    assert before["code"] and before["driver"] == "575.57.08"


@pytest.mark.parametrize("overrides", [[], ["recipe=tiny_cpu", "engine=slime_cpu"]])
def test_engines_without_gpus_are_not_rehearsed(overrides, capsys):
    check_rehearsal(resolve("tiny_cpu", overrides))
    assert capsys.readouterr() == ("", "")


def test_a_machine_that_only_submits_says_so_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    check_rehearsal(resolve(RECIPE))
    assert "this machine has no GPU" in capsys.readouterr().err


def test_nothing_is_rehearsed_where_the_option_says_so(capsys):
    check_rehearsal(resolve(RECIPE), skip=True)
    assert "not rehearsed" in capsys.readouterr().err


def test_a_node_that_can_t_rehearse_is_refused_with_the_way_on(tmp_path, monkeypatch):
    """GPUs are listed, and SLiME is not there."""
    machines.install(tmp_path / "bin", machines.H100)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLIME_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"(?s)train\.py is missing.*--no-rehearsal"):
        check_rehearsal(resolve(RECIPE))
