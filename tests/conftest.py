"""What every test package shares; the fixtures of one package live in its own `conftest.py`."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import second_look, selection
from tests.costs import Costs


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Keep each torch process on one core: two that each take every core slow each other down tenfold. Heed Ctrl-C,
    here and in every process that a test starts."""
    settings.register_profile("steady", deadline=None)  # a busy machine is no failure
    settings.load_profile("steady")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it puts into the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.pop("PYTEST_ADDOPTS", None)  # these are read; they are not for the runs of pytest that tests start
    for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):  # images set them, and hide what others meet
        os.environ.pop(name, None)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when the library is imported; it retries for long
    gc.disable()  # what is imported while tests are collected stays: to look through it took a quarter of that time
    config.pluginmanager.register(selection.Selection(config), "selection")
    config.pluginmanager.register(Costs(config), "costs")
    second_look.register(config)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names a row with a long text by its beginning and length: one of a megabyte was a line of each report."""
    if not isinstance(val, str) or len(val) <= 200:
        return None
    return f"{val[:20].encode('unicode_escape').decode()}... of {len(val)}"


@pytest.fixture
def hung_up() -> Iterator[None]:
    """SIGHUP ends this process and those that it starts, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
