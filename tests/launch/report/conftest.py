from __future__ import annotations

from pathlib import Path

import pytest

from slime_swe.launch.cli import run
from tests.chromium import CHROMIUM, browser, new_tab
from tests.launch.export.recorded import recorded_run
from tests.launch.report.synthetic import plant_hostile, synthetic_run
from tests.planted import ENVIRONMENT
from tests.rollout.conftest import make_tokenizer


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Path:
    """What real plug-ins recorded, without the secrets in the environment: they are in the run's files."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    run_folder = recorded_run(tokenizer, str(folder), tmp_path_factory.mktemp("runs"))
    recipe = run_folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("embedded:seed", str(folder)))
    return run_folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """The runs `first`, and `second`, which has hostile episodes."""
    folder = tmp_path_factory.mktemp("runs")
    synthetic_run(folder, "first", rollouts=4, groups=4)
    plant_hostile(synthetic_run(folder, "second", rollouts=4, groups=4, seed=1))
    return folder


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """`report(RUN, ..., *options) -> the page`, by a process whose environment has every planted secret."""

    def write(*words: object) -> Path:
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        out = tmp_path / f"report{len([*tmp_path.iterdir()])}.html"
        assert run(["report", *map(str, words), "--out", str(out)]) == 0, capsys.readouterr().err
        return out / "index.html" if out.is_dir() else out

    return write


@pytest.fixture(scope="module")
def chromium():
    """The address of a browser that the tests share, each with a tab of its own."""
    if not CHROMIUM:
        pytest.skip("no Chromium here: apt-get install chromium")
    with browser() as address:
        yield address


@pytest.fixture
async def tab(chromium):
    async with new_tab(chromium) as found:
        yield found
