"""Which train loop's modules are taken: packages that the test makes, under the names of the real ones."""

from __future__ import annotations

import importlib
import sys

import pytest

from slime_swe.train_loop import PACKAGES, module_of


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Write modules (`slime.a.b` -> source), and forget them afterwards."""
    if any(importlib.util.find_spec(package) for package in PACKAGES):
        pytest.skip("a real one is installed")

    def write(**sources):
        for name, source in sources.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name.partition("__")[0] / "__init__.py").touch()
            path.write_text(source)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def test_without_either_there_is_none(packages):
    assert module_of("utils.types") is None


def test_the_one_that_runs_comes_first(packages):
    packages(slime__types="WHOSE = 'slime'", miles__types="WHOSE = 'miles'")
    importlib.import_module("miles")
    assert module_of("types").WHOSE == "miles"
    del sys.modules["miles"], sys.modules["miles.types"]
    assert module_of("types").WHOSE == "slime"


def test_the_fork_may_have_a_module_elsewhere(packages):
    packages(miles__new__place="WHOSE = 'miles'")
    assert module_of("old.place", of_miles="new.place").WHOSE == "miles"
    assert module_of("old.place") is None


def test_what_they_need_and_lack_is_an_error(packages):
    packages(miles__types="import numpyy")
    with pytest.raises(ModuleNotFoundError, match="numpyy"):
        module_of("types")
