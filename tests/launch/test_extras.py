"""Every package of the `embedded` extra is asked for by name, and its absence is said with the cure."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.extras import EMBEDDED, require


def test_what_is_asked_for_is_what_the_extra_installs():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", text)[0] for text in project["optional-dependencies"]["embedded"]]
    assert sorted(names) == sorted(EMBEDDED)


def test_what_is_missing_is_named_with_the_cure():
    require("json", *EMBEDDED)
    with pytest.raises(UserError, match=r"no_such_package is not installed: pip install 'slime-swe\[embedded\]'"):
        require("json", "no_such_package")
