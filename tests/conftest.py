"""What every test package shares; the fixtures of one package live in its own `conftest.py`."""

from __future__ import annotations

import os

from hypothesis import settings


def pytest_configure() -> None:
    """Keep each torch process on one core: two that each take every core slow each other down tenfold."""
    settings.register_profile("steady", deadline=None)  # a busy machine is no failure
    settings.load_profile("steady")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
