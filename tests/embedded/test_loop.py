"""The loop from the first evaluation to the summary, with scripted plug-ins addressed by dotted path."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from slime_swe.attempts import ATTEMPTS, HeldError, attempting
from slime_swe.embedded.checkpoint import ResumeError
from slime_swe.embedded.loop import train
from slime_swe.embedded.server_process import ServerError
from slime_swe.embedded.trainer import Trainer
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import FileError
from slime_swe.journal import Journal
from slime_swe.rollout.collect import FilterError
from slime_swe.rollout.journals import TrainedSamples, read_records
from slime_swe.rollout.scheduling import outage
from slime_swe.sample import Sample
from slime_swe.saving import StoppedToResume, request_stop
from tests.embedded.scripted import NoProgress, TinyEngine, generate, make_args, reward

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def engine(tiny_checkpoint):
    with TinyEngine(tiny_checkpoint) as engine:
        yield engine


def lasting(run_dir: Path) -> list[dict]:
    """The records of metrics.jsonl without their times, and without which of the run's attempts wrote them."""
    records = Journal(run_dir / "metrics.jsonl").read()
    return [{k: v for k, v in record.items() if k not in ("seconds", "serving", "attempt")} for record in records]


def episodes(run_dir: Path) -> list[tuple[int, int]]:
    return [(record["rollout_id"], record["index"]) for record in Journal(run_dir / "episodes.jsonl").read()]


def trained(run_dir: Path) -> dict[tuple[int, int], dict]:
    """The records of trained.jsonl by rollout and index, without which of the run's attempts wrote them."""
    records = Journal(run_dir / "trained.jsonl").read()
    found = {(r["rollout_id"], r["index"]): {k: v for k, v in r.items() if k != "attempt"} for r in records}
    assert len(found) == len(records)
    return found


def test_a_run_without_a_rollout_evaluates_once_and_trains_nothing(tiny_checkpoint, tmp_path, engine):
    progress, folder = NoProgress(), tmp_path / "run"
    summary = train(make_args(tiny_checkpoint, folder, num_rollout=0, **engine.address), progress)
    found = [(record["kind"], record["name"], record["moment"]) for record in lasting(folder)]
    assert found == [("eval", "heldout", "before"), ("eval", "unseen", "before")]
    assert summary["heldout_episodes_before"] == 12 and "heldout_episodes_after" not in summary
    assert progress.steps == [] and not (folder / "episodes.jsonl").exists()


def test_a_run_leaves_its_records_and_learns_what_is_rewarded(tiny_checkpoint, tmp_path, engine):
    progress = NoProgress()
    args = make_args(
        tiny_checkpoint,
        tmp_path / "run",
        num_rollout=6,
        eval_interval=3,
        lr=0.03,
        swe_keep_checkpoints=0,
        **engine.address,
    )
    summary = train(args, progress)
    run_dir = tmp_path / "run"
    assert json.loads((run_dir / "summary.json").read_bytes()) == summary
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    records = lasting(run_dir)
    kinds = [(record["kind"], record.get("moment")) for record in records]
    two = [("eval", "during")] * 2
    steps = [("train", None)] * 3
    assert kinds == [("eval", "before")] * 2 + steps + two + steps + [("eval", "after")] * 2
    played = episodes(run_dir)
    assert [index for _, index in played] == list(range(len(played))) and len(played) >= 6 * 16
    assert [rollout_id for rollout_id, _ in played] == sorted(rollout_id for rollout_id, _ in played)
    assert engine.versions == ["-1", *map(str, range(6))]
    assert [step for step, _ in progress.steps] == list(range(6))
    assert progress.evals[0] == "heldout before" and progress.evals[-1] == "unseen after"
    assert {"startup", "evaluation", "generation", "training", "weight_sync", "checkpoint"} <= set(progress.phases)
    assert "heldout 1/12" in progress.phases
    assert summary["heldout_solve_rate_after"] > summary["heldout_solve_rate_before"] + 0.2
    assert summary["heldout_episodes_before"] == 12 and summary["unseen_bug_class_tasks_after"] == 6
    assert summary["logprob_diff_max"] <= 1e-4 and summary["nothing_trained_because"] is None
    assert 0 < sum(summary["seconds_by_phase"].values()) <= summary["wall_seconds"]
    checkpoints = sorted(path.name for path in (run_dir / "checkpoints").glob("rollout_*"))
    assert checkpoints == [f"rollout_{rollout_id}" for rollout_id in range(6)]
    for name in checkpoints:  # each is a model like any other
        folder = run_dir / "checkpoints" / name / "hf"
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
        Trainer(make_args(folder, run_dir))


def test_two_runs_of_one_seed_give_identical_metrics_and_another_seed_does_not(tiny_checkpoint, tmp_path, engine):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        args = make_args(
            tiny_checkpoint,
            tmp_path / name / "run",
            rollout_seed=seed,
            num_rollout=2,
            n_samples_per_eval_prompt=1,
            **engine.address,
        )
        args.sglang_server_concurrency = {"a": 2, "b": 16, "c": 2}[name]
        train(args, NoProgress())
    a, b, c = (lasting(tmp_path / name / "run") for name in "abc")
    assert a == b != c


def test_resume_after_any_step_equals_the_uninterrupted_run(tiny_checkpoint, tmp_path, engine):
    whole = make_args(tiny_checkpoint, tmp_path / "whole" / "run", swe_eval_tasks={}, **engine.address)
    train(whole, NoProgress())

    class Interrupt(NoProgress):
        def on_step(self, record):  # step's records are written, its checkpoint is not
            if record["rollout_id"] == self.at:
                raise KeyboardInterrupt

    args = make_args(tiny_checkpoint, tmp_path / "parts" / "run", **engine.address)
    args.swe_eval_tasks, args.swe_tasks = {}, whole.swe_tasks
    for at in (0, 2, None):
        progress = Interrupt()
        progress.at = at
        try:
            train(args, progress)
        except KeyboardInterrupt:
            assert at is not None
            with (tmp_path / "parts/run/metrics.jsonl").open("ab") as file:
                file.write(b'{"kind": "train", "half a li')
        args.load = args.save
    assert lasting(tmp_path / "parts/run") == lasting(tmp_path / "whole/run")
    assert episodes(tmp_path / "parts/run") == episodes(tmp_path / "whole/run")
    assert trained(tmp_path / "parts/run") == trained(tmp_path / "whole/run") != {}


def test_a_run_that_is_asked_to_stop_saves_its_step_and_equals_the_uninterrupted_run(tiny_checkpoint, tmp_path, engine):
    """Asked while a step runs, twice; where the last one runs, the run ends as ever."""
    whole = make_args(tiny_checkpoint, tmp_path / "whole" / "run", swe_eval_tasks={}, **engine.address)
    train(whole, NoProgress())
    run_dir = tmp_path / "parts" / "run"

    class Asking(NoProgress):
        def on_phase(self, name):
            super().on_phase(name)
            if name == "generation":
                request_stop(run_dir)

    args = make_args(tiny_checkpoint, run_dir, **engine.address)
    args.swe_eval_tasks, args.swe_tasks = {}, whole.swe_tasks
    for rollout_id in (0, 1):
        progress = Asking()
        with pytest.raises(StoppedToResume, match=f"after rollout {rollout_id + 1}"):
            train(args, progress)
        assert [step for step, _ in progress.steps] == [rollout_id]
        assert (run_dir / "checkpoints" / f"rollout_{rollout_id}" / "state.json").is_file()
        args.load = args.save
    train(args, Asking())
    assert lasting(run_dir) == lasting(tmp_path / "whole/run")
    assert episodes(run_dir) == episodes(tmp_path / "whole/run")
    assert trained(run_dir) == trained(tmp_path / "whole/run") != {}
    attempts = [record["attempt"] for record in Journal(run_dir / "metrics.jsonl").read()]
    assert attempts == [1, 2, 3], "each step was made once, by the attempt that ended it"


SOLVED = [5, 3, 8, 8, 4, 2, 6]  # of the 12 episodes of each evaluation, of which the first is before any rollout
_evaluated: list[int] = []


async def as_scripted(args, sample):
    """An evaluation's reward by `SOLVED`, and otherwise that of the other tests."""
    value = await reward(args, sample)
    if sample.metadata["episode"]["evaluation"]:
        evaluation, place = divmod(len(_evaluated), 12)
        _evaluated.append(place)
        sample.metadata["score"] |= {"solved": place < SOLVED[evaluation], "value": value}
    return value


def test_the_best_checkpoint_stays_beside_the_newest_and_is_resumed_over(tiny_checkpoint, tmp_path, engine):
    _evaluated.clear()
    run_dir = tmp_path / "run"
    args = make_args(
        tiny_checkpoint, run_dir, num_rollout=4, eval_interval=1, swe_keep_best="heldout", **engine.address
    )
    args.swe_eval_tasks = {"heldout": args.swe_eval_tasks["heldout"]}
    args.custom_rm_path = "tests.embedded.test_loop.as_scripted"
    train(args, NoProgress())
    assert checkpoints(run_dir) == [1, 2, 3]
    assert (run_dir / "checkpoints/rollout/task_data_source_1.json").is_file(), "it can be resumed too"
    args.num_rollout, args.load = 6, args.save
    train(args, NoProgress())
    figures = [round(12 * record["solve_rate"]) for record in lasting(run_dir) if record["kind"] == "eval"]
    assert figures[:4] == SOLVED[:4] and checkpoints(run_dir) == [1, 4, 5], "of equal ones the first"


def checkpoints(run_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("rollout_")) for path in (run_dir / "checkpoints").glob("rollout_*"))


RUN = """
import sys
from argparse import Namespace
import json, torch
from slime_swe.embedded.loop import train
from tests.embedded.scripted import NoProgress
train(Namespace(**json.loads(sys.argv[1])), NoProgress())
"""


def start(args: Namespace) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", RUN, json.dumps(vars(args))], cwd=REPOSITORY, env=environment)


@pytest.mark.extended("tests/e2e/test_watch.py::test_a_run_is_watched_killed_resumed_and_watched_to_its_end")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_at_random_moments_then_resume_equals_the_uninterrupted_run(tiny_checkpoint, tmp_path):
    rng = random.Random(os.environ.get("SLIME_SWE_KILL_SEED", "1"))
    kills, code = 0, None
    with TinyEngine(tiny_checkpoint) as engine:
        small = dict(num_rollout=5, rollout_batch_size=2, n_samples_per_eval_prompt=1)
        whole, args = (make_args(tiny_checkpoint, tmp_path / n / "run", **small, **engine.address) for n in ("a", "b"))
        args.swe_tasks, args.swe_eval_tasks = whole.swe_tasks, whole.swe_eval_tasks
        train(whole, NoProgress())
        while code != 0:
            process = start(args)
            try:
                if kills < 4:
                    wait_until_it_works(process, Path(args.swe_run_dir))
                    time.sleep(rng.uniform(0, 0.7))
                    process.kill()
                code = process.wait(300)
            finally:
                process.kill()
            assert code in (0, -signal.SIGKILL)
            kills += code != 0
            args.load = args.save
    assert kills >= 2
    assert lasting(tmp_path / "b/run") == lasting(tmp_path / "a/run")
    assert episodes(tmp_path / "b/run") == episodes(tmp_path / "a/run")
    assert trained(tmp_path / "b/run") == trained(tmp_path / "a/run") != {}


def wait_until_it_works(process: subprocess.Popen, run_dir: Path) -> None:
    """The imports are over once the run directory changes."""
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} if run_dir.exists() else None
    while process.poll() is None:
        if run_dir.exists() and before != {p: p.stat().st_mtime_ns for p in run_dir.rglob("*") if p.exists()}:
            return
        time.sleep(0.01)


async def never(args, sample):
    sample.metadata["score"] = {"value": -1.0, "solved": False, "components": {}, "evidence": {}}
    return -1.0


def test_a_run_whose_groups_are_all_alike_says_that_it_trained_nothing(tiny_checkpoint, tmp_path, engine):
    args = make_args(tiny_checkpoint, tmp_path / "run", num_rollout=1, swe_eval_tasks={}, **engine.address)
    args.custom_rm_path = f"{__name__}.never"
    args.rollout_max_response_len = 1  # of 800 episodes
    with pytest.raises(FilterError, match=r"none of 200 groups was informative, by slime_swe\.rewards"):
        train(args, NoProgress())
    args.dynamic_sampling_filter_path, args.load = None, args.save
    because = train(args, NoProgress())["nothing_trained_because"]
    assert because.startswith("no episode was solved")
    assert because.endswith("(groups: 4 all unsolved; episodes: 16, of which infrastructure broke 0)")


def drop_the_second_group(args, group, **kwargs):
    """Of every three groups."""
    return (group[0].index // len(group)) % 3 != 1


def test_episodes_that_are_not_trained_on_are_recorded_and_counted_too(tiny_checkpoint, tmp_path, engine):
    """Of the first three groups one is dropped by the filter; what is sampled beyond the last that is kept is not."""
    run_dir = tmp_path / "run"
    args = make_args(
        tiny_checkpoint, run_dir, num_rollout=1, rollout_batch_size=2, swe_eval_tasks={},
        num_steps_per_rollout=1, dynamic_sampling_filter_path=f"{__name__}.drop_the_second_group", **engine.address,
    )  # fmt: skip
    train(args, NoProgress())
    assert episodes(run_dir) == [(0, index) for index in range(12)]
    (step,) = lasting(run_dir)
    records = Journal(run_dir / "episodes.jsonl").read()
    assert step["episodes"] == 12
    assert step["reward"] == pytest.approx(sum(record["reward"] for record in records) / 12)
    assert step["sampled_tokens"] == pytest.approx(sum(sum(record["loss_mask"]) for record in records) / 12)
    assert step["rollout/dynamic_filter/drop_unnamed"] == 1
    assert [*trained(run_dir)] == [(0, index) for index in range(12) if index // 4 != 1]


@pytest.mark.parametrize("own", [False, True])
def test_each_trained_sample_has_its_advantage_and_the_trainer_s_log_probabilities(
    tiny_checkpoint, tmp_path, engine, own
):
    run_dir = tmp_path / "run"
    args = make_args(
        tiny_checkpoint, run_dir, num_rollout=2, swe_eval_tasks={}, use_rollout_logprobs=not own, **engine.address
    )
    train(args, NoProgress())
    samples = TrainedSamples(run_dir / "trained.jsonl")
    groups: dict[tuple[int, int], list] = {}
    for record in read_records(run_dir / "episodes.jsonl"):
        groups.setdefault((record.rollout_id, record.group_index), []).append(record)
    compared = 0
    for records in groups.values():
        found = [samples.of(record) for record in records]
        if len({record.solved for record in records}) == 1:  # the filter dropped the group
            assert found == [None] * 4
            continue
        mean = sum(record.reward for record in records) / 4
        assert [one.advantage for one in found] == pytest.approx([record.reward - mean for record in records])
        assert len({one.step for one in found}) == 1 and {one.step for one in found} <= {0, 1}
        for one, record in zip(found, records, strict=True):
            sampled = [p for p, mask in zip(record.log_probs, record.loss_mask, strict=True) if mask]
            if one.log_probs is not None:
                assert one.log_probs == pytest.approx(sampled, abs=1e-4)
                compared += 1
    assert compared == len(trained(run_dir)) == 32 if own else compared == 2, "one in eight of the first step's"


def test_a_resumed_run_counts_its_attempts_and_goes_on_before_a_damaged_checkpoint(
    tiny_checkpoint, tmp_path, engine, capsys
):
    run_dir = tmp_path / "run"
    args = make_args(tiny_checkpoint, run_dir, swe_eval_tasks={}, **engine.address)
    train(args, NoProgress())
    before = lasting(run_dir)
    (run_dir / "checkpoints" / "rollout_2" / "optimizer.pt").write_bytes(b"")
    args.load = args.save
    progress = NoProgress()
    train(args, progress)
    assert "rollout_2 is damaged (optimizer.pt has 0 bytes" in capsys.readouterr().err
    assert [step for step, _ in progress.steps] == [2]
    assert lasting(run_dir) == before and len(set(episodes(run_dir))) == len(episodes(run_dir)) >= 3 * 16
    for name in ("metrics.jsonl", "episodes.jsonl", "trained.jsonl"):
        written = {record["rollout_id"]: record["attempt"] for record in Journal(run_dir / name).read()}
        assert written == {0: 1, 1: 1, 2: 2}


def test_a_lost_state_of_the_data_source_says_how_to_go_on(tiny_checkpoint, tmp_path, engine):
    args = make_args(tiny_checkpoint, tmp_path / "run", num_rollout=2, swe_eval_tasks={}, **engine.address)
    train(args, NoProgress())
    (tmp_path / "run/checkpoints/rollout/task_data_source_1.json").unlink()
    args.load = args.save
    with pytest.raises(ResumeError, match=r"To go on from the checkpoint before it, remove .*/rollout_1$"):
        train(args, NoProgress())


def test_a_journal_that_can_not_be_written_ends_the_run_and_loses_nothing(tiny_checkpoint, tmp_path, engine):
    whole, run_dir = tmp_path / "whole" / "run", tmp_path / "run"
    train(make_args(tiny_checkpoint, whole, swe_eval_tasks={}, **engine.address), NoProgress())
    journal, kept = run_dir / "metrics.jsonl", tmp_path / "kept"

    class FillDisk(NoProgress):
        def on_phase(self, name):  # the last rollout is trained, and its record finds no room
            super().on_phase(name)
            if self.phases.count("training") == 3 and not kept.exists():
                journal.rename(kept)
                journal.symlink_to("/dev/full")

    args = make_args(tiny_checkpoint, run_dir, swe_eval_tasks={}, **engine.address)
    args.swe_tasks = [str(whole.parent / "train.jsonl")]
    with pytest.raises(FileError, match=r"can't write .*metrics.jsonl: No space left on device .*make room"):
        train(args, FillDisk())
    assert not (run_dir / "summary.json").exists()
    journal.unlink()
    kept.rename(journal)
    args.load = args.save
    train(args, NoProgress())
    assert lasting(run_dir) == lasting(whole) and episodes(run_dir) == episodes(whole)


def test_one_process_writes_a_run(tiny_checkpoint, tmp_path, engine):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    args = make_args(tiny_checkpoint, run_dir, num_rollout=1, swe_eval_tasks={}, **engine.address)
    with attempting(run_dir / ATTEMPTS) as attempt:
        with pytest.raises(HeldError, match="is written by process"):
            train(args, NoProgress())
        train(args, NoProgress(), attempt)  # whose caller has begun it
    assert {record["attempt"] for record in Journal(run_dir / "metrics.jsonl").read()} == {1}


def test_a_run_whose_folder_another_one_took_stops_before_it_writes_there(tiny_checkpoint, tmp_path, engine):
    run_dir = tmp_path / "run"

    class Replace(NoProgress):
        def on_step(self, record):
            shutil.rmtree(run_dir)
            run_dir.mkdir()
            (run_dir / ATTEMPTS).touch()

    args = make_args(tiny_checkpoint, run_dir, swe_eval_tasks={}, **engine.address)
    with pytest.raises(HeldError, match="was removed or replaced"):
        train(args, Replace())
    assert [path.name for path in run_dir.iterdir()] == [ATTEMPTS]


def test_resume_refuses_another_configuration_and_names_the_keys(tiny_checkpoint, tmp_path, engine):
    args = make_args(tiny_checkpoint, tmp_path / "run", num_rollout=1, swe_eval_tasks={}, **engine.address)
    train(args, NoProgress())
    with pytest.raises(ResumeError, match="earlier run"):
        train(args, NoProgress())
    args.load, args.lr, args.swe_max_turns = args.save, 1.0, 99
    args.swe_alarms = {"broken": 0.5}  # which changes nothing of the run
    before = lasting(tmp_path / "run")
    with pytest.raises(ResumeError, match=r"configuration: lr was 0.003 and is 1.0; swe_max_turns was 2 and is 99\. "):
        train(args, NoProgress())
    assert lasting(tmp_path / "run") == before


async def broken(args, sample, sampling_params):
    sample.status, sample.reward, sample.remove_sample = Sample.Status.ABORTED, 0.0, True
    sample.tokens, sample.response_length, sample.loss_mask = [1, 2], 1, [0]
    sample.metadata["infrastructure"] = {"where": "sandbox_error", "detail": "the sandbox is gone"}
    return sample


async def sometimes_broken(args, sample, sampling_params, evaluation=False):
    """Every fifth episode is broken; in an evaluation it works the second time."""
    if sample.index % 5 == 0 and (not evaluation or sample.index not in _SEEN):
        _SEEN.add(sample.index)
        return await broken(args, sample, sampling_params)
    return await generate(args, sample, sampling_params, evaluation)


_SEEN: set[int] = set()


@pytest.fixture
def short_pauses(monkeypatch):
    monkeypatch.setattr(outage, "SHORTEST", 0.01)


@pytest.mark.usefixtures("short_pauses")
def test_a_step_in_which_infrastructure_broke_everything_stops_the_run(tiny_checkpoint, tmp_path, engine):
    args = make_args(tiny_checkpoint, tmp_path / "run", swe_eval_tasks={}, **engine.address)
    args.custom_generate_function_path, args.swe_outage_limit = f"{__name__}.broken", 0.5
    said = r"infrastructure has broken every try that began since .*the sandbox is gone.*rollout.outage_limit=0.5"
    with pytest.raises(InfrastructureError, match=said):
        train(args, NoProgress())


@pytest.mark.usefixtures("short_pauses")
def test_broken_episodes_are_counted_apart_and_never_trained_on(tiny_checkpoint, tmp_path, engine):
    """They are waited for while nothing else is tried, for half of the limit."""
    _SEEN.clear()
    args = make_args(tiny_checkpoint, tmp_path / "run", num_rollout=1, swe_outage_limit=4.0, **engine.address)
    args.custom_generate_function_path = f"{__name__}.sometimes_broken"
    summary = train(args, NoProgress())
    assert summary["infrastructure_failures"] == 4
    assert summary["heldout_infrastructure_failures_before"] == 0
    assert summary["heldout_episodes_before"] == 12
    (step,) = (record for record in lasting(tmp_path / "run") if record["kind"] == "train")
    assert step["episodes"] == 16 and step["infrastructure_failures"] == 4
    assert step["stop/submitted"] == 1.0


async def fanned_out(args, sample, sampling_params, evaluation=False):
    """The first model call and the second as siblings, as a forked session gives them."""
    whole = await generate(args, sample, sampling_params, evaluation)
    first, second = whole, Sample.from_dict(whole.to_dict())
    cut = args.rollout_max_response_len
    first.rollout_id = second.rollout_id = sample.index
    second.index = -1 - sample.index
    second.loss_mask = [0] * cut + whole.loss_mask[cut:]
    first.tokens = whole.tokens[: len(whole.tokens) - whole.response_length + cut]
    for name in ("loss_mask", "rollout_log_probs"):
        setattr(first, name, getattr(whole, name)[:cut])
    first.response_length = cut
    return [first, second]


def test_an_episode_may_become_several_samples(tiny_checkpoint, tmp_path, engine):
    plain = make_args(tiny_checkpoint, tmp_path / "plain" / "run", num_rollout=1, **engine.address)
    fanned = make_args(tiny_checkpoint, tmp_path / "fanned" / "run", num_rollout=1, **engine.address)
    fanned.custom_generate_function_path = f"{__name__}.fanned_out"
    fanned.custom_rm_path = f"{__name__}.reward_of_siblings"
    summaries = [train(args, NoProgress()) for args in (plain, fanned)]
    steps = [next(r for r in lasting(Path(a.swe_run_dir)) if r["kind"] == "train") for a in (plain, fanned)]
    for name in ("solve_rate", "episodes", "trained_tokens"):
        assert steps[0][name] == steps[1][name]
    for name in ("loss", "grad_norm", "entropy"):
        assert steps[0][name] == pytest.approx(steps[1][name], rel=1e-3, abs=1e-6)
    assert summaries[0]["heldout_episodes_after"] == summaries[1]["heldout_episodes_after"] == 12


async def reward_of_siblings(args, sample):
    """Scores the last sibling, which holds all tokens, for both."""
    from tests.embedded.scripted import reward

    first, second = sample
    whole = Sample.from_dict(second.to_dict())
    sampled = second.loss_mask[args.rollout_max_response_len :]
    whole.loss_mask = [1] * args.rollout_max_response_len + sampled
    value = await reward(args, whole)
    for sibling in (first, second):
        sibling.metadata["score"] = whole.metadata["score"]
    return [value, value]


@pytest.mark.parametrize(
    ("argument", "path", "words"),
    [
        ("custom_rm_path", "reward", "no dotted path"),
        ("custom_generate_function_path", "nowhere.generate", "no module 'nowhere'"),
        ("data_source_path", "slime_swe.embedded.loop.Nothing", "has no 'Nothing'"),
        ("custom_reward_post_process_path", None, "is not given"),
    ],
)
def test_a_wrong_dotted_path_names_the_argument(tiny_checkpoint, tmp_path, argument, path, words):
    args = make_args(tiny_checkpoint, tmp_path / "run", sglang_router_ip="127.0.0.1", sglang_router_port=1)
    setattr(args, argument, path)
    with pytest.raises(UserError, match=words) as error:
        train(args, NoProgress())
    assert argument in str(error.value)


def test_a_server_that_refuses_weights_stops_the_run(tiny_checkpoint, tmp_path, engine):
    engine.fail = True
    with pytest.raises(ServerError, match="no such model"):
        train(make_args(tiny_checkpoint, tmp_path / "run", **engine.address), NoProgress())


def test_no_server_at_the_given_address(tiny_checkpoint, tmp_path):
    args = make_args(tiny_checkpoint, tmp_path / "run", sglang_router_ip="127.0.0.1", sglang_router_port=1)
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:1"):
        train(args, NoProgress())


def test_a_run_directory_that_cannot_be_made(tiny_checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    args = make_args(tiny_checkpoint, tmp_path / "run")
    args.swe_run_dir = str(tmp_path / "file" / "run")
    with pytest.raises(FileError, match="file/run"):
        train(args, NoProgress())
