"""`slime-swe compare`: one document, a table, and an exit code that says whether what was asked for is met."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.compare import points, requirements
from slime_swe.launch.extras import require
from tests.launch.compare.test_sources import evaluate, make_run

SETS = ("verified", "gitbug")


def tasks(of: str, solved: int, count: int = 24) -> dict[str, list[int]]:
    """Of four repositories; each has two episodes, and of the first `solved` tasks one or both are solved."""
    names = [f"{of}{number % 4}__{of}-{number}" for number in range(count)]
    return {name: [int(n < solved), int(n < solved and n % 3 > 0)] for n, name in enumerate(names)}


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed, (name, solved) in enumerate({"base": (5, 4), "trained": (14, 12)}.items()):
        folder = make_run(name)
        for of, count in zip(SETS, solved, strict=True):
            evaluate(folder, tasks(of, count), name=of, seed=seed)
    evaluate(tmp_path / "runs/base", {**tasks("verified", 5), "only__a-1": [1, 1]}, rollout=2, name="verified", seed=2)
    return tmp_path


def compared(words: list[str], capsys) -> tuple[int, dict]:
    code = run(["compare", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_one_document_has_each_set(runs, capsys):
    code, document = compared(["base", "trained"], capsys)
    assert code == 0 and list(document["sets"]) == list(SETS) and document["at_least"] == []
    found = document["sets"]["verified"]
    assert document["set"] == "verified" and found.items() <= document.items(), "the first set's, without a detour"
    assert found["difference"] == pytest.approx((sum(map(sum, tasks("x", 14).values())) - 8) / 48)
    assert {"tasks": 24, "repositories": 4, "gained": 9, "lost": 0}.items() <= found.items()
    limits = {"max_turns": 8, "max_context": 640}
    assert found["a"]["evaluations"] == [{"source": "base", "set": "verified", "rollout": 2, **limits}]
    assert (found["a"]["episodes"], found["a"]["broken"], found["left_out"]) == (48, 0, {"a": ["only__a-1"], "b": []})
    assert list(found["intervals"]) == ["these tasks", "other tasks of these repositories", "other repositories"]
    for interval in found["intervals"].values():
        assert interval["low"] < found["difference"] < interval["high"]
    assert found["verdict"] == "better" and found["p_value"] < 0.05 and found["test"] == "paired t test"
    assert found["power"]["runs_each"][3]["difference"] == 0.05


def test_evaluations_with_other_limits_are_compared_where_that_is_asked_for_alone(runs, capsys):
    folder = make_run("longer", "rollout.max_turns=9")
    evaluate(folder, tasks("verified", 20), name="verified", seed=7)
    assert run(["compare", "base", "longer"]) == 2
    refusal = capsys.readouterr().err
    assert "base: at most 8 turns, 640 tokens of context; longer: at most 9 turns" in refusal
    assert "or give `slime-swe compare` --other-limits" in refusal
    code, document = compared(["base", "longer", "--other-limits"], capsys)
    assert code == 0 and document["b"]["evaluations"][0]["max_turns"] == 9
    assert run(["compare", "trained,longer", "trained"]) == 2, "repetitions are of one limit too"
    assert run(["compare", "base", "longer", "--other-limits"]) == 0
    assert "longer  (rollout -1)  at most 9 turns, 640 tokens of context" in capsys.readouterr().out
    (folder / "recipe.yaml").write_text("model: of another version\n")
    assert run(["compare", "base", "longer"]) == 0, "nothing says its limits"


def test_the_other_way_round_it_is_worse(runs, capsys):
    (_, forth), (_, back) = compared(["base", "trained"], capsys), compared(["trained", "base"], capsys)
    one, other = forth["sets"]["verified"], back["sets"]["verified"]
    assert other["verdict"] == "worse" and other["difference"] == -one["difference"]
    assert other["p_value"] == pytest.approx(one["p_value"])
    for name, interval in one["intervals"].items():
        assert other["intervals"][name]["low"] == pytest.approx(-interval["high"])


@pytest.mark.parametrize(
    ("asked", "met", "code"),
    [
        (["verified=5", "gitbug=0"], [True, True], 0),
        (["5"], [True, True], 0),
        (["verified=50", "gitbug=0"], [False, True], 1),
    ],
)
def test_a_lift_that_is_asked_for_decides_the_exit_code(asked, met, code, runs, capsys):
    words = [word for text in asked for word in ("--at-least", text)]
    found_code, document = compared(["base", "trained", *words], capsys)
    assert ([found["met"] for found in document["at_least"]], found_code) == (met, code)


def test_a_lift_by_chance_meets_nothing(runs, capsys):
    code, document = compared(["trained@-1", "trained", "--at-least", "gitbug=0"], capsys)
    assert code == 1 and document["sets"]["gitbug"]["verdict"] == "not resolved"


@pytest.mark.parametrize(("difference", "met"), [(0.05, True), (0.0499, False)])
def test_points_are_hundredths_of_the_solve_rate(difference, met):
    sets = {"x": {"difference": difference, "verdict": "better"}}
    assert requirements(["5"], sets) == [{"set": "x", "points": 5.0, "met": met}]


@pytest.mark.parametrize(
    ("text", "said"),
    [("verifed=5", "unknown name 'verifed'. Did you mean 'verified'"), ("five", "points of the solve rate"),
     ("verified=-1", "from 0 to 100"), ("nan", "from 0 to 100")],
)  # fmt: skip
def test_what_can_not_be_asked_for_is_refused(text, said):
    with pytest.raises(UserError, match=said):
        requirements([text], {name: {"difference": 0.0, "verdict": "better"} for name in SETS})


def test_people_read_a_table(runs, capsys):
    assert run(["compare", "base", "trained", "--at-least", "gitbug=30"]) == 1
    text = capsys.readouterr().out
    shown = [" ".join(line.split()) for line in text.splitlines()]
    assert all(len(line) <= 80 for line in text.splitlines()) and "…" not in text
    assert "verified: 24 tasks of 4 repositories" in shown
    assert "A base (rollout 2) at most 8 turns, 640 tokens of context" in shown
    assert any(line.startswith("A 48 0 16.7 % (") for line in shown) and "B − A +31.2 points" in shown
    assert any(line.startswith("these tasks +") and " better " in line for line in shown)
    assert any(line.startswith("verdict: better (p = ") for line in shown)
    assert "tasks: 9 better in B, 0 better in A, 15 equal" in shown
    assert "left out: 1 tasks that only A has: only__a-1" in shown
    assert "points of difference 1 2 3 5 10" in shown
    assert shown[-1] == "gitbug: at least 30 points, and better: not met"


def test_the_longest_figures_are_not_cut(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, count in {"a": 1, "b": 4}.items():
        ids = [f"x__x-{number}" for number in range(6)]
        Path(f"{name}.json").write_text(json.dumps({"submitted_ids": ids, "resolved_ids": ids[:count]}))
    assert run(["compare", "a.json", "b.json"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "these repositories −7.5 to +100.0 not resolved 78.0 points" in text and "…" not in text


def test_a_refused_interval_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, resolved in {"a": ["x"], "b": ["x", "y"]}.items():
        Path(f"{name}.json").write_text(json.dumps({"submitted_ids": ["x", "y", "z"], "resolved_ids": resolved}))
    assert run(["compare", "a.json", "b.json"]) == 0
    text = capsys.readouterr().out
    assert "refused: these tasks: no task has two episodes on both sides" in text
    assert "refused: other repositories: the repositories of 3 of 3 tasks are not known" in text
    assert "verdict: not resolved (p = 1, exact McNemar)" in text


def test_two_sides_without_a_common_task_are_refused(runs, capsys):
    evaluate(make_run("else"), {"p": [1]}, name="verified", seed=9)
    assert run(["compare", "base", "else"]) == 2
    assert "A and B have no task of verified in common" in capsys.readouterr().err


def test_what_is_missing_is_named_with_the_cure():
    require("numpy", "scipy", extra="compare")
    with pytest.raises(UserError, match=r"no_such_package is not installed: pip install 'slime-swe\[compare\]'"):
        require("no_such_package", extra="compare")


@pytest.mark.parametrize(("share", "text"), [(0.0481, "+4.8"), (-0.003, "−0.3"), (0.0, "0.0"), (-0.0004, "0.0")])
def test_points_have_a_sign(share, text):
    assert points(share) == text
