from __future__ import annotations

from pathlib import Path

import pytest

from slime_swe.launch.cli import run
from tests.planted import ENVIRONMENT


@pytest.fixture
def export(recorded, tmp_path, monkeypatch, capsys):
    """`export(FORMAT, *options) -> the path that was written`, by a process whose environment has every secret."""

    def write(to: str, *options: str, code: int = 0) -> Path:
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        out = tmp_path / f"{to}{len([*tmp_path.iterdir()])}"
        assert run(["export", str(recorded), "--to", to, "--out", str(out), *options]) == code
        return out

    return write
