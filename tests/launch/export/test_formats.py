"""What is exported is read back by the tool that it is for, and says what the record says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from inspect_ai.log import list_eval_logs, read_eval_log

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.export import EXPORTERS
from slime_swe.recipes.registry import load_recipe
from slime_swe.redaction import redacted, secrets_of
from slime_swe.rollout.agents.cli import layer_of
from slime_swe.rollout.agents.mini_swe_agent import MiniSweAgent
from slime_swe.rollout.episode import UNNAMED, Turn, of_episode
from slime_swe.rollout.journals import append_records, read_records
from slime_swe.rollout.records import EPISODES, EVALUATIONS, Record, trajectories
from slime_swe.sample import Sample
from tests.planted import ENVIRONMENT
from tests.rewards.swebench_here import harness_python

HERE = Path(__file__).parent
SECRETS = secrets_of(ENVIRONMENT)
_ROLLOUT = load_recipe("tiny_cpu").rollout
LIMITS = _ROLLOUT.max_turns, _ROLLOUT.max_context
HARBOR = HERE.parents[2] / ".venv-harbor" / "bin" / "python"


def records(recorded: Path, journal: str = EPISODES) -> list[Record]:
    return [*read_records(recorded / journal)]


# Inspect


def logs(path: Path) -> dict[str, object]:
    found = [read_eval_log(info) for info in list_eval_logs(str(path))]
    return {log.eval.task: log for log in found}


def test_inspect_reads_back_the_episodes_of_training(export, recorded):
    found = logs(export("inspect"))
    assert sorted(found) == ["train-rollout4", "train-rollout5"]
    episodes = {
        "train-rollout4": trajectories(one for one in records(recorded) if one.rollout_id == 4),
        "train-rollout5": trajectories(one for one in records(recorded) if one.rollout_id == 5),
    }
    for name, log in found.items():
        assert log.status == "success" and len(log.samples) == len(episodes[name]) == log.results.total_samples
        for sample, (first, *others) in zip(log.samples, episodes[name], strict=True):
            assert (sample.id, sample.metadata["index"]) == ("calc-1", first.index)
            if first.broken:
                assert sample.error.message.startswith("sandbox_error: the disk is gone: ") and not sample.scores
                continue
            assert sample.scores["solved"].value == ("C" if first.solved else "I")
            assert sample.scores["reward"].value == first.reward and sample.error is None
            if not others:
                check_messages(sample.messages, first.turns)
    assert [sample.epoch for sample in found["train-rollout4"].samples] == [1, 2, 3, 4]
    assert [sample.metadata.get("advantage") for sample in found["train-rollout4"].samples] == [0.75, -0.25, 0.0, None]
    results, limits = found["train-rollout4"].results, found["train-rollout4"].eval.metadata
    assert results.completed_samples == 3 and (limits["max_turns"], limits["max_context"]) == LIMITS
    assert results.scores[0].metrics["accuracy"].value == pytest.approx(1 / 3)


def check_messages(messages, turns: list[Turn]) -> None:
    assert [message.role for message in messages] == [turn.role for turn in turns]
    for message, turn in zip(messages, turns, strict=True):
        assert (message.text, message.metadata["tokens"]) == (turn.text, [turn.start, turn.end])
        if turn.role == "assistant":
            assert [call.function for call in message.tool_calls or []] == [call.name for call in turn.calls]
        if turn.role == "tool":
            assert message.tool_call_id == turn.call_id


def test_inspect_has_thoughts_malformed_calls_and_each_turn_of_a_forked_episode_once(export):
    path = export("inspect")
    _, malformed, forked, _ = logs(path)["train-rollout4"].samples
    (wrong,) = malformed.messages[2].tool_calls
    assert wrong.parse_error == "the arguments are no usable JSON object: {" and wrong.arguments == {}
    said = [message.text for message in forked.messages if message.role == "assistant"]
    assert said == ["One.", "Two.", "Two."]
    assert "Shortened." in [message.text for message in forked.messages]
    (thinking,) = logs(path)["train-rollout5"].samples
    thought, text = thinking.messages[1].content
    assert (thought.reasoning, text.text) == ("One and one.", "It is 2.")


def test_inspect_has_a_log_for_each_evaluation(export, recorded):
    found = logs(export("inspect", "--evaluation", "heldout"))
    assert sorted(found) == ["heldout-rollout-1", "heldout-rollout4"]
    for log in found.values():
        assert [sample.scores["solved"].value for sample in log.samples] == ["C", "I"]
        assert log.results.scores[0].metrics["accuracy"].value == 0.5
        usage = log.samples[0].model_usage[log.eval.model]
        first = records(recorded, EVALUATIONS)[0]
        assert usage.output_tokens == sum(first.loss_mask)
        assert usage.total_tokens == first.episode.counters.prompt_tokens + sum(first.loss_mask)


# ATIF


def test_atif_fits_the_schema_of_harbor_s_models(export):
    validator = jsonschema.Draft202012Validator(json.loads((HERE / "atif_schema.json").read_text()))
    files = sorted(export("atif").iterdir(), key=lambda file: file.stem)
    assert [file.stem for file in files] == [
        "train-rollout4-0", "train-rollout4-1", "train-rollout4-2", "train-rollout4-2-2", "train-rollout5-5",
    ]  # fmt: skip
    for file in files:
        validator.validate(json.loads(file.read_text()))
    extra = [json.loads(file.read_text())["extra"] for file in files]
    assert {(one["max_turns"], one["max_context"]) for one in extra} == {LIMITS}
    assert [one["advantage"] for one in extra] == [0.75, -0.25, 0.0, 0.0, [1.5, 0.0, -0.125]]


VALIDATE = """
import json, sys
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
schema, *files = sys.argv[1:]
assert json.load(open(schema)) == Trajectory.model_json_schema(), "the committed schema is another one"
for file in files:
    validator = TrajectoryValidator()
    assert validator.validate(file), validator.errors
    Trajectory.model_validate_json(open(file).read())
print(len(files))
"""


def test_atif_is_valid_to_harbor(export):
    if not os.access(HARBOR, os.X_OK):
        pytest.skip("needs Python 3.12: python3.12 -m venv .venv-harbor, and .ci/run's install_harbor in it")
    files = map(str, export("atif").iterdir())
    command = [str(HARBOR), "-c", VALIDATE, str(HERE / "atif_schema.json"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "5"), done.stderr


def test_atif_s_token_ids_are_the_sample_s(export, recorded):
    """Prompt ids once, then what each step adds: together they are all tokens up to the last sampled one."""
    path = export("atif")
    for number, record in ((0, 0), (1, 1), ("2-2", 3)):
        kept = records(recorded)[record]
        found = json.loads((path / f"train-rollout4-{number}.json").read_text())
        metrics = [step["metrics"] for step in found["steps"] if "metrics" in step]
        assert [key for one in metrics for key in one if key == "prompt_token_ids"] == ["prompt_token_ids"]
        tokens, log_probs = [], []
        for one in metrics:
            tokens += one.get("prompt_token_ids", []) + one["extra"].get("new_prompt_token_ids", [])
            assert one["prompt_tokens"] == len(tokens)
            tokens += one["completion_token_ids"]
            log_probs += one["logprobs"]
        assert tokens == kept.tokens
        pairs = zip(kept.loss_mask, kept.log_probs, strict=True)
        assert log_probs == [log_prob for mask, log_prob in pairs if mask]


def test_atif_ties_results_to_calls_and_marks_what_another_sample_trains(export):
    path = export("atif")
    solved = json.loads((path / "train-rollout4-0.json").read_text())
    step = solved["steps"][2]
    (call,), (result,) = step["tool_calls"], step["observation"]["results"]
    assert (call["function_name"], call["arguments"]) == ("view", {"path": "calc.py"})
    assert result["source_call_id"] == call["tool_call_id"] and "def add" in result["content"]
    assert [step["source"] for step in solved["steps"]] == ["system", "user", "agent", "agent", "agent"]
    assert solved["agent"]["tool_definitions"][0]["function"]["name"] == "bash"
    malformed = json.loads((path / "train-rollout4-1.json").read_text())["steps"][2]["tool_calls"][0]
    assert (malformed["arguments"], malformed["extra"]) == ({}, {"written": "{"})
    forked = json.loads((path / "train-rollout4-2-2.json").read_text())
    copied = [step.get("is_copied_context", False) for step in forked["steps"] if step["source"] == "agent"]
    assert copied == [True, False]
    other = json.loads((path / "train-rollout4-2.json").read_text())
    assert other["session_id"] == forked["session_id"] and other["trajectory_id"] != forked["trajectory_id"]


def test_atif_has_the_tokens_of_a_reply_of_which_a_grammar_forced_some(recorded, tmp_path):
    folder = tmp_path / "forced"
    shutil.copytree(recorded, folder)
    sample = Sample(index=0, tokens=[1, 2, 3], response_length=2, loss_mask=[0, 1], rollout_log_probs=[0.0, -1.0])
    turns = [{"role": "user", "text": "Go.", "start": 0, "end": 1},
             {"role": "assistant", "text": "So.", "start": 1, "end": 3}]  # fmt: skip
    sample.status, sample.metadata = Sample.Status.COMPLETED, {"turns": turns, "episode": {"patch": ""}}
    append_records(folder / EPISODES, [sample], rollout_id=6)
    out = tmp_path / "atif"
    assert run(["export", str(folder), "--to", "atif", "--rollout", "6", "--out", str(out)]) == 0
    (file,) = out.iterdir()
    said = json.loads(file.read_text())["steps"][1]
    assert said["metrics"]["completion_token_ids"] == [2, 3] and "is_copied_context" not in said


# Arguments that a policy nests deeply


@pytest.mark.parametrize("depth", [100, 240, 600])
def test_arguments_that_are_nested_too_deeply_are_exported_as_what_was_written(recorded, tmp_path, depth):
    """Deeper than formats' writers and readers take, and in part than the arguments could be written alone."""
    folder, tame = tmp_path / "deep", '{"command": ' + "[" * 99 + "]" * 99 + "}"
    shutil.copytree(recorded, folder)
    wild = '{"command": ' + "[" * depth + "]" * depth + "}"
    calls = [{"id": str(place), "name": "bash", "arguments": text} for place, text in enumerate((wild, tame))]
    turns = [{"role": "user", "text": "Go.", "start": 0, "end": 1},
             {"role": "assistant", "text": "", "start": 1, "end": 2, "calls": calls}]  # fmt: skip
    sample = Sample(index=0, tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-1.0])
    sample.status, sample.metadata = Sample.Status.COMPLETED, {"turns": turns, "episode": {"patch": ""}}
    append_records(folder / EPISODES, [sample], rollout_id=6)
    for to in EXPORTERS:
        out = tmp_path / to
        assert run(["export", str(folder), "--to", to, "--rollout", "6", "--out", str(out)]) == 0
    (log,) = logs(tmp_path / "inspect").values()
    first, second = log.samples[0].messages[1].tool_calls
    assert (first.arguments, first.parse_error) == ({}, f"the arguments are no usable JSON object: {wild}")
    assert (second.arguments, second.parse_error) == (json.loads(tame), None)
    (file,) = (tmp_path / "atif").iterdir()
    first, second = json.loads(file.read_text())["steps"][1]["tool_calls"]
    assert (first["arguments"], first["extra"]) == ({}, {"written": wild})
    assert second["arguments"] == json.loads(tame)
    (file,) = (tmp_path / "mini").rglob("*.json")
    message = json.loads(file.read_text())["messages"][1]
    assert [one["command"] for one in message["extra"]["actions"]] == [json.loads(tame)["command"]]
    assert message["tool_calls"][0]["function"]["arguments"] == wild


# SWE-bench's predictions

LOAD = """
import json, sys
from swebench.harness.utils import get_predictions_from_file
print(json.dumps([get_predictions_from_file(path, "none", "none") for path in sys.argv[1:]]))
"""


def test_swebench_s_harness_reads_the_predictions(export, recorded):
    python = harness_python()
    path = export("predictions", "--evaluation", "heldout")
    files = sorted(path.iterdir())
    done = subprocess.run([python, "-c", LOAD, *map(str, files)], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    names = ["heldout-rollout-1-2", "heldout-rollout-1", "heldout-rollout4-2", "heldout-rollout4"]
    assert [file.stem for file in files] == names
    patches = {(one.rollout_id, one.index): one.episode.patch for one in records(recorded, EVALUATIONS)}
    for name, predictions in zip(names, loaded, strict=True):
        rollout, number = int(name.split("rollout")[1].removesuffix("-2")), int(name.endswith("-2"))
        assert predictions == [
            {"instance_id": "calc-1", "model_name_or_path": f"first-{name}", "model_patch": patches[rollout, number]}
        ]
        assert "+    return a + b" in predictions[0]["model_patch"]


def test_a_file_of_predictions_has_a_task_once(export):
    path = export("predictions")
    for file in path.iterdir():
        tasks = Counter(json.loads(line)["instance_id"] for line in file.read_text().splitlines())
        assert set(tasks.values()) == {1}
    assert len([*path.iterdir()]) == 4, "what infrastructure broke is no prediction"


# Messages


def test_datasets_loads_the_messages(export, recorded, tmp_path):
    import datasets

    path = export("messages")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert [*loaded] == lines, "nothing was filled in, and nothing lost"
    sound = [record for record in records(recorded) if not record.broken]
    assert len(lines) == len(sound)
    for line, record in zip(lines, sound, strict=True):
        kept = record.turns[: len(line["messages"])]
        assert [one["role"] for one in line["messages"]] == [turn.role for turn in kept]
        assert line["messages"][-1]["role"] == "assistant"
        assert not any(turn.role == "assistant" for turn in record.turns[len(kept) :])
        assert [one["content"] for one in line["messages"]] == redacted([turn.text for turn in kept], SECRETS)
        answered = {one["tool_call_id"] for one in line["messages"] if one["role"] == "tool"}
        called = {call["id"] for one in line["messages"] for call in one.get("tool_calls", [])}
        assert answered <= called
        assert (line["solved"], line["reward"]) == (record.solved, record.reward)
    assert {one["function"]["name"] for one in lines[0]["tools"]} == {
        "bash",
        "view",
        "str_replace",
        "run_tests",
        "submit",
    }
    assert lines[-1]["messages"][1]["reasoning_content"] == "One and one."


# mini-SWE-agent

INSPECT = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from minisweagent.run.utilities.inspector import TrajectoryInspector
from textual.widgets import Static

async def main():
    app = TrajectoryInspector(sorted(Path(sys.argv[2]).rglob("*.traj.json")))
    shown = []
    async with app.run_test() as pilot:
        for number in range(len(app.trajectory_files)):
            pages = []
            for step in range(app.n_steps):
                await pilot.pause()
                pages.append([str(one.render()) for one in app.query(Static) if "message" in str(one.classes)])
                await pilot.press("right")
            shown.append(pages)
            await pilot.press("L")
    print(json.dumps(shown))

asyncio.run(main())
"""


def mini_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.traj.json"))


def test_mini_s_trajectories_are_the_episodes(export, recorded):
    files = mini_files(export("mini"))
    assert [file.name for file in files] == [
        "calc-1-0.traj.json", "calc-1-1.traj.json", "calc-1-2.traj.json", "calc-1-5.traj.json",
    ]  # fmt: skip
    solved = json.loads(files[0].read_text())
    assert [message["role"] for message in solved["messages"]][:3] == ["system", "user", "assistant"]
    assert solved["info"]["exit_status"] == "Submitted" and solved["info"]["episode"]["max_context"] == LIMITS[1]
    assert solved["info"]["config"]["agent"] == {"step_limit": LIMITS[0]}
    assert solved["info"]["submission"] == records(recorded)[0].episode.patch
    ran = json.loads(files[1].read_text())["messages"][4]["extra"]["actions"]
    assert [one["command"] for one in ran] == ["echo out; echo err"]


@pytest.mark.slow
@pytest.mark.extended("tests/launch/export/test_formats.py::test_mini_s_trajectories_are_the_episodes")
def test_mini_s_inspector_shows_every_turn(export):
    try:
        layer = layer_of(MiniSweAgent.name, MiniSweAgent.version, MiniSweAgent.install)
    except UserError as error:
        pytest.skip(f"mini-SWE-agent can't be installed here: {error}")
    library = layer / "opt" / "agents" / MiniSweAgent.name / "lib"
    path = export("mini")
    environment = {**os.environ, "MSWEA_SILENT_STARTUP": "1", "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", INSPECT, str(library), str(path)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    for pages, file in zip(shown, mini_files(path), strict=True):
        texts = "\n".join(text for page in pages for text in page)
        for message in json.loads(file.read_text())["messages"]:
            assert message["content"].strip("\n")[:60] in texts and message["role"].upper() in texts


# The Hub's agent traces

READ = """
const {SessionManager} = await import(process.argv[2]);
const read = process.argv.slice(3).map((path) => {
  const session = SessionManager.open(path);
  return {
    header: session.getHeader(), name: session.getSessionName(), messages: session.buildSessionContext().messages,
    last: session.getEntries().at(-1),
  };
});
console.log(JSON.stringify(read));
"""
PI = ("@mariozechner/pi-coding-agent@0.73.1", "uuid@14.0.3")  # the second is all that the reader of sessions imports


@pytest.fixture(scope="module")
def pi(tmp_path_factory) -> Path:
    """The module that reads Pi's sessions."""
    folder = tmp_path_factory.mktemp("pi")
    (folder / "package.json").write_text("{}")
    package, library = PI
    commands = (["npm", "pack", package], ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", library])
    for command in commands:
        try:
            subprocess.run(command, cwd=folder, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"Pi can't be had here: {error}")
    (archive,) = folder.glob("*.tgz")
    shutil.unpack_archive(archive, folder, filter="data")
    return folder / "package" / "dist" / "core" / "session-manager.js"


def test_pi_reads_every_turn_of_the_sessions_for_the_hub(export, recorded, pi, tmp_path):
    path = export("hf")
    (tmp_path / "read.mjs").write_text(READ)
    files = sorted((path / "sessions").iterdir(), key=lambda file: file.stem)
    names = [f"train-rollout{name}" for name in ("4-0", "4-1", "4-2", "5-5")]
    assert [file.stem for file in files] == names, "that which broke has said nothing"
    command = ["node", str(tmp_path / "read.mjs"), str(pi), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    episodes = [one for one in trajectories(records(recorded)) if not one[0].broken]
    for read, segments in zip(json.loads(done.stdout), episodes, strict=True):
        first, turns = segments[0], of_episode(one.turns or [] for one in segments)
        assert read["header"]["version"] == 3 and read["name"].startswith(f"calc-1: {first.outcome}, reward ")
        recorded_turns = [
            [ROLES[turn.role], turn.reasoning, turn.text, [call.id for call in turn.calls] or turn.call_id]
            for turn in turns
        ]
        assert [*map(said, read["messages"])] == redacted(recorded_turns, SECRETS)
        about = read["last"]["data"]
        assert [about["reward"], about["patch"]] == redacted([first.reward, first.episode.patch], SECRETS)


ROLES = {"system": "custom", "user": "user", "assistant": "assistant", "tool": "toolResult"}


def said(message) -> list[object]:
    """The role, the thoughts, the text, and the calls, or the call that is answered."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content

    def of(kind: str, field: str) -> list[str]:
        return [block[field] for block in blocks if block["type"] == kind]

    ids = of("toolCall", "id") or message.get("toolCallId", "")
    return [message["role"], "".join(of("thinking", "thinking")), "".join(of("text", "text")), ids]


def test_what_a_policy_wrote_wrongly_is_in_its_session_and_each_reply_has_its_tokens(export, recorded):
    path = export("hf")
    lines = [json.loads(line) for line in (path / "sessions" / "train-rollout4-1.jsonl").read_text().splitlines()]
    replies = [line["message"] for line in lines if line.get("message", {}).get("role") == "assistant"]
    calls = [block for block in replies[0]["content"] if block["type"] == "toolCall"]
    assert calls == [{"type": "toolCall", "id": calls[0]["id"], "name": UNNAMED, "arguments": {"written": "{"}}]
    turns = [turn for turn in records(recorded)[1].turns if turn.role == "assistant"]
    used = [(reply["usage"]["input"], reply["usage"]["output"]) for reply in replies]
    assert used == [(turn.start, turn.end - turn.start) for turn in turns]


def test_datasets_finds_the_sessions_of_the_hub_by_the_card(export, tmp_path):
    import datasets

    path = export("hf", "--evaluation", "heldout")
    card = (path / "README.md").read_text()
    assert "- format:agent-traces\n" in card and "4 episodes" in card and "2 solved" in card
    assert f"at most {LIMITS[0]} turns, {LIMITS[1]:,} tokens of context" in card
    found = datasets.load_dataset_builder(str(path), cache_dir=str(tmp_path / "cache")).config.data_files
    assert sorted(Path(file).name for file in found["train"]) == sorted(
        file.name for file in (path / "sessions").iterdir()
    )
