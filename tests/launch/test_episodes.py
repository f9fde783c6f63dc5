"""`slime-swe episodes`: a recorded trajectory reads as a conversation, and a list can be sorted and searched."""

from __future__ import annotations

import json
import unicodedata
from argparse import Namespace
from pathlib import Path

import msgspec
import orjson
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from slime_swe.launch.cli import run
from slime_swe.launch.commands.episodes import GRADED, STOPS, readable, row_of
from slime_swe.launch.config import resolve
from slime_swe.launch.episodes import token_runs
from slime_swe.launch.runs import create_run
from slime_swe.rewards.grade import grade
from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.journals import TRAINED, TrainedSample, append_records, append_trained
from slime_swe.rollout.records import EPISODES, EVALUATIONS, Record, Summary
from slime_swe.rollout.slime_plugin import log_evaluation
from slime_swe.sample import Sample


@pytest.fixture
def tokenizer_file(tmp_path):
    words = ["[context]", "fix", "edited", "done"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[context]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def made(**values) -> Record:
    columns = {"index": 0, "group_index": 0, "trajectory": 0, "task": "t", "status": "completed", "reward": 1.0}
    return msgspec.convert(columns | values, Record)


@pytest.fixture
def record():
    return made(
        rollout_id=3, index=7, tokens=[0, 1, 2, 2, 3], response_length=4, loss_mask=[1, 0, 0, 1],
        episode={"patch": "--- a\n+++ b\n", "stop_reason": "submitted", "turns": 2},
        score={"value": 1.0, "solved": True, "components": {}, "evidence": {"outcome": "solved", "log": "x\ny"}},
    )  # fmt: skip


def test_runs_of_one_origin(record):
    assert list(token_runs(record)) == [(False, [0]), (True, [1]), (False, [2, 2]), (True, [3])]


def test_the_whole_trajectory(record, tokenizer_file):
    assert readable(record, tokenizer_file).splitlines() == [
        "Solved; the agent submitted after 2 turns.",
        "rollout 3  index 7  task t  outcome solved  reward 1.0  turns 2  sampled 2  stop_reason submitted",
        "──── context · 1 tokens",
        "[context]",
        "──── policy · 1 tokens",
        "fix",
        "──── context · 2 tokens",
        "editededited",
        "──── policy · 1 tokens",
        "done",
        "──── patch",
        "--- a",
        "+++ b",
        "──── score 1.0",
        "outcome: solved",
        "log:",
        "x",
        "y",
    ]


def test_an_infrastructure_failure_says_what_broke(tokenizer_file):
    broken = made(infrastructure={"where": "sandbox_error", "detail": "it died"}, status="aborted")
    assert row_of(Summary.of(broken))["outcome"] == "broken"
    assert readable(broken, tokenizer_file).endswith("──── infrastructure failure\nsandbox_error: it died")


def line(number: int, solved: bool, **more) -> bytes:
    record = made(
        rollout_id=number, index=number, trajectory=number, task=f"t{number}", reward=[0.5, 1.0, -1.0][number],
        score={"value": 1.0, "solved": solved}, episode={"patch": "", "stop_reason": "submitted", "turns": 2}, **more,
    )  # fmt: skip
    return orjson.dumps(msgspec.to_builtins(record)) + b"\n"


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = create_run(resolve("tiny_cpu", ["run.name=a"]))
    (folder / EPISODES).write_bytes(b"".join(line(number, number == 1) for number in range(3)) + b'{"half')
    return folder


def listed(capsys, *words: str) -> list[int]:
    assert run(["episodes", "a", "--list", "--json", *words]) == 0
    return [row["index"] for row in json.loads(capsys.readouterr().out)]


def test_episodes_are_filtered_sorted_and_listed(recorded, capsys):
    assert listed(capsys) == [0, 1, 2], "the half-written record is left out"
    assert listed(capsys, "--sort", "reward") == [2, 0, 1]
    assert listed(capsys, "--solved") == [1]
    assert run(["episodes", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["index"] == 2
    assert run(["episodes", "a", "--no-solved", "--list"]) == 0
    assert [row.split() for row in capsys.readouterr().out.splitlines()] == [
        ["rollout", "index", "task", "outcome", "reward", "turns", "sampled", "stop", "reason"],
        ["0", "0", "t0", "not", "solved", "0.5", "2", "0", "submitted"],
        ["2", "2", "t2", "not", "solved", "-1.0", "2", "0", "submitted"],
    ]
    assert run(["episodes", "a", "--rollout", "9"]) == 2
    assert "--list" in capsys.readouterr().err


def test_what_the_step_made_of_an_episode_is_shown(recorded, tokenizer_file, capsys):
    assert run(["episodes", "a", "--index", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trained"] is None
    append_trained(recorded / TRAINED, [TrainedSample(1, 1, 0.75), TrainedSample(2, 2, 0.0, step=1)])
    assert run(["episodes", "a", "--index", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trained"] == {"rollout_id": 1, "index": 1, "advantage": 0.75}
    (recorded / TRAINED).write_bytes((recorded / TRAINED).read_bytes() + b"{}\n")
    assert run(["episodes", "a"]) == 2
    assert "trained.jsonl, line 3 is no TrainedSample" in capsys.readouterr().err
    made_of_it = [TrainedSample(1, 1, value) for value in (0.75, [-1 / 3, 0.5])]
    facts = [readable(made(), tokenizer_file, one).splitlines()[1] for one in made_of_it]
    assert [line.partition("  advantage ")[2] for line in facts] == ["0.75", "-0.3333 to 0.5"]


def test_of_a_rollout_that_was_played_again_the_last_attempt_counts(recorded, capsys):
    again = line(1, False, attempt=2).replace(b'"index":1', b'"index":9')
    (recorded / EPISODES).write_bytes(b"".join(line(number, True, attempt=1) for number in range(3)) + again)
    assert listed(capsys) == [0, 2, 9]
    assert listed(capsys, "--solved") == [0, 2], "none of an earlier attempt, whatever is asked for"


def test_what_an_agent_wrote_can_t_steer_the_terminal(record, tokenizer_file, recorded, capsys):
    hostile = "\x1b]52;c;aGk=\x07 \x9b2J \x7f\r\n\tkept é"
    shown = readable(replace(record, episode=replace(record.episode, patch=hostile)), tokenizer_file)
    assert "\\x1b]52;c;aGk=\\x07 \\x9b2J \\x7f\\x0d\n\tkept é" in shown
    assert not [each for each in shown if unicodedata.category(each) == "Cc" and each not in "\n\t"]
    (recorded / EPISODES).write_bytes(line(0, True).replace(b'"t0"', b'"t\\u001b[2J\\n"'))
    assert run(["episodes", "a", "--list"]) == 0
    assert "t\\x1b[2J\\x0a" in capsys.readouterr().out


def test_an_evaluation_that_is_not_there_is_refused_with_those_that_are(recorded, capsys):
    assert run(["episodes", "a", "--evaluation", "heldout"]) == 2
    assert "is not there yet" in capsys.readouterr().err
    (recorded / EVALUATIONS).write_bytes(line(0, True, dataset="heldout"))
    assert listed(capsys, "--evaluation", "heldout") == [0]
    assert run(["episodes", "a", "--evaluation", "heldou", "--list"]) == 2
    assert "Did you mean 'heldout'" in capsys.readouterr().err
    (recorded / EPISODES).unlink()
    assert listed(capsys) == [0], "an evaluation of its own has no other episodes"


def made_run(directory: Path, rollouts: int) -> Path:
    """A run with 1,000 episodes a rollout."""
    folder = create_run(resolve("tiny_cpu", ["run.name=many", f"run.dir={directory}"]))
    for rollout in range(rollouts):
        samples = [
            Sample(index=i, tokens=[7] * 60, response_length=50, loss_mask=[1] * 50, rollout_log_probs=[-0.5] * 50,
                   status=Sample.Status.COMPLETED, reward=1.0)
            for i in range(1000 * rollout, 1000 * rollout + 1000)
        ]  # fmt: skip
        append_records(folder / EPISODES, samples, rollout_id=rollout)
    return folder


def bytes_read() -> int:
    """By this process so far, from whatever files."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def shown(folder: Path, index: int, capsys) -> tuple[dict, int]:
    """The episode, and how many bytes were read for it."""
    before = bytes_read()
    assert run(["episodes", str(folder), "--index", str(index), "--json"]) == 0
    read = bytes_read() - before
    return json.loads(capsys.readouterr().out), read


counted = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts there what a process reads")


@counted
@pytest.mark.slow
def test_one_of_many_thousand_episodes_is_read_without_the_others(tmp_path, recorded, capsys):
    shown(recorded, 1, capsys)  # what is imported for the first time is read too
    folder = made_run(tmp_path, rollouts=20)
    journal = folder / EPISODES
    record, read = shown(folder, 12_345, capsys)
    assert (record["index"], record["rollout_id"]) == (12_345, 12)
    beside_the_index = read - journal.with_suffix(".index").stat().st_size
    assert beside_the_index < journal.stat().st_size / 100, "of the journal next to nothing"


@counted
def test_what_an_index_lacks_is_read_from_the_journal(tmp_path, recorded, capsys):
    shown(recorded, 1, capsys)
    folder = made_run(tmp_path, rollouts=3)
    journal, index = folder / EPISODES, (folder / EPISODES).with_suffix(".index")
    size, known = journal.stat().st_size, index.read_bytes()
    record, read = shown(folder, 2345, capsys)
    assert record["index"] == 2345 and read < size / 3
    half, first = len(known) // 2, known.find(b"\n") + 1
    other = known.replace(b"[0,", b"[1,", 1)
    for damaged in (None, b"", known[:first], known[: half + 5], known[:half] + b"\0" * half, other):
        index.unlink(missing_ok=True)
        if damaged is not None:
            index.write_bytes(damaged)
        found, read = shown(folder, 2345, capsys)
        assert found == record and read > size / 3


def failed(tests: dict, log: str = "", turns: int = 3, reason: str = "submitted", **evidence) -> Record:
    given = {"outcome": "failed", "tests": tests, "log": log, **evidence}
    return made(
        reward=-1.0, score={"value": -1.0, "solved": False, "components": {}, "evidence": given},
        episode={"patch": "x", "stop_reason": reason, "turns": turns},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (failed({"t.py::a": True, "t.py::b": False}, "FAILED t.py::b - AssertionError: assert 1 == 2\n1 failed"),
         "Not solved: 1 of 2 tests fails, first t.py::b (AssertionError: assert 1 == 2); "
         "the agent submitted after 3 turns."),
        (failed({"t.py::b[x - y]": False, "t.py::c": None}, turns=1, reason="max_turns"),
         "Not solved: 2 of 2 tests fail, first t.py::b[x - y]; its turns ran out (rollout.max_turns) after 1 turn."),
        (failed({}, outcome="empty_patch", detail="the patch changes nothing", reason="gave_up"),
         "Not solved: the patch is empty; the agent gave up after 3 turns."),
        (failed({}, outcome="forged", rejection_reason="a test passed that was made to fail\nmore"),
         "Not solved: the log of the tests is not believed (forged): a test passed that was made to fail; "
         "the agent submitted after 3 turns."),
        (failed({}, outcome="unappliable_patch", detail="hunk 1 does not apply."),
         "Not solved: hunk 1 does not apply; the agent submitted after 3 turns."),
        (made(status="aborted", infrastructure={"where": "sandbox_error", "detail": "it died\nTraceback"}),
         "Broken by infrastructure, not the policy: sandbox_error: it died."),
        (made(status="aborted"), "Broken by infrastructure, not the policy: the episode was aborted."),
        (made(reward=0.0), "Not solved: the reward is 0.0, and no score says why."),
        (made(reward=1.0, episode={"patch": "x", "stop_reason": "of one's own", "turns": 2}),
         "Solved; it ended by of one's own after 2 turns."),
    ],
)  # fmt: skip
def test_the_first_line_says_why(record, said, tokenizer_file):
    assert readable(record, tokenizer_file).splitlines()[0] == said


def test_every_outcome_of_a_grading_and_every_stop_reason_has_words():
    document = grade.__doc__.partition("is one of ")[2].partition(".")[0]
    outcomes = {word.strip() for word in document.split(",")}
    assert outcomes - {"solved", "failed", "oversized_patch", "unappliable_patch"} == set(GRADED), "these have a detail"
    assert set(STOPS) == {reason for reason in StopReason if not reason.is_infrastructure}


def test_episodes_are_filtered_by_outcome_and_reward(recorded, capsys):
    with (recorded / EPISODES).open("rb+") as journal:
        journal.truncate(journal.read().rindex(b'{"half'))
        journal.seek(0, 2)
        journal.write(line(2, False, infrastructure={"where": "engine_error"}).replace(b'"index":2', b'"index":3'))
    assert listed(capsys, "--no-solved") == [0, 2, 3]
    assert listed(capsys, "--no-solved", "--no-broken") == [0, 2]
    assert listed(capsys, "--broken") == [3]
    assert listed(capsys, "--min-reward", "0.5") == [0, 1]
    assert listed(capsys, "--max-reward", "0.5", "--min-reward", "0") == [0]
    assert listed(capsys, "--sort", "outcome") == [3, 0, 2, 1]
    assert run(["episodes", "a", "--broken", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["explanation"].startswith("Broken by infrastructure")


def test_an_evaluation_under_slime_is_read(recorded, capsys):
    """As its logging hook writes it: SLiME numbers the one before the first rollout 0."""
    sample = Sample(index=4, group_index=0, status=Sample.Status.COMPLETED, reward=1.0)
    sample.metadata = {"episode": {"patch": "", "stop_reason": "submitted", "turns": 2}}
    (recorded / EPISODES).unlink()
    log_evaluation(0, Namespace(swe_run_dir=str(recorded)), {"heldout": {"samples": [sample]}})
    assert listed(capsys, "--evaluation", "heldout", "--rollout", "-1") == [4]
