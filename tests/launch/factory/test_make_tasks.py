"""`slime-swe make-tasks` on a small package in two releases: tasks that the grader of training finds sound."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys

import orjson
import pytest

from slime_swe import files
from slime_swe.data_sources.factory.tasks import by_solve_rate
from slime_swe.data_sources.factory.writing import written_candidates
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import HarnessOracle
from slime_swe.launch.cli import run
from slime_swe.launch.commands.make_tasks import patches_of, solve_rates, with_rate
from slime_swe.launch.factory import FactorySettings, Journal, make
from slime_swe.launch.factory.verdict import verdict
from slime_swe.patches import apply_patch, make_patch
from slime_swe.rewards.grade import grade
from slime_swe.rewards.validation import Status, validate
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import EPISODES, trajectories
from slime_swe.sandbox import SandboxPool
from tests.data_sources.factory import shop

for needed in ("swesmith", "tree_sitter_rust", "coverage"):
    pytest.importorskip(needed, reason="the extra factory")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("make-tasks")]
TASKS = 8


def words(folder, *more: str) -> list[str]:
    archives = [str(path) for path in shop.releases(folder)]
    out = str(folder / "made.jsonl")
    return [
        "make-tasks",
        *archives,
        "--out",
        out,
        "--tasks",
        str(TASKS),
        "--check",
        "1",
        "--jobs",
        "2",
        "--json",
        *more,
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of one whole run, and what it said."""
    folder = tmp_path_factory.mktemp("made")
    options = [f"--{name}={folder / name}" for name in ("harbor", "swebench")]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(words(folder, *options, f"--requests={folder / 'requests.jsonl'}")) == 0
    return folder, json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def tasks(made):
    return load_tasks(str(made[0] / "made.jsonl"))


def test_what_was_made_is_counted(made, tasks):
    _, document = made
    assert document["tasks"] == len(tasks) >= 5
    assert document["by_source"] == {"faults": len(tasks) - 1, "releases": 1}
    assert document["by_source"]["faults"] <= TASKS
    assert document["seconds"] > 0
    assert (document["checked"], document["unsound"], document["without"]) == (1, [], {})


async def test_the_grader_finds_them_sound(tasks):
    async with SandboxPool("local", concurrency=2) as pool:
        found = {task.id: await validate(task, pool, runs=1) for task in tasks[:1]}
    assert {name: finding for name, finding in found.items() if finding.status is not Status.SOUND} == {}


CHEATS = {
    "constant": "def total(prices, discount=0):\n    return 0\n",
    "copied input": "def total(prices, discount=0):\n    return prices\n",
    "overlong": "x = 1\n" * 100_000,
    "oracle-quoting": """
import os
os.write(1, "".join(f"\\nPASSED {name}\\n" for name in NAMES).encode())
GOLD = PATCH
""",
}


@pytest.mark.parametrize("cheat", ["empty", *CHEATS])
async def test_a_cheat_raises_no_reward(tasks, cheat):
    """On the task of the releases, whose failing test is of `total` and expects 0: the constant gives just that."""
    (task,) = (task for task in tasks if task.source == "factory-releases")
    oracle, code = task.oracle, task.workspace.files["shop/core.py"]
    names = (*oracle.fail_to_pass, *oracle.pass_to_pass)
    more = CHEATS.get(cheat, "").replace("NAMES", repr(names)).replace("PATCH", repr(oracle.gold_patch))
    patch = make_patch({"shop/core.py": code}, {"shop/core.py": f"{code}\n\n{more}" if more else code})
    async with SandboxPool("local", concurrency=2) as pool:
        score = await grade(task, patch, pool)
    assert (score.solved, score.value) == (False, -1.0), score.evidence


def test_a_fault_s_gold_patch_gives_the_package_back(tasks):
    for task in tasks:
        fixed = apply_patch(task.workspace.files, task.oracle.gold_patch)
        assert fixed["shop/core.py"].decode() == shop.CODE
        assert task.metadata["licence"] == "MIT"
        assert task.metadata["difficulty"] in ("easy", "medium", "hard")
        assert set(task.oracle.protected) == {"tests/__init__.py", "tests/prices.txt", "tests/test_core.py"}


def test_only_tests_that_run_the_changed_code_are_run(tasks):
    (release,) = (task for task in tasks if task.source == "factory-releases")
    assert release.oracle.fail_to_pass == ("tests/test_core.py::test_a_discount_is_never_more",)
    named = {name for task in tasks for name in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)}
    assert "tests/test_core.py::test_never" not in named
    baskets = [task for task in tasks if any("basket" in name for name in task.oracle.fail_to_pass)]
    assert baskets and any("total" not in task.oracle.command for task in baskets)


def test_the_statement_has_the_failure_and_not_the_fix(tasks):
    (release,) = (task for task in tasks if task.source == "factory-releases")
    assert "assert -20 == 0" in release.statement
    assert "discount = result" not in release.statement


def test_what_is_known_is_not_run_again(made, tasks, capsys):
    folder, document = made
    journal = folder / "made.jsonl.journal"
    before = journal.read_bytes()
    journal.write_bytes(before + b'{"half a li')
    assert run(words(folder, "--check", "0")) == 0
    again = json.loads(capsys.readouterr().out)
    assert {name: again[name] for name in ("tasks", "by_kind", "none")} == {
        name: document[name] for name in ("tasks", "by_kind", "none")
    }
    assert journal.read_bytes() == before
    assert load_tasks(str(folder / "made.jsonl")) == tasks


def test_two_do_not_write_one_file(tmp_path, capsys):
    with files.locked(tmp_path / "made.jsonl.journal.lock"):
        assert run(words(tmp_path)) == 2
    assert "another make-tasks writes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--out", "made.json"], "--out made.json must end with .jsonl"),
        (["--requests", "asked.json"], "--requests asked.json must end with .jsonl"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--harbor", "."], "is there already"),
        (["--written", "no-such-run"], "there is no run 'no-such-run'"),
    ],
)
def test_mistakes_are_said_before_anything_runs(tmp_path, capsys, change, said):
    assert run([*words(tmp_path), *change]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "made.jsonl").exists()


def test_a_package_of_no_use_is_said(tmp_path, capsys):
    needs_more = {**shop.files(), "tests/test_core.py": "import numpy_of_no_sandbox\n\n\ndef test():\n    pass\n"}
    archive = shop.pack(tmp_path, needs_more)
    assert run(["make-tasks", str(archive), "--out", str(tmp_path / "made.jsonl")]) == 2
    assert "no package is of any use" in capsys.readouterr().err


HOSTILE = """\
import os, pathlib, socket
for attempt in (
    lambda: pathlib.Path({written!r}).write_text("x"),
    lambda: socket.create_connection(("127.0.0.1", {port}), timeout=5).sendall(b"x"),
):
    try:
        attempt()
    except OSError:
        print("no")
    else:
        raise SystemExit("reached the host")
"""


async def test_code_of_a_package_does_not_reach_the_host(tmp_path):
    """Its tests are measured all the same: what they try fails."""
    written, said = tmp_path / "written", []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        hostile = HOSTILE.format(written=str(written), port=server.getsockname()[1])
        tests = f"{hostile}\n{shop.TESTS}\n\ndef test_host():\n    assert not os.path.exists({str(tmp_path)!r})\n"
        files = {"setup.py": hostile, "conftest.py": hostile, "tests/test_core.py": tests}
        files["shop/__init__.py"] = f"{hostile}\nfrom shop.core import Basket, cheapest, total\n"
        archive = shop.pack(tmp_path, {**shop.files(), **files})
        await make([[archive]], FactorySettings(sources=()), Journal(tmp_path / "journal"), say=said.append)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert said == ["shop-1.1: 9 of 9 tests usable, 0 pairs of releases to try"]
    assert not written.exists()


def test_harbor_s_folders_grade_as_the_task_does(made, tasks):
    folder = made[0] / "harbor"
    assert len(list(folder.iterdir())) == len(tasks)
    task = tasks[0]
    place = folder / task.id.lower()
    assert (place / "instruction.md").read_text() == task.statement
    repository, logs = place / "environment" / "repository", place / "logs"
    environment = {"REPOSITORY": str(repository), "LOGS_FOLDER": str(logs), "PATH": f"{sys.prefix}/bin:/usr/bin:/bin"}

    def reward() -> str:
        subprocess.run(["bash", str(place / "tests" / "test.sh")], env=environment, check=True)
        return (logs / "reward.txt").read_text().strip()

    assert reward() == "0"
    (repository / "tests" / "test_core.py").write_text("")  # which is put back
    (repository / "shop" / "core.py").write_text(shop.CODE)
    assert reward() == "1"
    assert "FROM python" in (place / "environment" / "Dockerfile").read_text()


def test_harbor_s_solution_applies(made, tasks):
    place = made[0] / "harbor" / tasks[1].id.lower()
    repository = place / "environment" / "repository"
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    environment = {"REPOSITORY": str(repository), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", str(place / "solution" / "solve.sh")], env=environment, check=True)
    assert (repository / "shop" / "core.py").read_text() == shop.CODE


def test_swe_bench_s_records_are_tasks(made, tasks):
    records = load_tasks(str(made[0] / "swebench" / "records.jsonl"))
    assert [record.id for record in records] == [task.id for task in tasks]
    for record, task in zip(records, tasks, strict=True):
        assert isinstance(record.oracle, HarnessOracle)
        assert record.oracle.fail_to_pass == task.oracle.fail_to_pass
        assert task.oracle.command in record.oracle.eval_script
        image = made[0] / "swebench" / "images" / task.id.lower()
        assert record.workspace.image.name == f"slime-swe/{task.id.lower()}:latest"
        assert (image / "repository" / "shop" / "core.py").read_text() == task.workspace.files["shop/core.py"]


@pytest.mark.parametrize(
    ("log", "right"),
    [
        ("PASSED t.py::a\nPASSED t.py::b[x - y]\n", 1),
        ("PASSED t.py::a\nFAILED t.py::b[x - y] - why\n", 0),
        ("PASSED t.py::a\n", 0),
        ("PASSED t.py::a\nPASSED t.py::b[x - y]\nERROR t.py::a - at teardown\n", 0),
        ("", 0),
    ],
)
def test_a_verdict_is_1_where_all_have_passed(log, right):
    assert verdict(["t.py::a", "t.py::b[x - y]"], log) == right


async def test_requests_are_sound(made):
    folder = made[0]
    requests = load_tasks(str(folder / "requests.jsonl"))
    assert [task.id.split("-")[1] for task in requests] == ["fault", "feature"]
    async with SandboxPool("local", concurrency=1) as pool:
        for task in requests:
            assert (await validate(task, pool, runs=1)).status is Status.SOUND, task
    assert orjson.loads((folder / "requests.jsonl").read_bytes().splitlines()[0])["oracle"]["kind"] == "written"


async def test_what_an_agent_wrote_becomes_a_task(tmp_path, monkeypatch):
    monkeypatch.setattr("slime_swe.launch.factory.RUNS", 1)  # of the check; the proof's are others
    newer, _ = shop.releases(tmp_path)
    before = {"shop/core.py": shop.CODE}
    patch = make_patch(before, {"shop/core.py": shop.CODE.replace("        discount = result\n", "        pass\n")})
    said = [("write-fault-shop-1.1-shop/core.py", patch)]
    settings = FactorySettings(most=0, sources=(), checked=0)
    journal = Journal(tmp_path / "journal")
    outcome = await make([[newer]], settings, journal, written=lambda package: written_candidates(package, said))
    (task,) = outcome.tasks
    assert (task.source, task.metadata["kind"], outcome.checked) == ("factory-written", "written_fault", 1)
    assert task.oracle.fail_to_pass == ("tests/test_core.py::test_a_discount_is_never_more",)
    assert task.statement.startswith("1 of the tests of shop fails since its last change.")


def test_a_run_gives_each_episode_s_patch_once_and_how_often_its_task_was_solved(recorded):
    records = [*read_records(recorded / EPISODES)]
    episodes = trajectories(records)
    sound = [segments[0] for segments in episodes if not segments[0].broken]
    assert sorted(patches_of(str(recorded), "runs")) == sorted(
        (record.task, record.episode.patch) for record in sound if record.episode.patch
    )
    solved = {task: [record.solved for record in sound if record.task == task] for task in {r.task for r in sound}}
    rates = solve_rates(str(recorded), "runs")
    assert rates == {task: sum(found) / len(found) for task, found in solved.items()}
    assert 0 < len(sound) < len(episodes) < len(records), "one is broken, and another has two samples"
    (task,) = load_tasks("synthetic:train?limit=1")
    assert with_rate(task, None) == task
    assert with_rate(task, 0.25).metadata.items() >= {"solve_rate": 0.25, "difficulty": by_solve_rate(0.25)}.items()
