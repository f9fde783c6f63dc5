"""A replay of a run's own settings gives what the run recorded; where it does not, it says so and fails."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from slime_swe.launch.cli import run
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.launch.slime_cpu.run import read_figures
from slime_swe.rollout import slime_plugin
from tests.launch.replay.made import Played, refused, replayed, samples_of

pytestmark = pytest.mark.timeout(600)  # for the real run, on a busy machine

YES, NO = Played(True), Played(False)


@pytest.fixture
def copied(trained_run, tmp_path) -> Path:
    folder = tmp_path / "copied"
    folder.mkdir()
    for name in ("recipe.yaml", "episodes.jsonl", "metrics.jsonl", "trained.jsonl"):
        shutil.copy(trained_run / name, folder / name)
    return folder


def changed_line(path: Path, number: int, **changes: object) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[number] |= changes
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_real_run_is_reproduced(trained_run, capsys):
    document = replayed(capsys, trained_run)
    check, lines = document["check"], [json.loads(line) for line in (trained_run / "metrics.jsonl").open()]
    assert check["holds"] and not check["differences"] and check["rollouts_without_metrics"] == 0
    assert {"samples trained otherwise": 2, "largest difference of an advantage": 2}.items() <= check[
        "compared"
    ].items()
    assert {"trained_tokens": 2, "pg_loss": 2, "masked": 2, "reward/overlong_turns": 2}.items() <= check[
        "compared"
    ].items()
    trained = [line["trained_tokens"] for line in lines if line["kind"] == "train"]
    assert [rollout["before"]["tokens"]["trained"] for rollout in document["rollouts"]] == trained and all(trained)
    assert any(abs(line["pg_loss"]) > 1e-3 for line in lines if line["kind"] == "train"), "or it shows nothing"
    assert document["before"]["episodes"]["masked"] > 0 and document["before"]["groups"]["trained"] == 4


def test_the_same_settings_given_as_others_change_nothing(trained_run, capsys):
    """The two sides are computed apart; all that is said of them must be equal."""
    document = replayed(capsys, trained_run, "algorithm.steps_per_rollout=2")
    again = replayed(capsys, trained_run, "algorithm.estimator=gspo")
    assert again["before"] == again["after"] == document["before"]
    assert again["changes"] == {
        "flipped": 0, "gained": 0, "lost": 0, "correlation": pytest.approx(1), "gradient": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("std_normalization: true", "std_normalization: false", "pg_loss"),
        ("std_normalization: true", "std_normalization: false", "largest difference of an advantage"),
        ("  - max_turns\n", "", "samples left out otherwise"),
        ("batch_size: 2", "batch_size: 1", "groups dropped: not_needed"),
        ("group_filter: slime_swe.rewards.slime_plugin.keep_group", "group_filter: ''", "groups dropped: "),
    ],
)
def test_a_recipe_that_is_not_the_runs_is_found_out(copied, capsys, before, after, said):
    path = copied / "recipe.yaml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    document = replayed(capsys, copied, code=1)
    assert any(said in line for line in document["check"]["differences"])


def test_a_record_that_was_changed_is_found_out(copied, capsys):
    line = json.loads((copied / "episodes.jsonl").open().readline())
    changed_line(copied / "episodes.jsonl", 0, reward=line["reward"] + 1)
    assert run(["replay", str(copied)]) == 1
    said = capsys.readouterr().out
    assert (
        said.startswith("check: FAILED. The run's own settings give something else") and "rollout 0: reward is" in said
    )


def test_an_advantage_that_the_run_recorded_otherwise_is_found_out(copied, capsys):
    line = json.loads((copied / "trained.jsonl").open().readline())
    changed_line(copied / "trained.jsonl", 0, advantage=line["advantage"] + 0.125)
    document = replayed(capsys, copied, code=1)
    assert document["check"]["differences"] == [
        "rollout 0: largest difference of an advantage is 0.125, and 0 was recorded"
    ]


def test_without_metrics_only_the_masks_can_be_compared(copied, capsys):
    (copied / "metrics.jsonl").unlink()
    (copied / "trained.jsonl").unlink()
    assert run(["replay", str(copied)]) == 0
    assert "2 rollouts have no line in metrics.jsonl" in capsys.readouterr().out


@pytest.mark.extended("tests/launch/replay/test_check.py::test_a_real_run_is_reproduced")
@pytest.mark.slow
def test_a_run_that_carries_groups_over_and_takes_two_steps_is_reproduced(tmp_path, capsys):
    from tests.e2e.conftest import cli_in

    words = ["rollout.batch_size=4", "rollout.samples_per_task=4", "run.num_rollouts=3", "data.eval={}"]
    more = ["rollout.schedule=carry", "serving.concurrency=8", "run.name=carried"]
    result = cli_in(tmp_path)("train", "--ignore-integrity", "recipe=tiny_cpu", *words, *more, "--json")
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "runs" / "carried"
    document = replayed(capsys, folder, "rollout.max_staleness=0")
    assert document["check"]["holds"] and document["before"]["groups"]["dropped"] == {}
    assert document["after"]["groups"]["dropped"].get("too_stale"), "some episodes were begun under older weights"


@pytest.fixture
def under_slime(tmp_path) -> Path:
    """What SLiME's hook writes: the groups that are trained, and nothing of those that the filter dropped."""
    settings = "rollout.batch_size=2", "algorithm.steps_per_rollout=1", "algorithm.rollout_logprobs=false"
    words = "algorithm.group_filter=slime_swe.rewards.slime_plugin.keep_group", *settings
    folder = create_run(resolve("tiny_cpu", ["engine=slime_cpu", "run.name=slime", f"run.dir={tmp_path}", *words]))
    args = Namespace(swe_run_dir=str(folder), swe_attempt=1, reward_key=None)
    for rollout in (0, 1):
        kept = samples_of([[YES, NO, NO], [YES, YES, Played(False, tokens=(8,))]], 6 * rollout, 5 * rollout)
        slime_plugin.log_rollout(rollout, args, kept, {"rollout/dynamic_filter/drop_all_solved": 3}, 1.0)
    tensorboard = tmp_path / "tensorboard"
    tensorboard.mkdir()
    lines = read_figures(folder, tensorboard, steps=1, rollouts=2, limits={})
    lines = [line | {"rollout/dynamic_filter/drop_all_solved": 3} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_record_of_slimes_hook_is_reproduced_without_the_groups_that_it_lacks(under_slime, capsys):
    document = replayed(capsys, under_slime, "algorithm.reduction=token")
    assert document["check"]["holds"] and document["check"]["compared"]["groups/informative"] == 2
    assert document["before"]["groups"] == {"recorded": 4, "trained": 4, "missing": 0, "dropped": {}}
    assert document["after"]["weight"]["gradient_of_longest"] > document["before"]["weight"]["gradient_of_longest"]


def test_what_slimes_hook_does_not_record_can_not_be_asked_about(under_slime, capsys):
    assert "records only what the run's filter kept" in refused(capsys, under_slime, "algorithm.group_filter=")
    assert run(["replay", str(under_slime), "algorithm.std_normalization=true"]) == 0
    assert "what its filter dropped is lost" in capsys.readouterr().out


def test_a_group_in_slimes_record_that_the_filter_would_drop_is_found_out(under_slime, capsys):
    path = under_slime / "episodes.jsonl"
    first = json.loads(path.open().readline())
    changed_line(path, 0, score={**first["score"], "solved": False})
    document = replayed(capsys, under_slime, code=1)
    assert "rollout 0: groups dropped: all_unsolved is 1, and 0 was recorded" in document["check"]["differences"]
