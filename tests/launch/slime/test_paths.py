"""A resumed run under SLiME: its journals hold each rollout once."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest

from slime_swe.attempts import HeldError, attempting
from slime_swe.data_sources.slime_plugin import state_path
from slime_swe.errors import UserError
from slime_swe.launch.slime.paths import CHECKPOINTS, DRIVERS, EXPORTS, cut_back
from slime_swe.rollout.retention import INDEX, METADATA, TRACKER


@pytest.fixture
def run(tmp_path):
    """A run that was killed in its fifth rollout (number 4), in the middle of a line."""
    run = tmp_path
    (run / CHECKPOINTS).mkdir()
    written = {
        "episodes.jsonl": (0, 0, 1, 1, 2, 2, 3, 3, 4),
        "evaluations.jsonl": (0, 0, 1, 1, 3, 3),
        "trained.jsonl": (0, 1, 2, 3, 4),
    }
    for name, numbers in written.items():
        lines = b"".join(orjson.dumps({"rollout_id": number, "index": i}) + b"\n" for i, number in enumerate(numbers))
        (tmp_path / name).write_bytes(lines + b'{"rollout_id": 4, "ind')
    return run


def save(run, *numbers, newest, states):
    for number in numbers:
        folder = run / CHECKPOINTS / f"iter_{number:07}"
        folder.mkdir()
        (folder / METADATA).touch()
    (run / CHECKPOINTS / "rollout").mkdir()
    for number in states:
        state_path(run / CHECKPOINTS, number).write_text("{}")
    (run / CHECKPOINTS / TRACKER).write_text(newest)


def rollouts(run, name):
    return [orjson.loads(line)["rollout_id"] for line in (run / name).read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("saved", "played", "evaluated"),
    [
        ("1", [0, 0, 1, 1], [0, 0, 1, 1]),
        ("2\n", [0, 0, 1, 1, 2, 2], [0, 0, 1, 1]),
        ("4", [0, 0, 1, 1, 2, 2, 3, 3, 4], [0, 0, 1, 1, 3, 3]),
    ],
)
def test_what_came_after_the_newest_checkpoint_is_dropped(run, saved, played, evaluated):
    save(run, newest=saved, states=[int(saved)])
    cut_back(run)
    assert (rollouts(run, "episodes.jsonl"), rollouts(run, "evaluations.jsonl")) == (played, evaluated)
    assert rollouts(run, "trained.jsonl") == sorted({*played})


def test_the_lines_of_metrics_go_back_too_and_of_each_thing_the_last_attempt_s_stays(run):
    """The evaluation after rollout 1 was made again by the second attempt, its training not."""
    save(run, newest="1", states=[1])
    written = [("train", 0, 1), ("train", 1, 1), ("eval", 1, 1), ("train", 2, 1), ("eval", 1, 2)]
    lines = [{"kind": kind, "rollout_id": number, "attempt": attempt} for kind, number, attempt in written]
    (run / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    cut_back(run)
    left = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    assert left == [lines[0], lines[1], lines[4]]


def test_nothing_is_left_of_a_run_without_a_checkpoint(run):
    cut_back(run)
    assert (rollouts(run, "episodes.jsonl"), rollouts(run, "evaluations.jsonl")) == ([], [])


@pytest.mark.parametrize("newest", ["3", ""])
def test_a_kill_while_a_checkpoint_was_saved_takes_the_one_before(newest, run, capsys):
    """Megatron's checkpoint of rollout 3 is whole and has no state of the data source; that of 2 was never whole."""
    save(run, 0, 1, 3, newest=newest, states=[0, 1, 2])
    cut_back(run)
    assert (run / CHECKPOINTS / TRACKER).read_text() == "1"
    assert (rollouts(run, "episodes.jsonl"), rollouts(run, "evaluations.jsonl")) == ([0, 0, 1, 1], [0, 0, 1, 1])
    assert "going on from the checkpoint of rollout 1" in capsys.readouterr().err


@pytest.mark.parametrize(("newest", "said"), [("3", "task_data_source_3.json is missing"), ("", "holds no number")])
def test_where_no_checkpoint_can_be_resumed_it_is_said_what_to_do(newest, said, run):
    save(run, 3, newest=newest, states=[])
    with pytest.raises(UserError, match=f"{said}.* with the model's weights again, delete .*/{TRACKER}"):
        cut_back(run)
    assert (run / "evaluations.jsonl").read_bytes().endswith(b'"ind'), "nothing is cut"


def test_another_data_source_has_its_state_elsewhere(run):
    save(run, 1, newest="1", states=[])
    cut_back(run, own_state=False)
    assert rollouts(run, "episodes.jsonl") == [0, 0, 1, 1]


def export(run, number, *names):
    folder = run / EXPORTS / str(number)
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("newest", ["4", ""])
@pytest.mark.parametrize("own_state", [True, False])
def test_a_kill_in_the_last_export_trains_that_rollout_again(newest, own_state, run, capsys):
    """SLiME has saved rollout 4, the last of 5, and would begin no other. Rollout 3 needs no export."""
    save(run, 2, 3, 4, newest=newest, states=[2, 3, 4] if own_state else [])
    export(run, 4, "config.json")
    cut_back(run, own_state=own_state, rollouts=5)
    assert (run / CHECKPOINTS / TRACKER).read_text() == "3"
    assert rollouts(run, "episodes.jsonl") == [0, 0, 1, 1, 2, 2, 3, 3]
    lacks = f"exports/4/{INDEX} is missing" if newest else f"{TRACKER} holds no number"
    assert f"{lacks}: going on from the checkpoint of rollout 3" in capsys.readouterr().err


@pytest.mark.parametrize(("length", "names"), [(5, ["config.json", INDEX]), (6, ["config.json"]), (0, [])])
def test_a_checkpoint_counts_whose_export_is_whole_or_followed_by_another(length, names, run, capsys):
    save(run, 3, 4, newest="4", states=[3, 4])
    export(run, 4, *names)
    cut_back(run, rollouts=length)
    assert (run / CHECKPOINTS / TRACKER).read_text() == "4" and capsys.readouterr().err == ""


def test_where_the_last_export_alone_is_missing_it_is_said_how_it_is_made(run):
    save(run, 4, newest="4", states=[4])
    said = f"exports/4/{INDEX} is missing.*`slime-swe evaluate {run / CHECKPOINTS}` prints with --output-dir "
    with pytest.raises(UserError, match=f"{said}{run}/exports/4 --force, and resume. To begin .*/{TRACKER}"):
        cut_back(run, rollouts=5)
    assert (run / CHECKPOINTS / TRACKER).read_text() == "4"
    export(run, 4, INDEX)
    cut_back(run, rollouts=5)


def test_a_run_that_has_not_written_yet_is_resumed(tmp_path):
    cut_back(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_what_two_attempts_wrote_the_last_stays(run):
    """The first attempt's process was slow to end, and wrote after the second had cut the journals."""
    written = [(0, 1), (1, 1), (2, 1), (4, 1), (2, 2), (3, 2), (4, 2)]
    lines = [orjson.dumps({"rollout_id": rollout, "attempt": attempt}) + b"\n" for rollout, attempt in written]
    (run / "episodes.jsonl").write_bytes(b"".join(lines))
    save(run, newest="3", states=[3])
    cut_back(run)
    left = [orjson.loads(line) for line in (run / "episodes.jsonl").read_bytes().splitlines()]
    assert [(record["rollout_id"], record["attempt"]) for record in left] == [(0, 1), (1, 1), (2, 2), (3, 2)]


@pytest.mark.parametrize("line", [b"garbage", b"[]", b'{"index": 1}'])
def test_a_line_that_is_no_record_is_named_and_nothing_is_cut(line, run):
    (run / "episodes.jsonl").write_bytes(b'{"rollout_id": 9}\n' + line + b"\n")
    with pytest.raises(UserError, match=r"episodes.jsonl has a line that is no record"):
        cut_back(run)
    assert (run / "episodes.jsonl").read_bytes().endswith(line + b"\n")


def test_nothing_is_cut_while_slime_still_runs(run):
    before = (run / "episodes.jsonl").read_bytes()
    with attempting(run / DRIVERS), pytest.raises(HeldError, match="is written by process"):
        cut_back(run)
    assert (run / "episodes.jsonl").read_bytes() == before


def test_the_driver_of_a_job_holds_the_lock_and_the_next_is_refused(tmp_path):
    words = [sys.executable, "-m", "slime_swe.launch.ray.driver", sys.executable, "-c"]
    waiting = "import sys; print(sys.argv[1], flush=True); sys.stdin.read()"
    first = subprocess.Popen(
        [*words, waiting, "a b"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "a b\n"
    second = subprocess.run([*words, "print('never')"], cwd=tmp_path, capture_output=True, text=True)
    assert (second.returncode, second.stdout) == (2, "")
    assert f"{tmp_path} is written by process {first.pid}" in second.stderr
    with pytest.raises(HeldError):
        cut_back(tmp_path)
    first.kill()
    first.communicate()
    cut_back(tmp_path)
