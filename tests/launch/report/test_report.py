"""What `slime-swe report` writes is what the run's records say; without secrets, and with what it left out said."""

from __future__ import annotations

import json
import random
import re
import shutil
import tracemalloc
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import statsmodels.api

from slime_swe.launch.cli import run
from slime_swe.launch.report import page as pages
from slime_swe.launch.report.charts import TRAINER, moment_figures, student95
from slime_swe.launch.report.detail import arguments, diff, shown_tokens
from slime_swe.launch.report.page import script_json
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.redaction import redacted, secrets_of
from slime_swe.rollout.episode import of_episode
from slime_swe.rollout.journals import TRAINED, TrainedSamples, read_records
from slime_swe.rollout.metrics import GAP_BEFORE, wilson_interval
from slime_swe.rollout.records import EPISODES, EVALUATIONS, METRICS, Record, trajectories
from tests.effort import assert_linear
from tests.launch.report.page_data import chart, column, details, document, plain, token_text
from tests.launch.report.synthetic import STEP_SECONDS, synthetic_run
from tests.planted import ENVIRONMENT

SECRETS = secrets_of(ENVIRONMENT)
TRIES = 600  # simulated rollouts


def episodes(folder: Path) -> list[list[Record]]:
    """Of the report's order: training, then the evaluations, moment by moment."""
    moments: dict[object, list[Record]] = {}
    for journal in (EPISODES, EVALUATIONS):
        for record in read_records(folder / journal):
            moments.setdefault((record.dataset, record.rollout_id), []).append(record)
    return [segments for records in moments.values() for segments in trajectories(records)]


def test_every_episode_is_there_with_what_was_recorded_of_it(recorded, report):
    page = report(recorded)
    found, wanted = details(page), episodes(recorded)
    assert len(found) == len(wanted) == len(column(page, "task")) == 9
    for at, (detail, segments) in enumerate(zip(found, wanted, strict=True)):
        first = segments[0]
        turns = redacted([turn.text for turn in of_episode(record.turns or [] for record in segments)], SECRETS)
        assert [turn["text"] for turn in detail["turns"]] == turns
        assert plain(detail["patch"]) == redacted(first.episode.patch if first.episode else "", SECRETS)
        assert column(page, "outcome")[at] == first.outcome and column(page, "reward")[at] == first.reward
        assert detail["evidence"] == redacted(first.score.evidence if first.score else {}, SECRETS)
        assert detail["error"].startswith("sandbox_error: the disk is gone") == first.broken


def test_tokens_are_what_the_policy_sampled_and_how_likely_that_was(recorded, report):
    page = report(recorded, "--tokens", "all")
    for detail, segments in zip(details(page), episodes(recorded), strict=True):
        for sample, record in zip(detail["tokens"], segments, strict=True):
            sampled = [run for run in sample if run["sampled"]]
            assert sum(run["count"] for run in sample) == len(record.tokens)
            assert sum(len(run["texts"]) for run in sampled) == sum(record.loss_mask or ())
            kept = [p for p, mask in zip(record.log_probs or (), record.loss_mask or (), strict=True) if mask]
            assert [p for run in sampled for p in run["log_probs"]] == pytest.approx(kept, abs=5e-4)


def test_tokens_have_their_advantage_and_gap_where_a_step_made_some(recorded, report):
    page = report(recorded, "--tokens", "all")
    samples, compared = TrainedSamples(recorded / TRAINED), 0
    for detail, segments in zip(details(page), episodes(recorded), strict=True):
        for shown, record in zip(detail["tokens"], segments, strict=True):
            trained = samples.of(record)
            runs = [run for run in shown if run["sampled"]]
            assert not any("gaps" in run or "advantage" in run for run in shown if not run["sampled"] or not trained)
            if not trained:
                continue
            one_each = [run["advantage"] for run in runs if isinstance(run["advantage"], list)]
            if isinstance(trained.advantage, list):
                assert [*chain(*one_each)] == trained.advantage
            else:
                assert {run["advantage"] for run in runs} == {trained.advantage}
            assert detail["record"]["advantage"] == samples.of(segments[0]).shown_advantage
            theirs = [p for p, mask in zip(record.log_probs, record.loss_mask, strict=True) if mask]
            wanted = [abs(a - b) for a, b in zip(trained.log_probs, theirs, strict=True)] if trained.log_probs else []
            assert [gap for run in runs for gap in run.get("gaps", ())] == pytest.approx(wanted, rel=0.05)
            compared += bool(wanted)
    assert compared == 2


def test_a_damaged_second_file_is_left_out_and_said(recorded, tmp_path, report):
    folder = tmp_path / "damaged"
    shutil.copytree(recorded, folder)
    lines = (folder / TRAINED).read_bytes().splitlines(keepends=True)
    (folder / TRAINED).write_bytes(b"".join([lines[0].replace(b"[-0.5,", b"[", 1), *lines[1:]]))
    page = report(folder, "--tokens", "all")
    (note,) = document(page)["notes"]
    assert "trained.jsonl: the line of sample 0, rollout 4, was skipped" in note and "sampled tokens" in note
    assert [detail["record"].get("advantage") for detail in details(page)][:3] == [None, "-0.25", "0"]
    (folder / TRAINED).write_bytes(b"{}\n" + b"".join(lines))
    page = report(folder)
    assert "advantages and the trainer's log-probabilities are left out" in document(page)["notes"][0]
    assert len(details(page)) == 9 and not any("advantage" in detail["record"] for detail in details(page))


def test_alarms_are_those_of_the_run_s_own_limits(tmp_path, report):
    folder = synthetic_run(tmp_path / "runs", "alarming", rollouts=2, groups=2)
    lines = [json.loads(line) for line in (folder / METRICS).read_bytes().splitlines()]
    for line in lines:
        line |= {"stop/submitted": 0.6, "stop/max_turns": 0.4} if line["kind"] == "train" else {}
    (folder / METRICS).write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    (alarm,) = [one for one in document(report(folder))["runs"][0]["alarms"] if "truncated" in one["held"]]
    assert alarm["held"] == "truncated: rollouts 1 to 2, up to 40%, limit 25%"
    assert "limits ended 40% (max_turns 40%) of the episodes" in alarm["said"]
    recipe = folder / RECIPE_FILE
    recipe.write_text(f"{recipe.read_text()}\nalarms: {{truncated: 0.5}}\n")
    assert not [one for one in document(report(folder))["runs"][0]["alarms"] if "truncated" in one["held"]]


def test_tasks_gained_and_lost_are_those_that_an_evaluation_solves_more_or_less_often(tmp_path, report):
    folder = synthetic_run(tmp_path / "runs", "flips", rollouts=1, groups=2)
    solved: list[dict[str, float]] = []
    for moment in (-1, 0):
        rates: dict[str, list[bool]] = {}
        for record in read_records(folder / EVALUATIONS):
            if record.rollout_id == moment and not record.broken:
                rates.setdefault(record.task, []).append(record.solved)
        solved.append({task: sum(rate) / len(rate) for task, rate in rates.items()})
    both = sorted(solved[0].keys() & solved[1].keys())
    gained, lost = ([task for task in both if sign * (solved[1][task] - solved[0][task]) > 0] for sign in (1, -1))
    assert len(gained) > 8 > len(lost) > 0
    rows = chart(report(folder), "Tasks gained and lost · heldout")
    assert rows == [
        {"run": "flips", "rollout": 0, "kind": "gained", "value": len(gained),
         "tasks": f"{', '.join(gained[:8])} and {len(gained) - 8} more"},
        {"run": "flips", "rollout": 0, "kind": "lost", "value": -len(lost), "tasks": ", ".join(lost)},
    ]  # fmt: skip


def test_tokens_of_failures_informative_groups_and_a_sample_go_in(tmp_path, report):
    folder = synthetic_run(tmp_path / "runs", "many", rollouts=12, groups=8)
    page = report(folder)
    rows = [*zip(*(column(page, name) for name in ("set", "rollout", "group", "outcome")), strict=True)]
    kinds: dict[object, set[str]] = {}
    for *group, outcome in rows:
        kinds.setdefault(tuple(group), set()).add(outcome)
    others = []
    for (*group, outcome), detail in zip(rows, details(page), strict=True):
        if outcome != "solved" or {"solved", "not solved"} <= kinds[tuple(group)]:
            assert detail["tokens"]
        else:
            others.append(bool(detail["tokens"]))
    assert 0 < sum(others) < len(others) / 4
    assert [bool(one["tokens"]) for one in details(report(folder))] == [bool(one["tokens"]) for one in details(page)]
    assert all(detail["tokens"] for detail in details(report(folder, "--tokens", "all")))


def test_no_secret_is_written_not_even_cut_into_tokens(recorded, report):
    assert ENVIRONMENT["OPENAI_API_KEY"] in (recorded / EPISODES).read_text(), "or the test shows nothing"
    page = report(recorded, "--tokens", "all")
    texts = [page.read_text(), *map(token_text, details(page))]
    assert not [name for name, value in ENVIRONMENT.items() for text in texts if value in text]
    assert "[OPENAI_API_KEY redacted]" in texts[0]


def test_a_secret_that_several_tokens_make_up_is_replaced():
    pieces = {1: "key ", 2: "abc", 3: "defgh", 4: "i rest"}
    record = Record(0, 0, 0, "t", "completed", 0.0, tokens=[1, 2, 3, 4, 2, 3, 4], response_length=4,
                    loss_mask=[1, 1, 1, 1], log_probs=[-1.0, -2.0, -3.0, -4.0])  # fmt: skip
    context, sampled = shown_tokens(record, None, lambda ids: "".join(pieces[i] for i in ids), [("bcdefghi", "[X]")])
    assert context["texts"] == ["key a[X]"]
    assert sampled["texts"] == [" rest", "a[X]", "", " rest"]
    assert sampled["log_probs"] == [-1.0, -2.0, -3.0, -4.0]


def texts_of(pieces: list[str], secrets: list[tuple[str, str]]) -> list[str]:
    """The texts that are shown of a sample whose tokens have these."""
    every = list(range(len(pieces)))
    record = Record(
        0, 0, 0, "t", "completed", 0.0, tokens=every, response_length=len(every), loss_mask=[1] * len(every)
    )
    (run,) = shown_tokens(record, None, lambda ids: "".join(pieces[i] for i in ids), secrets)
    return run["texts"]


def replaced(pieces: list[str], secrets: list[tuple[str, str]]) -> list[str]:
    """What they are by the rule: an occurrence at a time, whose replacement is in its first character's piece."""
    placed = [(character, at) for at, piece in enumerate(pieces) for character in piece]
    for secret, replacement in secrets:
        start = 0
        while (start := "".join(character for character, _ in placed).find(secret, start)) >= 0:
            at = placed[start][1]
            placed[start : start + len(secret)] = [(character, at) for character in replacement]
            start += len(replacement)
    return ["".join(character for character, where in placed if where == at) for at in range(len(pieces))]


def test_secrets_are_replaced_where_they_begin_however_tokens_cut_them():
    chance = random.Random(0)
    several = 0
    for _ in range(2000):
        pieces = ["".join(chance.choices("aab", k=chance.choice([0, 1, 1, 2, 5]))) for _ in range(chance.randint(1, 9))]
        secrets = [
            ("".join(chance.choices("aab", k=chance.randint(1, 5))), chance.choice(["", "a", "[X]", "abab"]))
            for _ in range(chance.randint(0, 3))
        ]
        wanted = replaced(pieces, secrets)
        assert texts_of(pieces, secrets) == wanted, (pieces, secrets)
        several += "".join(wanted).count("[X]") > 1
    assert several > 100


def test_many_secrets_take_time_in_proportion():
    assert_linear(lambda size: texts_of([" the", " key", " abcd", "efgh"] * size, [("abcdefgh", "[X]")]), 250)


def test_a_character_of_several_tokens_stands_at_its_last():
    parts = dict(enumerate("aé".encode()))
    record = Record(0, 0, 0, "t", "completed", 0.0, tokens=[0, 1, 2, 1], response_length=4, loss_mask=[1] * 4)
    (run,) = shown_tokens(record, None, lambda ids: bytes(parts[i] for i in ids).decode("utf-8", "replace"), [])
    assert run["texts"] == ["a", "", "é", "\ufffd"]


def cluster_robust_limits(rewards: list[float], groups: list[int]) -> tuple[float, float]:
    model = statsmodels.api.OLS(rewards, np.ones(len(rewards)))
    ((low, high),) = model.fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True).conf_int()
    return low, high


def played(rewards: dict[int, list[float | None]]) -> list[list[Record]]:
    """Episodes of these rewards by group; None for one that infrastructure broke."""
    each = [(group, reward) for group, row in rewards.items() for reward in row]
    return [
        [Record(at, group, at, f"t{group}", "aborted" if reward is None else "completed", reward)]
        for at, (group, reward) in enumerate(each)
    ]


def test_the_reward_s_band_is_around_its_mean_also_where_groups_lost_episodes():
    rewards = {0: [1.0, 1.0, 0.5, 1.0], 1: [0.0, None, None, None], 2: [0.0, 0.25, None, None]}
    figures = moment_figures(played(rewards))
    sound = [(reward, group) for group, row in rewards.items() for reward in row if reward is not None]
    low, high = figures["reward_interval"]
    assert (low, high) == pytest.approx(cluster_robust_limits(*map(list, zip(*sound, strict=True))))
    assert (low + high) / 2 == pytest.approx(figures["reward"]) == pytest.approx(3.75 / 7)
    for nothing in ({0: [1.0, 0.0]}, {0: [0.1, 0.3], 1: [0.3, 0.1]}, {0: [1.0], 1: [None]}, {0: [None]}):
        assert moment_figures(played(nothing))["reward_interval"] is None


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_the_reward_s_band_holds_the_true_mean_in_95_of_100(groups):
    drawn, held = random.Random(0), 0
    for _ in range(TRIES):
        centres = [drawn.gauss(0.5, 0.2) for _ in range(groups)]
        low, high = moment_figures(played({g: [drawn.gauss(c, 0.2) for _ in range(4)] for g, c in enumerate(centres)}))[
            "reward_interval"
        ]
        held += low <= 0.5 <= high
    assert held / TRIES == pytest.approx(0.95, abs=0.03)


def test_student_s_quantile_is_scipy_s():
    for degrees in (1, 2, 3, 4, 7, 8, 31, 32, 511):
        assert student95(degrees) == pytest.approx(scipy.special.stdtrit(degrees, 0.975), rel=1e-9)


def test_curves_are_the_records_figures(runs, report):
    page = report(runs / "first")
    by_rollout: dict[int, list[Record]] = {}
    for record in read_records(runs / "first" / EPISODES):
        by_rollout.setdefault(record.rollout_id, []).append(record)
    solve, reward = chart(page, "Solve rate in training"), chart(page, "Reward in training")
    stops, groups = chart(page, "Why episodes stopped"), chart(page, "Groups by what they teach")
    assert [row["rollout"] for row in solve] == sorted(by_rollout) == [0, 1, 2, 3]
    for at, records in by_rollout.items():
        sound = [record for record in records if not record.broken]
        solved = sum(record.solved for record in sound)
        low, high = wilson_interval(solved, len(sound))
        assert solve[at] == {
            "run": "first",
            "rollout": at,
            "value": pytest.approx(solved / len(sound)),
            "low": low,
            "high": high,
        }
        assert reward[at]["value"] == pytest.approx(sum(r.reward for r in sound) / len(sound))
        limits = cluster_robust_limits([r.reward for r in sound], [r.group_index for r in sound])
        assert (reward[at]["low"], reward[at]["high"]) == pytest.approx(limits)
        reasons = Counter(record.episode.stop_reason for record in records)
        assert {r["kind"]: r["value"] for r in stops if r["rollout"] == at} == {
            k: n / len(records) for k, n in reasons.items()
        }
        assert sum(row["value"] for row in groups if row["rollout"] == at) == 4


def test_the_bars_of_a_step_are_its_phases_and_add_up_to_its_time(runs, report):
    rows = chart(report(runs / "first"), "Time of a step")
    assert {row["kind"] for row in rows} == {"generation", "training", "weight sync", "sandbox", "other"}
    times = Counter[int]()
    for row in rows:
        times[row["rollout"]] += row["value"]
    assert times == pytest.approx(dict.fromkeys(range(4), STEP_SECONDS))


def test_a_groups_kind_is_by_its_sound_episodes(recorded, report):
    kinds = Counter(
        {(row["rollout"], row["kind"]): row["value"] for row in chart(report(recorded), "Groups by what they teach")}
    )
    groups: dict[tuple[int, int], list[Record]] = {}
    for first, *_ in episodes(recorded):
        if not first.dataset:
            groups.setdefault((first.rollout_id, first.group_index), []).append(first)
    wanted = Counter[tuple[int, str]]()
    for (rollout, _), firsts in groups.items():
        solved = {record.solved for record in firsts if not record.broken}
        kind = (
            "informative"
            if len(solved) == 2
            else {True: "all solved", False: "all unsolved"}.get(min(solved, default=None))
        )
        wanted[rollout, kind or "all infrastructure failures"] += 1
    assert kinds == wanted


def test_several_runs_are_compared_by_their_evaluations(runs, report, capsys):
    page = report(runs / "first", runs / "second")
    (found,) = document(page)["comparisons"]
    assert (found["a"], found["b"], found["set"]) == ("first", "second", "heldout")
    capsys.readouterr()
    assert run(["compare", str(runs / "first"), str(runs / "second"), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)["sets"]["heldout"]
    for name in ("difference", "intervals", "verdict", "p_value", "tasks"):
        assert found[name] == own[name], name
    assert {row["run"] for row in chart(page, "Solve rate in training")} == {"first", "second"}


def test_runs_with_other_limits_are_not_compared(runs, tmp_path, report):
    longer = tmp_path / "longer"
    shutil.copytree(runs / "second", longer)
    recipe = (longer / "recipe.yaml").read_text()
    (longer / "recipe.yaml").write_text(re.sub(r"max_turns: \d+", "max_turns: 1234", recipe))
    found = document(report(runs / "first", longer))
    assert found["comparisons"] == []
    assert any("first and longer are not compared" in note and "at most 1234 turns" in note for note in found["notes"])


def test_what_can_t_be_read_is_skipped_and_said(runs, tmp_path, report, capsys):
    folder = tmp_path / "half"
    shutil.copytree(runs / "first", folder)
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    damaged = [
        lines[0],
        b'{"rollout_id": 0, "tokens": [1,\n',
        b'{"rollout_id": 0, "attempt": 1, "turns": 5}\n',
        *lines[2:],
        lines[1][:100],
    ]
    (folder / EPISODES).write_bytes(b"".join(damaged))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "rollout_id": 1, "seconds": 5}\n{"kind": "tr')
    page = report(folder)
    notes = document(page)["notes"]
    assert len(column(page, "task")) == len(lines) - 1 + 2 * 40
    assert [note.partition(": ")[2].partition(" was skipped")[0] for note in notes] == [
        "episodes.jsonl: line 2", "episodes.jsonl: the last line, half written",
        f"episodes.jsonl: the record at byte {len(lines[0]) + len(damaged[1])}",
        "metrics.jsonl: the last line, half written",
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines()[: len(notes)] == notes


def test_a_gap_that_the_next_rollout_s_line_has_is_shown_where_it_belongs(runs, tmp_path, report):
    folder = tmp_path / "async"
    shutil.copytree(runs / "first", folder)
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    del lines[1]["logprob_diff_mean"]
    lines[1][GAP_BEFORE], lines[2][GAP_BEFORE] = 5.0, 0.125  # of the rollouts before, the first of which has its own
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = [row["value"] for row in chart(report(folder), TRAINER["logprob_diff_mean"])]
    assert shown[:2] == [lines[0]["logprob_diff_mean"], 0.125]


def test_a_moment_that_was_played_again_counts_once(runs, tmp_path, report):
    folder = tmp_path / "again"
    shutil.copytree(runs / "first", folder)
    lines = (folder / EPISODES).read_text().splitlines(keepends=True)
    again = [line.replace('"attempt":1', '"attempt":2') for line in lines if '"rollout_id":3,' in line]
    assert again and again[0] not in lines
    (folder / EPISODES).write_text("".join(lines + again))
    assert len(column(report(folder), "task")) == len(lines) + 80


def test_without_a_tokenizer_the_rest_is_there(runs, tmp_path, report):
    folder = tmp_path / "moved"
    shutil.copytree(runs / "first", folder)
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("embedded:seed", "no/such/model"))
    page = report(folder)
    assert "tokens are left out, as the tokenizer can't be read" in document(page)["notes"][0]
    assert not any(detail["tokens"] for detail in details(page)) and details(page)[0]["turns"]


def test_what_is_above_the_limit_becomes_a_folder(runs, tmp_path, report, monkeypatch):
    whole = report(runs / "first")
    monkeypatch.setattr(pages, "ONE_FILE", 1_100_000)
    page = report(runs / "first")
    assert whole.is_file() and page.name == "index.html" and (page.parent / "data" / "0.js").is_file()
    assert details(page) == details(whole) and 'id="shard-0"' not in page.read_text()


def test_the_default_path_and_what_is_there_already(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["report", "first", "--dir", str(runs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "first.html", "episodes": 4 * 4 * 8 + 80, "notes": []}
    assert run(["report", "first", "--dir", str(runs)]) == 2
    assert "first.html is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["first.html"]


def test_a_run_without_episodes_is_refused(runs, tmp_path, capsys):
    folder = tmp_path / "empty"
    folder.mkdir()
    shutil.copy(runs / "first" / "recipe.yaml", folder)
    assert run(["report", str(folder), "--out", str(tmp_path / "x.html")]) == 2
    assert "has no episode yet: there is nothing to report" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_json_in_a_script_can_t_end_it():
    text = "</script><!-- <script> \u2028 \u2029 \ud800 & '"
    script = script_json({text: [text]}).decode()
    assert "<" not in script and "\u2028" not in script and "\u2029" not in script
    assert json.loads(script) == {text.replace("\ud800", "\\ud800"): [text.replace("\ud800", "\\ud800")]}


def test_colours_change_no_text():
    for text in ("", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-\tone \n+two\n\\ No newline at end of file", "\n\nno diff\r\n"):
        assert plain(diff(text)).replace("\r\n", "\n") == text.replace("\r\n", "\n")
    assert json.loads(plain(arguments('{"a": [1, "é"]}'))) == {"a": [1, "é"]}
    assert arguments("{no json") == [["", "{no json"]]
    assert plain(arguments('{"a":[[[[1]]]]}')).count("\n") > 8, "a small one is laid out, though it grows"
    assert diff("-one\n+two\n three\n") == [["gd", "-one\n"], ["gi", "+two\n"], ["w", " "], ["", "three\n"]]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 900 + "]" * 900,
        "[" * 900 + "1," * 20_000 + "1" + "]" * 900,
        '{"a": "' + "x" * 300_000 + '", "b": ' + "[" * 900 + "]" * 900 + "}",
        "[" * 5000 + "]" * 5000,
    ],
    ids=["deep", "wide and deep", "long and deep", "deeper than can be read"],
)
def test_arguments_grow_little_by_being_laid_out(text):
    tracemalloc.start()
    shown = plain(arguments(text))
    assert "".join(shown.split()) == "".join(text.split())
    assert len(shown) <= 4 * len(text) + 1000
    assert tracemalloc.get_traced_memory()[1] < 20_000_000, "and the longer form is never made"
    tracemalloc.stop()
