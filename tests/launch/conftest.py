from __future__ import annotations

from pathlib import Path

import pytest

from tests.rollout.conftest import make_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def recorded(tokenizer, tmp_path_factory) -> Path:
    """Recorded without the secrets in the environment, as by another process: they are in the run's files."""
    from tests.launch.export.recorded import recorded_run  # takes Inspect AI, which is slow to import

    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer.save_pretrained(folder)
    return recorded_run(tokenizer, str(folder), tmp_path_factory.mktemp("runs"))
