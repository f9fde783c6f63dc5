"""docs/recipes.md says of SLiME's example of a coding agent what its own script starts."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.slime_example import cell, rows

SCRIPT = "examples/coding_agent_rl/run_qwen36_35b_a3b_swe_8nodes.sh"
NEEDED = ("bash", "cat", "date", "dirname", "mkdir", "tee")
RECORDED = ("awk", "hostname", "pkill", "ray", "sleep", "ssh")
RECORD = 'printf "%q " "${0##*/}" "$@" >>"$HOME/commands"; echo >>"$HOME/commands"'


@pytest.fixture(scope="module")
def submitted(slime_home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that the script gives to Ray, on a path with none of the programs that it would stop or start."""
    folder = tmp_path_factory.mktemp("example")
    for name in NEEDED:
        (folder / name).symlink_to(shutil.which(name) or "")
    for name in ("python3", *RECORDED):
        body = RECORD if name in RECORDED else f'exec {shlex.quote(sys.executable)} "$@"'
        (folder / name).write_text(f"#!{folder}/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": str(folder), "HOME": str(folder), "RUN_ROOT": str(folder / "run"), "MASTER_ADDR": "10.0.0.1"}
    environment["HOSTFILE"] = str(folder / "none")
    subprocess.run([folder / "bash", slime_home / SCRIPT], env=environment, check=True, capture_output=True, timeout=60)
    commands = [shlex.split(line) for line in (folder / "commands").read_text().splitlines()]
    (found,) = (command for command in commands if command[:3] == ["ray", "job", "submit"])
    return found


@pytest.mark.parametrize(
    "row",
    [row for row in rows() if row.names[0].startswith("--") or row.names[0].isupper()],
    ids=lambda row: row.names[0],
)
def test_their_column_is_what_the_script_starts(submitted, row):
    (environment,) = (word.partition("=")[2] for word in submitted if word.startswith("--runtime-env-json="))
    words = submitted[submitted.index("train.py") + 1 :]
    assert row.theirs == cell(row.names, words, json.loads(environment)["env_vars"])


def test_it_saves_and_evaluates_nothing(submitted):
    assert not [word for word in submitted if word.startswith(("--save-interval", "--eval", "--save-hf"))]
    assert "--save" not in submitted
