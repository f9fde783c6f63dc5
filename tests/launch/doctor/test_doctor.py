"""The whole report: everything is looked at, whatever else is wrong, and the exit code says what it comes to."""

from __future__ import annotations

import io
import json
import socket
from contextlib import closing

import pytest
from rich.console import Console

from slime_swe.dotted import load_object
from slime_swe.launch.cli import run
from slime_swe.launch.doctor import (
    CHECKS,
    Machine,
    Status,
    examine,
    failure,
    ok,
    passes,
    show,
    skipped,
    summary,
    warning,
)
from slime_swe.launch.doctor.checkpoint import continued
from slime_swe.launch.doctor.recipe import check_plan
from slime_swe.launch.engines import ENGINES, engine_of
from tests.recipes.changes import variant

pytestmark = pytest.mark.xdist_group("ray")  # these see each other's Ray


def test_one_report_names_everything_that_is_wrong(tmp_path, capsys):
    with closing(socket.create_server(("", 0))) as server:
        port = server.getsockname()[1]
        words = [
            "recipe=qwen25_coder_7b",
            "parallel.tp=3",
            f"model.folder={tmp_path}",
            "run.dir=/proc/no/runs",
            f"serving.router_port={port}",
            "data.train=[nothing:train]",
            "rollout.sandbox=nowhere",
            "reward.function=no_such_module.reward",
        ]
        assert run(["doctor", "--json", *words]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    failed = {finding["check"] for finding in report["findings"] if finding["status"] == "failure"}
    wanted = {"recipe", "run folder", "ports", "checkpoint", "converted", "tasks", "plug-ins", "sandbox"}
    assert wanted <= failed
    assert all(finding["fix"] for finding in report["findings"] if finding["status"] in ("warning", "failure"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_recipe_for_a_laptop_can_be_launched_here(capsys):
    assert run(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    status = {finding["check"]: finding["status"] for finding in report["findings"]}
    for check in ("gpus", "nvlink", "ray", "converted", "plan"):
        assert status[check] == "skipped"
    for check in ("recipe", "architecture", "checkpoint", "chat template", "tasks", "plug-ins", "engine", "packages"):
        assert status[check] == "ok", check


@pytest.mark.slow
def test_where_a_launch_would_work_the_report_ends_with_the_command_that_looks_at_the_policy(capsys):
    assert run(["doctor", "recipe=tiny_cpu", "run.seed=3"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Can the policy act? Before a run: slime-swe probe recipe=tiny_cpu run.seed=3"


def test_hours_between_checkpoints_are_said_and_warned_of():
    def of(**changes):
        found = check_plan(variant("qwen3_coder_30b_a3b", **changes), Machine())
        (finding,) = (finding for finding in found if finding.check == "checkpoints")
        return finding

    assert of().status == Status.OK and "hours between checkpoints; a kill loses at most" in of().message
    rare = of(run__save_every_minutes=0.0)
    assert rare.status == Status.WARNING and rare.fix.startswith("lower run.save_every_minutes")
    assert not [finding for finding in check_plan(variant("tiny_cpu"), Machine()) if finding.check == "checkpoints"]


def test_an_unknown_engine_recipe_or_key_is_a_mistake_as_anywhere(capsys):
    assert run(["doctor", "engine=steam"]) == 2
    assert run(["doctor", "recipe=tiny_cp"]) == 2
    assert run(["doctor", "no.such=1"]) == 2
    assert capsys.readouterr().err.count("slime-swe: ") == 3


def test_a_check_that_breaks_is_a_failure_of_that_check(monkeypatch):
    """An agent of one's own that can't be imported; the sandbox after it is looked at all the same."""
    findings = list(examine(variant("tiny_cpu", rollout__agent="no.such", data__source="no.such"), Machine()))
    by_check = {finding.check: finding for finding in findings}
    assert by_check["engine"].status == Status.FAILURE
    assert by_check["sandbox"].status != Status.SKIPPED


def test_every_engine_has_every_check_or_does_without_by_name():
    for name in ENGINES:
        assert set(engine_of(variant("tiny_cpu", engine=name)).doctor) <= CHECKS.keys()
    assert all(load_object(path, "doctor").__doc__ for path in CHECKS.values())


FINDINGS = [
    ok("gpus", "8 × NVIDIA H100 80GB HBM3"),
    warning("a check of some name", "[red]a long message[/red] " * 20, "do " + "something " * 30),
    failure("converted", "x" * 300, "convert it", continued("cd /root/slime &&", *["--flag=value"] * 40)),
    skipped("nvlink", "none"),
]


@pytest.mark.parametrize("width", (60, 100, 240))
def test_the_table_fits_a_hundred_columns_and_loses_nothing(width):
    out = io.StringIO()
    show(FINDINGS, Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    table = lines[: lines.index("# converted")]
    assert max(map(len, table)) <= min(width, 100) and max(map(len, lines)) <= 100
    flat = "".join("".join(lines).split())
    assert "[red]alongmessage[/red]" in flat and "x" * 60 in flat.replace("failureconverted", "")
    assert flat.count("--flag=value") == 40
    assert lines[-1].strip() == "A launch would fail: 1 failure, 1 warning, 1 ok."


def test_warnings_do_not_fail():
    assert passes(FINDINGS[:2]) and not passes(FINDINGS)
    assert summary(FINDINGS[:2]).startswith("Nothing stands in the way")


def test_a_finding_says_what_to_do_exactly_where_something_is_wrong():
    with pytest.raises(AssertionError):
        failure("gpus", "none", "")
