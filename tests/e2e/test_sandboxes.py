"""The same small run in the sandboxes that a task with an image needs."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from data_sources.arguments import ArgumentError
from rollout.sandbox import SandboxError
from rollout.sandbox.pool import make_backend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def start(name: str) -> None:
    backend = make_backend(name)
    try:
        await backend.start()
    except (ArgumentError, SandboxError) as error:
        pytest.skip(f"{name} sandboxes do not work here: {error}")
    finally:
        await backend.close()


@pytest.mark.parametrize("backend", ["overlay", "docker"])
def test_the_embedded_tasks_train_unchanged(cli, small, tmp_path, monkeypatch, backend):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asyncio.run(start(backend))
    result = cli("train", *small, "run.name=a", f"rollout.sandbox={backend}")
    assert result.returncode == 0, result.stderr
    episodes = [orjson.loads(line) for line in (tmp_path / "runs/a/episodes.jsonl").read_bytes().splitlines()]
    assert {episode["rollout_id"] for episode in episodes} == {0, 1}
    assert [episode["infrastructure"] for episode in episodes] == [None] * len(episodes)
    assert all(episode["score"] is not None for episode in episodes)
