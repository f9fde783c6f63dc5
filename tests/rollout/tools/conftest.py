from __future__ import annotations

import pytest

from rollout.sandbox.pool import SandboxPool
from tests.data_sources.tasks import make_task


@pytest.fixture
def task():
    return make_task()


@pytest.fixture
async def sandbox(task):
    async with SandboxPool("local", concurrency=1) as pool, pool.open(task.workspace.files) as opened:
        yield opened
