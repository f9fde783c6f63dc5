from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.dotted import PACKAGES, load_object, load_registered, module_of
from slime_swe.errors import UserError

SRC = Path(__file__).parents[2] / "src"


def test_a_path_and_a_short_name_lead_to_the_same_object():
    assert load_object("json.dumps", "x") is load_registered("dumps", {"dumps": "json.dumps"}, "x")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("dumps", "is no dotted path"),
        ("json..dumps", "is no dotted path"),
        ("jsn.dumps", "there is no module 'jsn'"),
        ("json.nothing.here", "there is no module 'json.nothing'"),
        ("json.dmps", "module json has no 'dmps'"),
    ],
)
def test_what_is_not_there_is_said_with_the_setting_that_named_it(path, said):
    with pytest.raises(UserError, match=f"reward.function='{path}'.*{said}"):
        load_object(path, "reward.function")


def test_an_unknown_short_name_prints_what_there_is():
    with pytest.raises(UserError, match=r"Did you mean 'native'.*or a dotted path"):
        load_registered("natve", {"native": "a.b", "aider": "c.d"}, "rollout.agent")


def test_what_a_module_imports_and_is_missing_is_not_taken_for_the_module(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="it imports 'not_installed_anywhere'"):
        load_object("needs_more.f", "x")


THEIRS = ("rewards", "rollout", "recipes", "launch", "embedded", "data_sources", "mine")


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("by_path", [False, True])
def test_modules_of_the_users_own_are_reached_by_their_own_names(tmp_path, package, by_path):
    """From the current folder and on PYTHONPATH, beside our packages of the same names."""
    for name in THEIRS:
        file = tmp_path / name / "__init__.py" if package else tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"def f(): return 'their {name}'")
    code = (
        "import slime_swe.rewards.grade, slime_swe.recipes.base\n"
        "from slime_swe.dotted import load_object\n"
        f"for name in {THEIRS}: print(load_object(name + '.f', 'x')())"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{SRC}" if by_path else str(SRC)},
        cwd="/" if by_path else tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "".join(f"their {name}\n" for name in THEIRS), done.stderr


# Which train loop's modules are taken: packages that the test makes, under the names of the real ones.
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
