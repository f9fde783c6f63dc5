"""The same small run in the sandboxes that a task with an image needs."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from slime_swe.errors import UserError
from slime_swe.sandbox import SandboxError
from slime_swe.sandbox.pool import make_backend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def start(name: str) -> None:
    backend = make_backend(name)
    try:
        await backend.start()
    except (UserError, SandboxError) as error:
        pytest.skip(f"{name} sandboxes do not work here: {error}")
    finally:
        await backend.close()


OWN = "from slime_swe.sandbox.local import SubprocessBackend\n\n\nclass Own(SubprocessBackend):\n    pass\n"


@pytest.mark.extended("tests/e2e/test_own_modules.py::test_a_run_uses_them")
@pytest.mark.parametrize("backend", ["overlay", "docker", "own_backend.Own"])
def test_the_synthetic_tasks_train_unchanged(cli, small, tmp_path, monkeypatch, backend):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "own_backend.py").write_text(OWN)  # in the folder that the run is started from
    if "own" not in backend:
        asyncio.run(start(backend))
    result = cli("train", *small, "run.name=a", f"rollout.sandbox={backend}")
    assert result.returncode == 0, result.stderr
    episodes = [orjson.loads(line) for line in (tmp_path / "runs/a/episodes.jsonl").read_bytes().splitlines()]
    assert {episode["rollout_id"] for episode in episodes} == {0, 1}
    assert [episode["infrastructure"] for episode in episodes] == [None] * len(episodes)
    assert all(episode["score"] is not None for episode in episodes)
