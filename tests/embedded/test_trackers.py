"""Trackers: what they hold is what the run's own file holds, and however one dies the run goes on and says so.

The local counterparts are real: Weights & Biases offline, trackio's own store, TensorBoard's files."""

from __future__ import annotations

import logging
import struct
import time
from argparse import Namespace
from pathlib import Path

import orjson
import pytest

from slime_swe.embedded.loop import train
from slime_swe.embedded.trackers import (
    MOST_WAITING,
    STEP,
    TRACKERS,
    Opening,
    Trackers,
    figures_of,
    require_account,
)
from slime_swe.errors import UserError
from slime_swe.journal import Journal
from slime_swe.rollout.metrics import COLUMNS, SAMPLED, SHOWN
from slime_swe.rollout.slime_plugin import log_rollout
from tests.embedded.scripted import NoProgress, TinyEngine, make_args
from tests.embedded.test_loop import lasting
from tests.planted import ENVIRONMENT
from tests.rollout.support import make_sample
from tests.waiting import wait_for

wandb = pytest.importorskip("wandb")
pytest.importorskip("trackio")
pytest.importorskip("tensorboard")


@pytest.fixture(autouse=True)
def local(tmp_path, monkeypatch):
    """Nothing leaves this machine, and nothing is written outside the test's folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR", "TRACKIO_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio_dir")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio_dir")
    yield
    wandb.teardown()


def in_wandb(run_dir: Path) -> list[dict]:
    """The history in the file of an offline run: LevelDB's log format, after seven bytes of wandb's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    data, at, part, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        part, at = part + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last part
            record, part = Record.FromString(part), b""
            if record.WhichOneof("record_type") == "history":
                items = [(list(i.nested_key) or [i.key], orjson.loads(i.value_json)) for i in record.history.item]
                found.append({"/".join(key): value for key, value in items if not key[0].startswith("_")})
    return found


def in_trackio(name: str) -> list[dict]:
    from trackio.sqlite_storage import SQLiteStorage

    return [
        {k: v for k, v in log.items() if k not in ("timestamp", "step")} for log in SQLiteStorage.get_logs("p", name)
    ]


def in_tensorboard(run_dir: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_three_hold_what_metrics_jsonl_holds_and_change_nothing_in_the_run(tiny_checkpoint, tmp_path):
    plain, run_dir = tmp_path / "plain" / "run", tmp_path / "tracked" / "run"
    with TinyEngine(tiny_checkpoint) as engine:
        small = {"num_rollout": 2, "n_samples_per_eval_prompt": 1, **engine.address}
        train(make_args(tiny_checkpoint, plain, **small), NoProgress())
        args = make_args(tiny_checkpoint, run_dir, swe_trackers=list(TRACKERS), swe_project="p", **small)
        summary = train(args, NoProgress())
    assert summary["trackers_lost"] == {}
    assert lasting(run_dir) == lasting(plain)
    records = Journal(run_dir / "metrics.jsonl").read()
    expected = [{STEP: record["rollout_id"], **figures_of(record)} for record in records]
    assert any("train/grad_norm" in each for each in expected) and any("swe/reward" in each for each in expected)
    for logged in (in_wandb(run_dir), in_trackio("run")):
        scalars = [{k: v for k, v in each.items() if not k.startswith(SAMPLED)} for each in logged]
        assert scalars == [pytest.approx(own, rel=1e-6, abs=1e-12) for own in expected]
        assert sum(any(k.startswith(SAMPLED) for k in each) for each in logged) == 2  # training steps
    (rows, _) = [each[SAMPLED]["_value"] for each in in_trackio("run") if SAMPLED in each]
    assert len(rows) == SHOWN and tuple(rows[0]) == COLUMNS and rows[0]["task"].startswith("train-")
    board = in_tensorboard(run_dir)
    for own in expected:
        for name, value in own.items():
            assert name == STEP or board[name][own[STEP]] == pytest.approx(value, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("flag", "step"), [(False, 5), (True, 10)])
def test_under_slime_a_table_of_episodes_goes_to_its_own_run(flag, step, tmp_path, monkeypatch):
    """At SLiME's step of the rollout, and without secrets."""
    name, secret = next(iter(ENVIRONMENT.items()))
    monkeypatch.setenv(name, secret)
    args = Namespace(swe_run_dir=str(tmp_path), use_wandb=True, wandb_always_use_train_step=flag)
    args.rollout_batch_size, args.n_samples_per_prompt, args.global_batch_size = 4, 8, 16
    sample = make_sample()
    sample.reward, sample.tokens, sample.metadata["episode"] = 1.0, [1, 2], {"patch": f"+{secret}", "turns": 3}
    log_rollout(5, args, [sample], {}, 1.0)  # SLiME has no run here yet
    run = wandb.init(project="p", dir=str(tmp_path), settings=wandb.Settings(silent=True, console="off"))
    log_rollout(5, args, [sample], {}, 1.0)
    run.finish()
    wandb.teardown()  # only then is the file sure to be whole
    (logged,) = in_wandb(tmp_path)
    assert logged[STEP] == step and any(each.startswith(SAMPLED) for each in logged)
    (table,) = tmp_path.rglob("*.table.json")
    held = orjson.loads(table.read_bytes())
    assert tuple(held["columns"]) == COLUMNS and secret not in table.read_text()
    assert held["data"] == [[5, "calc-1", True, 1.0, "", 3, f"+[{name} redacted]"]]


class Dying:
    """A tracker that fails at one of its calls."""

    def __init__(self, at: str, how: BaseException | None) -> None:
        self.at, self.how = at, how
        self.fail("open")

    def fail(self, moment: str) -> None:
        if moment == self.at:
            if self.how is None:
                time.sleep(3600)
            else:
                raise self.how

    def log(self, step, figures, episodes) -> None:
        self.fail(f"log {step}")

    def close(self) -> None:
        self.fail("close")


@pytest.mark.parametrize("how", [ConnectionError("no route\nto it"), SystemExit(1), KeyError("x")], ids=repr)
@pytest.mark.parametrize("at", ["open", "log 1", "close"])
def test_a_tracker_that_raises_is_said_once_and_the_others_go_on(tmp_path, monkeypatch, caplog, at, how):
    monkeypatch.setitem(TRACKERS, "wandb", lambda opening: Dying(at, how))
    with caplog.at_level(logging.WARNING, "slime_swe.embedded.trackers"):
        running = Trackers(["wandb", "tensorboard"], Opening(tmp_path, "p"))
        for step in range(4):
            running.log(step, {"a": float(step)})
        lost = running.close()
    assert lost.keys() == {"wandb"} and lost["wandb"].startswith(type(how).__name__)
    assert "\n" not in lost["wandb"]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("wandb is lost, and the run goes on without it") and "metrics.jsonl" in said
    assert in_tensorboard(tmp_path)["a"] == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}


@pytest.mark.parametrize("at", ["open", "log 0", "close"])
def test_a_tracker_that_hangs_holds_up_nobody(tmp_path, monkeypatch, caplog, at):
    monkeypatch.setitem(TRACKERS, "wandb", lambda opening: Dying(at, None))
    with caplog.at_level(logging.WARNING, "slime_swe.embedded.trackers"):
        running = Trackers(["wandb"], Opening(tmp_path, "p"))
        for step in range(2 * MOST_WAITING if at != "close" else 2):
            running.log(step, {"a": 1.0})
        lost = running.close(0.2)
    assert lost == {
        "wandb": "it did not end within 0 s" if at == "close" else f"{MOST_WAITING} logs wait, and it takes none"
    }
    assert len(caplog.records) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # in TensorBoard's own thread
def test_a_disk_that_fills_up_ends_tensorboard_and_not_the_run(tmp_path):
    running = Trackers(["tensorboard"], Opening(tmp_path, "p"))
    running.log(0, {"a": 0.0})
    wait_for(lambda: any(file.stat().st_size for file in tmp_path.glob("tensorboard/*")), "its first file")
    files = list(tmp_path.glob("tensorboard/*"))
    time.sleep(0.5)
    files[0].rename(tmp_path / "kept")
    files[0].symlink_to("/dev/full")
    for step in range(1, 6):
        running.log(step, {"a": 1.0})
        time.sleep(0.1)
    assert "No space left on device" in running.close()["tensorboard"]


@pytest.mark.slow
def test_a_server_that_is_away_is_said_in_the_summary(tiny_checkpoint, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    wandb.teardown()  # it has read its settings
    with TinyEngine(tiny_checkpoint) as engine:
        args = make_args(tiny_checkpoint, tmp_path / "run", num_rollout=1, swe_eval_tasks={}, swe_trackers=["wandb"],
                         swe_project="p", **engine.address)  # fmt: skip
        summary = train(args, NoProgress())
    assert summary["trackers_lost"].keys() == {"wandb"}
    assert orjson.loads((tmp_path / "run" / "summary.json").read_bytes()) == summary
    assert len(lasting(tmp_path / "run")) == 1
    assert sum("wandb is lost" in record.getMessage() for record in caplog.records) == 1


def test_wandb_without_a_key_is_refused_before_the_run(tmp_path, monkeypatch):
    """It would ask for one, and nobody is there."""
    require_account()  # offline needs none
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb.teardown()
    with pytest.raises(UserError, match=r"there is no key for it: set WANDB_API_KEY, .* WANDB_MODE=offline"):
        require_account()


@pytest.mark.parametrize("name", TRACKERS)
def test_no_secret_of_the_environment_reaches_a_tracker(name, tmp_path, monkeypatch):
    """One of each kind, in the configuration and in what is shown of an episode; as it is, and as JSON has it."""
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    text = "\n".join(f"{kind} of {value}" for kind, value in ENVIRONMENT.items())
    running = Trackers([name], Opening(tmp_path / "run", "p", {"note": text}))
    running.log(0, {"a": 1.0}, [[0, text, True, 1.0, "submitted", 3, f"+{text}"]])
    assert running.close() == {}
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert written.count(b"redacted]") >= len(ENVIRONMENT)
    shown = (form for value in ENVIRONMENT.values() for form in (value, orjson.dumps(value).decode()[1:-1]))
    assert not [form for form in shown if form.encode() in written]
