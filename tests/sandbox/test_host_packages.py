"""What sandboxes of this machine's own system see of its Python packages, where this project is one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.sandbox.bubblewrap import python_executable
from slime_swe.sandbox.host_packages import SHOWN, hidden_folders
from tests.sandbox.conftest import POOLS, of

REPOSITORY = Path(__file__).parents[2]
SECRET = "the gold patch of a task"
LOOK = """
import importlib.util
for name in ("slime_swe", "slime_swe.data_sources", "data_sources", "rollout", "team_tasks", "msgspec"):
    try:
        spec = importlib.util.find_spec(name)
        print(name, bool(spec and spec.origin))
    except ImportError:
        print(name, False)
"""
SEARCH = f"""
places="$(ls -d /usr/lib/python3* /usr/local /opt /run {sys.base_prefix} 2>/dev/null)"
echo found: $(grep -rls "{SECRET}" $places) $(find $places -iname "*slime?swe*" -not -path "/run/guest*" 2>/dev/null)
"""
HOST = """
import asyncio, sys
from slime_swe.sandbox import SandboxPool
async def main():
    backend, look, search = sys.argv[1:]
    files = {"look.py": look, "search.sh": search, "test_it.py": "def test_it(): pass"}
    commands = ("python3 look.py", "/usr/bin/python3 look.py", ". ./search.sh", "python3 -m pytest -q test_it.py")
    async with SandboxPool(backend) as pool, pool.open(files) as sandbox:
        for command in commands:
            print((await sandbox.exec(command, timeout=100)).output)
asyncio.run(main())
"""
# As root of a mount namespace: a folder of packages in place of the base interpreter's. Then as the user who began.
MOUNT = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
AGAIN = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As after `pip install` of this project, of its checkout in editable form, of a task set, and of pytest."""
    folder = tmp_path_factory.mktemp("packages")
    folder.chmod(0o755)
    shutil.copytree(REPOSITORY / "src" / "slime_swe", folder / "slime_swe")
    (folder / "slime_swe-1.dist-info").mkdir()
    (folder / "slime_swe-1.dist-info" / "RECORD").write_text("slime_swe/__init__.py,,\n")
    (folder / "__editable___slime_swe_1_finder.py").write_text(
        f"MAPPING = {{'slime_swe': '{REPOSITORY}/src'}}\nGOLD = {SECRET!r}\n"
    )
    (folder / "__editable__.slime_swe-1.pth").write_text(f"{REPOSITORY}/src\n")
    (folder / "team_tasks").mkdir()
    (folder / "team_tasks" / "__init__.py").write_text(f"GOLD = {SECRET!r}\n")
    (folder / "team_tasks" / "tasks.jsonl").write_text(SECRET)
    ours = Path(pytest.__file__).parents[1]
    for modules in SHOWN.values():
        for name in modules:
            place = ours / name
            if place.is_dir():
                shutil.copytree(place, folder / name)
            elif place.exists():
                shutil.copy(place, folder)
    return folder


@pytest.mark.parametrize("backend", of("bubblewrap", "overlay", "apptainer", "docker"))
def test_nothing_of_an_installed_project_is_to_be_read(
    request: pytest.FixtureRequest, backend: str, packages: Path
) -> None:
    request.getfixturevalue(POOLS[backend])  # or skip
    printed = seen_with(packages, backend)
    assert "True" not in printed
    assert "\nfound:\n" in printed
    assert ("1 passed" in printed) == (backend == "bubblewrap")  # an image brings its own


def test_an_interpreter_without_pytest_gets_that_of_its_environment(
    request: pytest.FixtureRequest, packages: Path, tmp_path: Path
) -> None:
    """As where `python3 -m venv` was the first thing that anybody did with it."""
    request.getfixturevalue(POOLS["bubblewrap"])  # or skip
    tmp_path.chmod(0o755)
    shutil.copytree(packages / "team_tasks", tmp_path / "team_tasks")
    printed = seen_with(tmp_path, "bubblewrap")
    assert "1 passed" in printed
    assert "True" not in printed
    assert "\nfound:\n" in printed


def seen_with(packages: Path, backend: str) -> str:
    """What a sandbox prints that looks for packages, where these are the base interpreter's."""
    inner = [sys.executable, "-c", HOST, backend, LOOK, SEARCH]
    unshare = ["unshare", "--mount"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
        inner = [*AGAIN, *inner]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/src"}
    asked = [python_executable(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    base = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    command = [*unshare, "sh", "-c", MOUNT, "sh", str(packages), base, *inner]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_code_that_this_process_runs_is_hidden_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path.resolve()
    packages = tree / "lib" / "python3.12" / "site-packages"
    for folder in (packages / "slime_swe", tree / "checkout" / "src", tree / "envs", tree / "conda-meta"):
        folder.mkdir(parents=True)
    for name in ("pytest", "_pytest", "pluggy", "pytest-8.dist-info", "pytest_cov", "gold.jsonl", "packaging.py"):
        (packages / name).mkdir()
    monkeypatch.syspath_prepend(tree / "checkout" / "src")
    monkeypatch.setattr(sys, "prefix", str(tree / "venv"))
    (tree / "venv" / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    found = dict(hidden_folders([str(tree)], sys.executable))
    assert set(found) == {packages, tree / "checkout" / "src", tree / "envs", tree / "venv"}
    assert {path.name for path in found[packages]} == {"pytest", "_pytest", "pluggy", "pytest-8.dist-info"}
    assert not found[tree / "venv"]
