"""The shell launcher: what it says, what it picks, and when it installs. The environment it finds here is a stub."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.recipes.registry import load_recipe

ROOT = Path(__file__).parents[2]
STUB = '#!/bin/sh\necho "slime-swe $*"\n'


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The launcher's files in a folder of their own."""
    (tmp_path / "launch").mkdir()
    for name in ("run_qwen_swe.sh", "environment.sh"):
        shutil.copy(ROOT / "launch" / name, tmp_path / "launch" / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.fixture
def installed(checkout) -> Path:
    """The same, with an environment that is up to date."""
    executable(checkout / ".venv/bin/slime-swe", STUB)
    stamp = bash(f'source launch/environment.sh; stamp_of "{checkout}" embedded,compare', checkout).stdout
    (checkout / ".venv/.installed").write_text(stamp)
    return checkout


def bash(command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )


def launch(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return bash(f"bash launch/run_qwen_swe.sh {shlex.join(words)}", folder, **env)


@pytest.fixture
def bare_path(tmp_path) -> str:
    """A PATH that holds coreutils and the interpreter, and neither a GPU tool nor bubblewrap."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "cat", "cksum", "dirname", "grep", "uname"):
        (folder / name).symlink_to(shutil.which(name))
    (folder / "python3").symlink_to(sys.executable)
    return str(folder)


def test_without_a_recipe_tiny_cpu_is_picked_and_said(installed, bare_path):
    result = launch(installed, "run.name=a", "--json", PATH=bare_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "slime-swe train recipe=tiny_cpu run.name=a --json"
    assert "No GPU found" in result.stderr and "tiny_cpu runs" in result.stderr
    assert "slime-swe recipes" in result.stderr


def test_missing_bubblewrap_is_said_with_the_command_that_installs_it(installed, bare_path):
    assert "sudo apt-get install bubblewrap" in launch(installed, PATH=bare_path).stderr
    executable(Path(bare_path) / "bwrap", "#!/bin/sh\n")
    assert "bubblewrap" not in launch(installed, PATH=bare_path).stderr


def test_a_visible_gpu_is_said(installed, bare_path):
    executable(Path(bare_path) / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H100'\n")
    assert (
        "Fewer than 8 GPUs found. No recipe named: tiny_cpu runs, on the CPU."
        in launch(installed, PATH=bare_path).stderr
    )
    executable(Path(bare_path) / "nvidia-smi", "#!/bin/sh\necho 'no devices were found' >&2\nexit 9\n")
    assert "No GPU found" in launch(installed, PATH=bare_path).stderr


def eight_gpus(folder: str) -> None:
    listed = "\\n".join(f"GPU {number}: NVIDIA H100" for number in range(8))
    executable(Path(folder) / "nvidia-smi", f"#!/bin/sh\nprintf '{listed}\\n'\n")


@pytest.fixture
def with_slime(checkout) -> str:
    """A PYTHONPATH on which SLiME is found, in a checkout whose `slime-swe` says how it was called."""
    slime = checkout / "site" / "slime"
    for name in ("__init__.py", "utils/__init__.py", "utils/arguments.py"):
        executable(slime / name, "")
    for name in ("__init__.py", "launch/__init__.py"):
        executable(checkout / "src/slime_swe" / name, "")
    executable(checkout / "src/slime_swe/launch/cli.py", "import sys\nprint('python', *sys.argv[1:])\n")
    (checkout / "docker").mkdir()
    shutil.copy(ROOT / "docker" / "requirements.txt", checkout / "docker")
    return str(slime.parent)


def test_where_slime_is_its_interpreter_is_used_and_nothing_is_installed(checkout, with_slime, bare_path):
    eight_gpus(bare_path)
    result = launch(checkout, "run.name=a", PATH=bare_path, PYTHONPATH=with_slime, PYTHON=sys.executable)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "python train recipe=qwen3_5_4b run.name=a"
    assert "8 GPUs and SLiME found" in result.stderr
    assert not (checkout / ".venv").exists()


def test_the_recipe_picked_for_eight_gpus_is_made_for_them():
    script = (ROOT / "launch" / "run_qwen_swe.sh").read_text()
    (name,) = re.findall(r"^GPU_RECIPE=(\w+)", script, re.MULTILINE)
    cluster = load_recipe(name).cluster
    assert (cluster.nodes, cluster.gpus_per_node) == (1, 8)


def test_slime_without_what_this_project_needs_is_refused_with_the_command(checkout, with_slime):
    executable(checkout / "site" / "hydra.py", "raise ImportError('not here')\n")
    result = launch(checkout, "recipe=mine", PYTHONPATH=with_slime, PYTHON=sys.executable)
    assert result.returncode == 1
    assert f"-m pip install --no-deps -r {checkout}/docker/requirements.txt" in result.stderr


def test_eight_gpus_without_slime_hear_of_its_image(installed, bare_path):
    eight_gpus(bare_path)
    result = launch(installed, PATH=bare_path)
    assert "8 GPUs found, but not SLiME" in result.stderr and "docs/clusters.md" in result.stderr
    assert result.stdout.splitlines()[-1] == "slime-swe train recipe=tiny_cpu"


def test_ctrl_c_reaches_the_training(installed):
    trap = "#!/bin/sh\ntrap 'echo stopped; exit 130' INT\necho ready\nwhile :; do sleep 0.1; done\n"
    executable(installed / ".venv/bin/slime-swe", trap)
    command = ["env", "--default-signal=INT", "bash", "launch/run_qwen_swe.sh", "recipe=mine"]
    process = subprocess.Popen(command, cwd=installed, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "stopped\n"
    assert process.returncode == 130


def test_an_engine_with_an_environment_of_its_own_gets_it(installed):
    script = 'ENGINE_VENV=.venv-mine\nmake_engine_environment() { say "made $2"; }\n'
    executable(installed / "launch/mine/environment.sh", script)
    executable(installed / ".venv-mine/bin/slime-swe", '#!/bin/sh\necho "mine $*"\n')
    result = launch(installed, "recipe=tiny_cpu", "engine=mine")
    assert (
        result.stdout == "mine train recipe=tiny_cpu engine=mine\n" and f"made {installed}/.venv-mine" in result.stderr
    )
    assert launch(installed, "recipe=tiny_cpu", "engine=other").stdout.startswith("slime-swe train")


@pytest.mark.parametrize("words", (["recipe=mine", "run.seed=1"], ["run.name=a", "--resume"], ["--help"]))
def test_a_named_recipe_is_left_alone(installed, words):
    result = launch(installed, *words)
    assert result.stdout == f"slime-swe train {' '.join(words)}\n"


def test_the_exit_code_is_that_of_the_training(installed):
    executable(installed / ".venv/bin/slime-swe", "#!/bin/sh\nexit 42\n")
    assert launch(installed, "recipe=mine").returncode == 42


def test_a_changed_pyproject_makes_the_environment_stale(installed):
    (installed / "pyproject.toml").write_text("[project]\n")
    executable(installed / ".venv/bin/python", '#!/bin/sh\necho "python $*" >>calls\n')
    assert launch(installed, "recipe=mine").returncode == 0
    calls = (installed / "calls").read_text()
    assert "pip install --quiet torch==2.13.0" in calls
    assert f"pip install --quiet --editable {installed}[embedded,compare]" in calls
    (installed / "calls").unlink()
    assert launch(installed, "recipe=mine").returncode == 0
    assert not (installed / "calls").exists()


def test_a_failed_installation_is_tried_again(installed):
    (installed / ".venv/.installed").unlink()
    executable(installed / ".venv/bin/python", '#!/bin/sh\ncase "$*" in *--version*) ;; *) exit 1 ;; esac\n')
    assert launch(installed, "recipe=mine").returncode == 1
    assert not (installed / ".venv/.installed").exists()


def test_an_old_python_is_refused_with_what_is_needed(checkout, bare_path):
    (Path(bare_path) / "python3").unlink()
    executable(Path(bare_path) / "python3", "#!/bin/sh\nexit 1\n")
    result = launch(checkout, PATH=bare_path)
    assert result.returncode == 1
    assert "Python 3.11 or newer is needed" in result.stderr
    assert not (checkout / ".venv").exists()


def test_python_without_venv_is_refused_with_the_command_that_installs_it(checkout, tmp_path):
    executable(tmp_path / "broken" / "ensurepip.py", "raise ImportError('not packaged')\n")
    result = launch(checkout, PYTHONPATH=str(tmp_path / "broken"), PYTHON=sys.executable)
    assert result.returncode == 1
    assert "sudo apt-get install python3-venv" in result.stderr
