"""`engine=slime_cpu` as far as it goes without SLiME: what it asks for, and how it reads what a run wrote."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from slime_swe.attempts import ATTEMPTS, HeldError
from slime_swe.errors import UserError
from slime_swe.launch.engines import require_legal
from slime_swe.launch.runs import create_run
from slime_swe.launch.slime import checkouts
from slime_swe.launch.slime.checkouts import Checkouts, require_checkouts
from slime_swe.launch.slime.paths import DRIVERS, SETTINGS
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.render import render
from slime_swe.launch.slime_cpu.run import GAP, read_figures, step_figures, train
from slime_swe.recipes.base import Parallel
from slime_swe.rollout.metrics import GAP_BEFORE
from tests.recipes.changes import variant

ROOT = Path(__file__).parents[2]
LIMITS = {"max_turns": 50, "max_context": 32768}


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def homes(tmp_path):
    """Folders that look like the two checkouts, the second with SLiME's patch."""
    write(tmp_path / "slime" / checkouts.SLIME.mark)
    write(tmp_path / "Megatron-LM" / checkouts.MEGATRON.mark)
    file, mark = checkouts.PATCHED
    write(tmp_path / "Megatron-LM" / file, mark)
    return {"SLIME_HOME": str(tmp_path / "slime"), "MEGATRON_HOME": str(tmp_path / "Megatron-LM")}


def test_two_checkouts_are_enough(homes):
    require_checkouts(homes)


@pytest.mark.parametrize("missing", ["SLIME_HOME", "MEGATRON_HOME"])
@pytest.mark.parametrize("given", [None, "", "nowhere"])
def test_a_missing_checkout_is_named_with_the_commands_that_make_it(homes, missing, given):
    environment = {name: folder for name, folder in homes.items() if name != missing}
    if given is not None:
        environment[missing] = given
    with pytest.raises(UserError) as caught:
        require_checkouts(environment)
    message = str(caught.value)
    assert missing in message
    assert len(re.findall(r"git clone .*https://github\.com/(?:THUDM/slime|NVIDIA/Megatron-LM)\.git", message)) == 2
    assert checkouts.SLIME.commit in message and checkouts.MEGATRON.commit in message


def test_a_checkout_without_slimes_patch_is_refused(homes, tmp_path):
    write(tmp_path / "Megatron-LM" / checkouts.PATCHED[0], "as NVIDIA has it")
    with pytest.raises(UserError, match=r"lacks the patch .*megatron\.patch"):
        require_checkouts(homes)


# The processes that hold a run: its launcher, and SLiME's driver, with nothing in place of SLiME's training.
LAUNCHER = """
import sys
from pathlib import Path
from slime_swe.attempts import ATTEMPTS, attempting
with attempting(Path(ATTEMPTS)):
    print("held", flush=True)
    sys.stdin.read()
"""
DRIVER = """
import sys
from slime_swe.launch.slime_cpu import main
main.train = lambda *_: (print("held", flush=True), sys.stdin.read())
main.main("nowhere", ["--actor-num-gpus-per-node", "1"])
"""


@pytest.mark.parametrize(
    "holder", [pytest.param(LAUNCHER, id="launcher"), pytest.param(DRIVER, id="driver", marks=pytest.mark.slow)]
)
def test_a_second_start_in_a_folder_is_refused_and_names_the_holder(tmp_path, holder):
    recipe = variant("tiny_cpu", engine="slime_cpu", run__dir=str(tmp_path), run__name="a")
    folder = create_run(recipe)
    python = [sys.executable, "-m"]
    if holder is LAUNCHER:
        second = [*python, "slime_swe.launch.cli", "train", "run.name=a", f"run.dir={tmp_path}", "--resume"]
    else:
        second = [*python, "slime_swe.launch.slime_cpu.main", "nowhere", "--actor-num-gpus-per-node", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", holder], cwd=folder, **pipes) as first:
        assert first.stdout.readline() == "held\n"
        refused = subprocess.run(second, cwd=folder, capture_output=True, text=True)
        (line,) = refused.stderr.splitlines()
        assert line.startswith(f"slime-swe: {folder} is written by process {first.pid} on this machine since 20")
        assert refused.returncode and not refused.stdout
        (record,) = (folder / (ATTEMPTS if holder is LAUNCHER else DRIVERS)).read_bytes().splitlines()
        assert (orjson.loads(record)["host"], orjson.loads(record)["pid"]) == (socket.gethostname(), first.pid)
        first.kill()


@pytest.mark.slow  # to import Ray
def test_journals_are_not_cut_while_the_driver_outlives_its_launcher(tmp_path):
    """`resume` cuts them before it starts anything."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout.readline() == "held\n"
        recipe = variant("tiny_cpu", engine="slime_cpu", run__dir=str(tmp_path.parent), run__name=tmp_path.name)
        with pytest.raises(HeldError, match=f"is written by process {driver.pid} on this machine"):
            train(recipe, tmp_path, resume=True)
        driver.kill()


def episode(index, solved, **common):
    return {
        "index": index,
        "group_index": 0,
        "trajectory": index,
        "task": f"t{index}",
        "status": "completed",
        "reward": 1.0 if solved else -1.0,
        "score": {"solved": solved, "value": 1.0 if solved else -1.0},
        "episode": None,
        "infrastructure": None,
        **common,
    }


def journal(path, records):
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))


def test_records_are_the_outcomes_in_order_of_time(tmp_path):
    evaluations = [
        episode(index, solved, rollout_id=rollout, dataset="heldout")
        for rollout, outcomes in ((-1, (False, False)), (0, (True, False)), (1, (True, True)))
        for index, solved in enumerate(outcomes)
    ]
    journal(tmp_path / "evaluations.jsonl", evaluations)
    played = [episode(index, solved, rollout_id=index // 2) for index, solved in enumerate((True, False, True, True))]
    journal(tmp_path / "episodes.jsonl", played)
    records = read_figures(tmp_path, tmp_path / "tensorboard", steps=1, rollouts=2, limits=LIMITS)
    reported = [
        (record["kind"], record["rollout_id"], record.get("moment"), record["solve_rate"]) for record in records
    ]
    assert reported == [
        ("eval", -1, "before", 0.0),
        ("train", 0, None, 0.5),
        ("eval", 0, "during", 0.5),
        ("train", 1, None, 1.0),
        ("eval", 1, "after", 1.0),
    ]
    assert records[-1]["outcomes"] == {"t0": [1], "t1": [1]}


def test_a_run_without_a_rollout_has_one_evaluation_which_is_before_any(tmp_path):
    journal(tmp_path / "evaluations.jsonl", [episode(0, True, rollout_id=-1, dataset="heldout")])
    (record,) = read_figures(tmp_path, tmp_path / "tensorboard", steps=1, rollouts=0, limits=LIMITS)
    assert (record["kind"], record["moment"], record["rollout_id"]) == ("eval", "before", -1)
    assert LIMITS.items() <= record.items(), "what the figures are stated with"


def test_a_rollout_that_two_attempts_wrote_is_counted_once(tmp_path):
    played = [
        episode(index, solved=attempt == 2, rollout_id=rollout, attempt=attempt)
        for rollout, attempt in ((0, 1), (1, 1), (1, 2))
        for index in (2 * rollout, 2 * rollout + 1)
    ]
    journal(tmp_path / "episodes.jsonl", played)
    first, second = read_figures(tmp_path, tmp_path / "tensorboard", steps=1, rollouts=2, limits=LIMITS)
    assert (first["episodes"], first["solve_rate"], first["attempt"]) == (2, 0.0, 1)
    assert (second["episodes"], second["solve_rate"], second["attempt"]) == (2, 1.0, 2)


def test_a_broken_episode_is_counted_apart(tmp_path):
    broken = episode(1, False, rollout_id=0, status="aborted", reward=0.0, infrastructure={"where": "sandbox_error"})
    journal(tmp_path / "episodes.jsonl", [episode(0, True, rollout_id=0), broken])
    (record,) = read_figures(tmp_path, tmp_path / "tensorboard", steps=2, rollouts=1, limits=LIMITS)
    assert (record["solve_rate"], record["infrastructure_failures"]) == (1.0, 1)


def test_slimes_figures_are_means_over_steps_and_the_gap_is_the_first_steps():
    reported = {"train/grad_norm": {2: 1.0, 3: 3.0}, GAP: {2: 0.25, 3: 9.0}, "perf/train_time": {1: 4.0}}
    assert step_figures(reported, 1, 2) == {"grad_norm": 2.0, "logprob_diff_mean": 0.25, "seconds": {"training": 4.0}}
    assert step_figures(reported, 5, 2) == {"seconds": {}}


@pytest.mark.parametrize(("staleness", "gap"), [(0.0, {"logprob_diff_mean": 0.25}), (1.0, {})])
def test_the_gap_is_reported_where_the_weights_that_sampled_are_the_trainers(staleness, gap):
    reported = {GAP: {2: 0.25}, "rollout/staleness_max": {2: staleness}, "rollout/dynamic_filter/drop_x": {1: 3.0}}
    assert step_figures(reported, 2, 1) == {"rollout/staleness_max": staleness, **gap, "seconds": {}}
    assert step_figures(reported, 1, 1) == {"rollout/dynamic_filter/drop_x": 3.0, "seconds": {}}


def test_where_older_weights_have_sampled_the_gap_is_what_was_found_during_the_next_rollout():
    reported = {GAP: {0: 0.25, 1: 0.5}, "rollout/staleness_max": {0: 0.0, 1: 1.0}, GAP_BEFORE: {1: 0.1, 2: 0.125}}
    found = [step_figures(reported, number, 1).get("logprob_diff_mean") for number in range(3)]
    assert found == [0.25, 0.125, None]


@pytest.mark.parametrize(
    ("schedule", "steps_old", "script", "lag"),
    [
        *(("sync", 2, "train.py", 0), ("carry", 2, "train.py", 0), ("continuous", 0, "train.py", 0)),
        *(("continuous", 2, "train_async.py", 1), ("async", 0, "train_async.py", 1)),
    ],
)
def test_slimes_script_is_the_one_that_the_schedule_needs(tmp_path, schedule, steps_old, script, lag):
    changes = {"rollout__schedule": schedule, "rollout__max_staleness": steps_old, "algorithm__steps_per_rollout": 1}
    recipe = variant("tiny_cpu", engine="slime_cpu", **changes)
    require_legal(recipe)
    job = render(recipe, tmp_path, "HOST:1", checkouts=checkouts.Checkouts(Path("/slime"), Path("/megatron")))
    assert job.program[-1] == f"/slime/{script}"
    assert f"swe_version_lag: {lag}\n" in job.files[tmp_path / SETTINGS]


def test_a_run_without_a_rollout_evaluates_by_the_script_that_can(tmp_path):
    """The other one would sample a batch that is never trained."""
    changes = {"rollout__schedule": "async", "run__num_rollouts": 0, "algorithm__steps_per_rollout": 1}
    recipe = variant("tiny_cpu", engine="slime_cpu", **changes)
    require_legal(recipe)
    job = render(recipe, tmp_path, "HOST:1", checkouts=checkouts.Checkouts(Path("/slime"), Path("/megatron")))
    assert job.program[-1] == "/slime/train.py"
    said = job.words
    assert said[said.index("--num-rollout") + 1] == "0" and "--eval-interval" in said


@pytest.mark.parametrize(("layout", "count"), [({}, 1), ({"tp": 2}, 2), ({"tp": 2, "cp": 4}, 8), ({"pp": 5}, 5)])
def test_a_job_has_as_many_ranks_as_hold_the_model_once(tmp_path, layout, count):
    recipe = variant("tiny_cpu", engine="slime_cpu", parallel=Parallel(**layout))
    job = render(recipe, tmp_path, "127.0.0.1:1", checkouts=Checkouts(tmp_path / "slime", tmp_path / "Megatron-LM"))
    assert job.argv[job.argv.index("--actor-num-gpus-per-node") + 1] == str(count)


def test_only_the_job_finds_the_stand_ins(tmp_path):
    job = render(variant("tiny_cpu", engine="slime_cpu"), tmp_path, "127.0.0.1:1", checkouts=SLIME.checkouts())
    first, *_ = job.environment["PYTHONPATH"].split(os.pathsep)
    assert sorted(path.name for path in Path(first).iterdir() if path.name != "__pycache__") == [
        "fla",
        "transformer_engine",
    ]
    assert first not in sys.path


def test_a_rollout_whose_steps_have_no_gradient_trained_no_token():
    assert step_figures({"train/grad_norm": {0: 0.0, 1: 0.0}}, 0, 2)["trained_tokens"] == 0
    assert "trained_tokens" not in step_figures({"train/grad_norm": {0: 0.0, 1: 0.5}}, 0, 2)


def test_tensorboard_files_are_read_back(tmp_path):
    pytest.importorskip("tensorboard", reason="comes with SLiME's environment")
    from torch.utils.tensorboard import SummaryWriter

    from slime_swe.launch.slime_cpu.run import scalars

    for value in (1.0, 2.5):
        with SummaryWriter(str(tmp_path)) as writer:
            writer.add_scalar("train/loss", value, 7)
    assert scalars(tmp_path) == {"train/loss": {7: 2.5}}


def test_the_launcher_asks_for_the_checkouts_before_it_installs_anything(tmp_path):
    for folder in ("src", "launch", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_HOME")}
    command = ["bash", "launch/run_qwen_swe.sh", "recipe=tiny_cpu", "engine=slime_cpu"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "SLIME_HOME is not set" in done.stderr and "git clone" in done.stderr
    assert not list(tmp_path.glob(".venv*"))
