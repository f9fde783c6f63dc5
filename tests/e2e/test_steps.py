"""`task=steps` trains on single steps: of a file as `slime-swe sft` writes it, and of what a run has solved itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from slime_swe.rollout.agents.native import SCHEMAS
from slime_swe.rollout.chat.tokenizer import vocabulary_of
from tests.e2e.conftest import here_in, lines_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SEED = Path(__file__).parents[2] / "embedded" / "seed" / "checkpoint"
SMALL = ("--ignore-integrity", "recipe=tiny_cpu", "run.num_rollouts=1", "data.eval={}", "rollout.samples_per_task=4")


def done(result) -> None:
    assert result.returncode == 0, result.stderr[-2000:]


def recorded(path: Path) -> None:
    """Write two episodes of a prompt and one reply each, which views a file."""
    tokenizer, lines = Tokenizer.from_file(str(SEED / "tokenizer.json")), []
    for name in ("fox.py", "hen.py"):
        call = {"name": "view", "arguments": {"path": name}}
        prompt, said = (
            tokenizer.encode(text).ids
            for text in (f"Look at {name}.", f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>")
        )
        written = {"name": "view", "arguments": json.dumps(call["arguments"])}
        reply = {"role": "assistant", "content": "", "tool_calls": [{"function": written}], "step_loss_mask": 1}
        lines.append({
            "episode": name, "task": name, "messages": [{"role": "user", "content": "Look."}, reply],
            "tools": SCHEMAS, "tokens": [*prompt, *said], "loss_mask": [1] * len(said),
            "replies": [[len(prompt), len(prompt) + len(said)]],
            "vocabulary": vocabulary_of(SEED),
        })  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_single_steps_are_trained_on(tmp_path):
    recorded(tmp_path / "solved.jsonl")
    words = ("task=steps", "run.name=b", "rollout.batch_size=2", "data.train=['steps:solved.jsonl']")
    done(here_in(tmp_path)("train", *SMALL, *words))
    steps = lines_of(tmp_path / "runs" / "b" / "episodes.jsonl")
    assert len(steps) == 8 and all(one["infrastructure"] is None and one["episode"]["turns"] == 1 for one in steps)
    assert all(one["reward"] == one["score"].get("components", {}).get("agreement", 0.0) for one in steps)


@pytest.mark.extended(
    "tests/e2e/test_steps.py::test_single_steps_are_trained_on, "
    "tests/launch/sft/test_steps.py::test_each_reply_with_calls_is_a_step_behind_the_tokens_before_it"
)
def test_what_a_run_has_solved_is_trained_on_step_by_step(tmp_path):
    command = here_in(tmp_path)
    done(command("train", *SMALL, "run.name=a", "rollout.batch_size=4"))
    done(command("sft", "a", "--out", "solved.jsonl"))
    words = ("task=steps", "run.name=b", "rollout.batch_size=4", "data.train=['steps:solved.jsonl']")
    done(command("train", *SMALL, *words))
    steps = lines_of(tmp_path / "runs" / "b" / "episodes.jsonl")
    assert len(steps) == 16
    assert max(one["reward"] for one in steps) > 0.5, "the policy that solved them makes some of their calls"
