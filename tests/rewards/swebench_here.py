"""Where swebench is: the interpreter that tests grade with. Tests that need it are skipped where there is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@cache
def find_harness_python() -> str | None:
    """This interpreter, `$SLIME_SWE_HARNESS_PYTHON`, or that of `.venv-swebench` in the repository's root."""
    here = sys.executable if importlib.util.find_spec("swebench") else ""
    elsewhere = [os.environ.get("SLIME_SWE_HARNESS_PYTHON", ""), str(ROOT / ".venv-swebench" / "bin" / "python")]
    return next((python for python in (here, *elsewhere) if python and os.access(python, os.X_OK)), None)


def harness_python() -> str:
    """Skips the test where there is none."""
    found = find_harness_python()
    if found is None:
        pytest.skip("swebench is not installed here: python3 -m venv .venv-swebench, and pip install swebench in it")
    return found


@cache
def docker_is_up() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


def need_docker() -> None:
    if not docker_is_up():
        pytest.skip("no Docker daemon answers here")
