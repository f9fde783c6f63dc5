from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def nothing_measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For plans: images take what is published, whatever this machine has measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
