"""The benchmarks' own command line: figures printed, made the baseline, and held against it."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import command
from slime_swe.errors import InfrastructureError

RATIOS = {"ours_ms": "theirs_ms"}


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Run a benchmark of two figures with these words; its exit code."""
    monkeypatch.setattr(command, "BASELINES", tmp_path)

    def run(ours, *words, floors=command.NONE):
        async def measure(rounds):
            if ours is None:
                raise InfrastructureError("no bubblewrap here")
            return {"ours_ms": ours * rounds, "theirs_ms": 10.0, "share": ours / 100}

        monkeypatch.setattr(sys, "argv", ["benchmark", *words])
        return command.run("about", "some", measure, ratios=RATIOS, limits={"share": 0.5}, floors=floors, rounds=1)

    return run


def test_a_ratio_twice_its_baselines_fails_the_check(benchmark, capsys):
    assert benchmark(5.0, "--save") == 0
    assert benchmark(9.9, "--check") == 0
    capsys.readouterr()
    assert benchmark(10.1, "--check", "--json") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"ours_ms": 10.1, "theirs_ms": 10.0, "share": 0.101}
    assert "ours_ms is 1.010 of theirs_ms; the baseline is 0.500" in printed.err


def test_a_figure_beyond_its_limit_fails_the_check(benchmark, capsys):
    assert benchmark(51.0, "--save") == 0
    assert benchmark(51.0, "--check") == 1
    assert "share is 0.51, more than 0.5" in capsys.readouterr().err


def test_a_figure_below_its_floor_fails_the_check(benchmark, capsys):
    assert benchmark(5.0, "--save") == 0
    assert benchmark(5.0, "--check", floors={"share": 0.05}) == 0
    assert benchmark(5.0, "--check", floors={"share": 0.06}) == 1
    assert "share is 0.05, less than 0.06" in capsys.readouterr().err


def test_a_check_without_a_baseline_is_refused_before_anything_is_measured(benchmark, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark(5.0, "--check")
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert "no baseline to compare with: make one with --save" in printed.err


def test_options_are_what_measure_takes(benchmark, capsys):
    assert benchmark(5.0, "--rounds", "3") == 0
    assert "1.500 of theirs_ms" in capsys.readouterr().out


def test_what_is_not_there_is_said_without_a_traceback(benchmark, capsys):
    assert benchmark(None) == 2
    assert capsys.readouterr().err == "no bubblewrap here\n"
