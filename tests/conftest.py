"""What every test package shares; the fixtures of one package live in its own `conftest.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
TOGETHER = {  # folders and files whose tests see each other's processes, or share what takes long to make
    "sandboxes": ["rollout/sandbox"],
    "clusters": ["launch/ray", "launch/slurm", "launch/doctor/test_network.py"],
}


def pytest_configure() -> None:
    """Keep each torch process on one core: two that each take every core slow each other down tenfold."""
    settings.register_profile("steady", deadline=None)  # a busy machine is no failure
    settings.load_profile("steady")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests (`pytest -n`), one of them gets a whole file, or all that go together."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group(item.path.relative_to(TESTS))))


def _group(path: Path) -> str:
    groups = (name for name, places in TOGETHER.items() if any(path.is_relative_to(place) for place in places))
    return next(groups, str(path))
