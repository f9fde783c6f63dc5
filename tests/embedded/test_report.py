"""The summary's keys are what people and scripts read: they are frozen here."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from slime_swe.embedded.report import draw_curve, summarize, write_curve, write_summary


def evaluation(name: str, moment: str, rollout_id: int, solved: list[int]) -> dict:
    return {
        "kind": "eval", "name": name, "moment": moment, "rollout_id": rollout_id, "episodes": len(solved),
        "tasks": len(solved), "infrastructure_failures": 0, "solved": sum(solved),
        "solve_rate": sum(solved) / len(solved), "interval": [0.1, 0.9], "reward": 0.0, "first_edit_solve_rate": 0.2,
        "turns": 5.0, "edits": 1.5, "stop_reasons": {"submitted": 1.0},
        "outcomes": {f"t{i}": [value] for i, value in enumerate(solved)},
    }  # fmt: skip


def step(rollout_id: int, reward: float | None) -> dict:
    means = {} if reward is None else {"reward": reward, "solve_rate": (reward + 1) / 2}
    return {
        "kind": "train", "rollout_id": rollout_id, "infrastructure_failures": 1, "logprob_diff_max": 1e-5, **means,
    }  # fmt: skip


RECORDS = [
    evaluation("heldout", "before", -1, [0, 0, 1, 0]),
    evaluation("unseen", "before", -1, [0, 0]),
    step(0, -0.5),
    evaluation("heldout", "during", 0, [0, 1, 1, 0]),
    step(1, None),
    evaluation("heldout", "after", 1, [1, 1, 1, 0]),
    evaluation("unseen", "after", 1, [0, 1]),
]
ARGS = Namespace(
    swe_eval_tasks={"heldout": "a", "unseen": "b"}, seed=7, num_rollout=2, rollout_batch_size=4,
    n_samples_per_prompt=2, swe_run_dir="runs/x", swe_max_turns=4, rollout_max_context_len=640,
)  # fmt: skip


def test_summary():
    summary = summarize(ARGS, RECORDS, {"training": 1.0}, 12.5)
    figures = (
        "solve_rate", "interval", "episodes", "tasks", "infrastructure_failures", "first_edit_solve_rate",
        "edits_per_episode", "turns_per_episode", "stop_reasons",
    )  # fmt: skip
    expected = {f"{p}_{f}_{m}" for p in ("heldout", "unseen_bug_class") for f in figures for m in ("before", "after")}
    assert summary.keys() == expected | {
        "heldout_paired", "unseen_bug_class_paired", "reward_per_step", "solve_rate_per_step",
        "nothing_trained_because", "infrastructure_failures", "logprob_diff_max", "wall_seconds", "seconds_by_phase",
        "alarms", "seed", "max_turns", "max_context", "num_rollouts", "episodes_per_rollout", "run_dir",
    }  # fmt: skip
    assert summary["heldout_solve_rate_before"] == 0.25 and summary["heldout_solve_rate_after"] == 0.75
    assert summary["unseen_bug_class_solve_rate_after"] == 0.5
    assert summary["heldout_paired"] == {"pairs": 4, "gained": 2, "lost": 0, "p_value": 0.5}
    assert summary["reward_per_step"] == [-0.5, None]
    assert (summary["wall_seconds"], summary["seed"], summary["num_rollouts"]) == (12.5, 7, 2)
    assert summary["episodes_per_rollout"] == 8 and summary["infrastructure_failures"] == 2


def test_summary_of_a_run_without_evaluations():
    summary = summarize(Namespace(**{**vars(ARGS), "swe_eval_tasks": None}), RECORDS[2:3], {}, 1.0)
    assert summary["reward_per_step"] == [-0.5] and "heldout_solve_rate_before" not in summary


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ([0.0, 0.0], "no episode was solved"),
        ([1.0, None], "every episode was solved"),
        ([0.0, 1.0], "every advantage was zero"),
        ([None], "infrastructure broke every episode"),
    ],
)
def test_a_run_that_trained_nothing_says_why(rates, why):
    steps = [step(number, None) | {"trained_tokens": 0, "solve_rate": rate} for number, rate in enumerate(rates)]
    assert summarize(ARGS, steps, {}, 1.0)["nothing_trained_because"].startswith(why)
    trained = step(len(steps), 0.5) | {"trained_tokens": 3}
    unknown = step(len(steps), 0.5)  # SLiME does not count them
    for records in ([*steps, trained], [*steps, unknown], []):
        assert summarize(ARGS, records, {}, 1.0)["nothing_trained_because"] is None


@pytest.mark.parametrize("records", [RECORDS, RECORDS[2:3], []])
def test_files(tmp_path, records):
    write_summary(tmp_path, summarize(ARGS, records, {}, 1.0))
    assert json.loads((tmp_path / "summary.json").read_text())["num_rollouts"] == 2
    write_curve(tmp_path, records)
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learning_curve.png", "summary.json"]


def test_the_learning_curve_shows_solve_rate_reward_and_stop_reasons():
    shares = [{"stop/submitted": 0.75, "stop/max_turns": 0.25, "stop/gave_up": 0.0}, {"stop/max_turns": 1.0}]
    steps = [step(number, 0.5 * number) | each for number, each in enumerate(shares)]
    rates, rewards, reasons = draw_curve([*RECORDS[:2], *steps]).axes
    assert [axes.get_ylabel() for axes in (rates, rewards, reasons)] == [
        "solve rate", "mean reward", "share of stop reasons",
    ]  # fmt: skip
    assert list(rates.lines[0].get_ydata()) == [0.5, 0.75] and list(rewards.lines[0].get_ydata()) == [0.0, 0.5]
    assert [text.get_text() for text in reasons.get_legend().get_texts()] == ["max turns", "submitted"]  # as they lie
    submitted, max_turns = ([(bar.get_y(), bar.get_height()) for bar in bars] for bars in reasons.containers)
    assert submitted == [(0.0, 0.75), (0.0, 0.0)] and max_turns == [(0.75, 0.25), (0.0, 1.0)]
    assert rates.get_legend() is not None and rewards.get_legend() is None


def test_a_run_whose_hook_reports_no_stop_reasons_has_a_curve_without_them():
    assert [axes.get_ylabel() for axes in draw_curve(RECORDS).axes] == ["solve rate", "mean reward"]


def test_a_run_whose_episodes_were_all_masked_says_so():
    steps = [step(0, None) | {"trained_tokens": 0, "solve_rate": 0.5, "masked": 1.0}]
    assert "rollout.mask_truncated" in summarize(ARGS, steps, {}, 1.0)["nothing_trained_because"]
