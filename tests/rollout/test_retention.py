"""Old checkpoints and exports go; none that a resumed run needs, and none that is still written."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import orjson
import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.records import METRICS
from slime_swe.rollout.retention import INDEX, TRACKER, best_rollout, last_saved, remove_old
from slime_swe.rollout.slime_plugin import generate_rollout


class Run:
    """The folder of a run as SLiME and Megatron write it: a checkpoint and an export of each of these rollouts."""

    def __init__(self, folder: Path, saved, *, exported=None, tracker=None) -> None:
        self.checkpoints, self.exports = folder / "checkpoints", folder / "exports"
        for number in saved:
            self.save(number)
        for number in saved if exported is None else exported:
            self.export(number)
        self.finish(max(saved) if tracker is None else tracker)

    def save(self, number):
        shards = self.checkpoints / f"iter_{number:07d}"
        shards.mkdir(parents=True)
        for name in ("__0_0.distcp", "__0_1.distcp", ".metadata", "common.pt", "metadata.json"):
            (shards / name).write_bytes(b"x" * 64)
        (self.checkpoints / "rollout").mkdir(exist_ok=True)
        (self.checkpoints / "rollout" / f"task_data_source_{number}.json").write_text("{}")

    def finish(self, number):
        (self.checkpoints / TRACKER).write_text(str(number))

    def export(self, number, *, whole=True):
        folder = self.exports / str(number)
        folder.mkdir(parents=True)
        (folder / "model-00001.safetensors").write_bytes(b"x" * 64)
        if whole:
            (folder / INDEX).write_text("{}")

    def begin(self, rollout, *, checkpoints=2, exports=2, lag=0, best=""):
        args = Namespace(
            swe_run_dir=str(self.checkpoints.parent),
            swe_keep_best=best,
            save=str(self.checkpoints),
            save_hf=f"{self.exports}/{{rollout_id}}",
            swe_keep_checkpoints=checkpoints,
            swe_keep_exports=exports,
            swe_version_lag=lag,
        )
        remove_old(args, rollout)

    @property
    def left(self):
        """Rollouts whose checkpoints are there, and those whose exports are."""
        saved = sorted(int(path.name.removeprefix("iter_")) for path in self.checkpoints.glob("iter_*"))
        return saved, sorted(int(path.name) for path in self.exports.iterdir())


def test_the_newest_stay_and_all_else_stays_as_it_was(tmp_path):
    run = Run(tmp_path, range(5))
    (run.checkpoints / "notes").mkdir()
    (run.exports / "best").mkdir()
    before = sorted(path.name for path in (run.checkpoints / "rollout").iterdir())
    run.begin(5, checkpoints=1, exports=3)
    (run.exports / "best").rmdir()
    assert run.left == ([4], [2, 3, 4])
    assert (run.checkpoints / "notes").is_dir() and (run.checkpoints / TRACKER).read_text() == "4"
    assert sorted(path.name for path in (run.checkpoints / "rollout").iterdir()) == before
    assert len(list((run.checkpoints / "iter_0000004").iterdir())) == 5


def test_zero_keeps_all(tmp_path):
    run = Run(tmp_path, range(5))
    run.begin(5, checkpoints=0, exports=0)
    assert run.left == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


@pytest.mark.parametrize("keep", [1, 2])
def test_a_checkpoint_that_is_still_written_counts_for_none(tmp_path, keep):
    """Of an asynchronous save the tracker speaks only when it has ended; its export is whole before."""
    run = Run(tmp_path, [19, 39, 59], tracker=39)
    run.begin(60, checkpoints=keep, exports=1)
    assert run.left == ([19, 39, 59][2 - keep :], [59])


def test_one_whose_state_of_the_data_source_may_be_missing_counts_for_none(tmp_path):
    """`train_async.py` begins rollout 5 before it trains and saves 4; 4 is resumed only with both parts."""
    run = Run(tmp_path, range(5))
    run.begin(5, checkpoints=1, exports=1, lag=1)
    assert run.left == ([3, 4], [3, 4])


def test_an_export_that_was_never_whole_is_no_newest(tmp_path):
    run = Run(tmp_path, range(4), exported=[0, 1])
    run.export(2, whole=False)
    run.export(3, whole=False)
    run.begin(4, exports=1)
    assert run.left[1] == [1, 2, 3]
    run.export(4)
    run.begin(5, exports=1)
    assert run.left[1] == [4]


@pytest.mark.parametrize("text", ["", "release", "1 9"])
def test_a_tracker_that_is_being_written_removes_nothing(tmp_path, text):
    run = Run(tmp_path, range(4), tracker=text)
    run.begin(4, checkpoints=1)
    assert run.left[0] == [0, 1, 2, 3]


def test_without_a_checkpoint_there_is_nothing_to_do(tmp_path):
    run = Run(tmp_path, [0])
    (run.checkpoints / TRACKER).unlink()
    assert last_saved(run.checkpoints, unreadable=9) == -1
    run.begin(1, checkpoints=1)
    assert run.left[0] == [0]
    remove_old(Namespace(save=str(tmp_path / "none"), swe_keep_checkpoints=1), 0)
    remove_old(Namespace(), 0)


def test_what_a_crash_left_half_removed_looks_like_no_checkpoint_and_goes(tmp_path, monkeypatch):
    run = Run(tmp_path, range(4))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            run.begin(4, checkpoints=1)
    assert run.left[0] == [1, 2, 3]
    assert (run.checkpoints / ".removed-iter_0000000").is_dir()
    run.begin(4, checkpoints=1)
    assert run.left[0] == [3] and not list(run.checkpoints.glob(".removed-*"))


def test_it_happens_before_a_rollout_and_not_before_an_evaluation(tmp_path):
    run = Run(tmp_path, range(3))
    args = Namespace(save=str(run.checkpoints), swe_keep_checkpoints=1)
    for evaluation, left in ((True, [0, 1, 2]), (False, [2])):
        with pytest.raises((UserError, AttributeError)):  # these arguments play nothing
            generate_rollout(args, 3, None, evaluation=evaluation)
        assert run.left[0] == left


def evaluated(run: Run, *figures, name="verified"):
    """An evaluation after each rollout: its solve rate, or several of which the last attempt made the last."""
    lines = [
        {"kind": "eval", "name": name, "rollout_id": rollout, "solve_rate": rate}
        for rollout, rates in figures
        for rate in (rates if isinstance(rates, tuple) else (rates,))
    ]
    with (run.checkpoints.parent / METRICS).open("ab") as file:
        file.writelines(orjson.dumps(line) + b"\n" for line in lines)


def test_the_best_by_an_evaluation_stays_beside_the_newest(tmp_path):
    """A run of which each second rollout is evaluated, and the figures come as they come."""
    run, left = Run(tmp_path, [0]), []
    evaluated(run, (-1, 0.9), (0, 0.9), name="another")
    evaluated(run, (-1, 0.9))
    script = {1: 0.2, 3: 0.5, 5: None, 7: 0.5, 9: (0.9, 0.1), 11: 0.6, 13: 0.3}
    for rollout in range(1, 15):
        run.begin(rollout, checkpoints=2, exports=1, best="verified")
        run.save(rollout)
        run.export(rollout)
        run.finish(rollout)
        if rollout in script:
            evaluated(run, (rollout, script[rollout]))
            left.append(best_rollout(tmp_path, "verified"))
    assert left == [1, 3, 3, 3, 3, 11, 11]
    run.begin(15, checkpoints=2, exports=1, best="verified")
    assert run.left == ([11, 13, 14], [11, 14])
    run.begin(15, checkpoints=2, exports=1)
    assert run.left == ([13, 14], [14])


@pytest.mark.parametrize("lines", ["", '{"kind": "eval", "na'])
def test_without_a_figure_there_is_no_best(lines, tmp_path):
    assert best_rollout(tmp_path, "verified") is None
    (tmp_path / METRICS).write_text(lines)
    assert best_rollout(tmp_path, "verified") is None


def killed(*args, **options):
    raise KeyboardInterrupt


def test_what_can_not_be_removed_is_named_and_the_run_goes_on(tmp_path, caplog):
    run = Run(tmp_path, range(3))
    (run.checkpoints / ".removed-iter_0000000").write_text("in the way")
    run.begin(3, checkpoints=1, exports=1)
    assert run.left == ([0, 2], [2])
    assert "iter_0000000: Not a directory" in caplog.text


def test_a_number_that_is_none_is_refused():
    with pytest.raises(UserError, match="swe_keep_checkpoints"):
        remove_old(Namespace(save="a", swe_keep_checkpoints=-1), 1)
