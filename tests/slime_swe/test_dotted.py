from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.dotted import load_object, load_registered
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


@pytest.mark.parametrize("name", ["rewards", "rollout", "recipes", "launch", "embedded", "data_sources", "mine"])
@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("by_path", [False, True])
def test_modules_of_the_users_own_are_reached_by_their_own_names(tmp_path, name, package, by_path):
    """From the current folder and on PYTHONPATH, beside our packages of the same names."""
    file = tmp_path / name / "__init__.py" if package else tmp_path / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("def f(): return 'theirs'")
    code = (
        "import slime_swe.rewards.grade, slime_swe.recipes.base\n"
        "from slime_swe.dotted import load_object\n"
        f"print(load_object('{name}.f', 'x')())"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{SRC}" if by_path else str(SRC)},
        cwd="/" if by_path else tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "theirs\n", done.stderr
