"""An archive, a wheel, a checkout and an editable installation hold the same, and the current folder breaks none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_sources", "embedded", "launch", "recipes", "rewards", "rollout", "sandbox")
ARCHIVE = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
FLAGS = "--disable-pip-version-check --quiet --no-deps --no-build-isolation --no-compile".split()
PIP = [sys.executable, "-m", "pip", "install", *FLAGS]
# Scripts that need a checkout.
SHELL = re.compile(r"launch/(apptainer/|slurm/|slime_cpu/(environment|requirements)|\w+\.sh)")

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows what the packages hold")


def tracked(*folders: str) -> set[str]:
    command = ["git", "ls-files", "--", *folders]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy, so that nothing of a build lands in this one."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in tracked():
        if (ROOT / name).exists() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def archive(checkout, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    command = [sys.executable, "-c", ARCHIVE, str(folder)]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True)
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def installed(archive, tmp_path_factory) -> Path:
    """A folder of packages, as a wheel made from the archive leaves it."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([*PIP, "--no-index", "--target", str(folder), str(archive)], check=True)
    return folder


def test_the_archive_holds_each_module_once(archive):
    with tarfile.open(archive) as tar:
        names = [name.partition("/")[2] for name in tar.getnames()]
    modules = [name for name in names if name.endswith(".py") and not name.startswith("setup")]
    assert len([name for name in modules if name.endswith("launch/cli.py")]) == 1
    assert {name for name in modules if not name.startswith("src/slime_swe/")} == set()


def test_every_file_of_the_packages_is_installed(installed):
    wanted = {name for name in tracked(*PACKAGES) if not SHELL.match(name)}
    missing = {name for name in wanted if (ROOT / name).exists() and not (installed / "slime_swe" / name).exists()}
    assert missing == set()


@pytest.mark.parametrize(
    "way", ["wheel", "checkout", pytest.param("editable", marks=pytest.mark.extended("installations"))]
)
def test_the_command_runs_among_files_of_the_same_names(way, request, tmp_path):
    """A `rewards.py` and a `recipes/` of the user's own, in the current folder, break nothing and are found."""
    for package in PACKAGES:
        (tmp_path / f"{package}.py").write_text("raise SystemExit('the wrong module')")
    (tmp_path / "recipes.py").unlink()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.py").write_text("from slime_swe.recipes.tiny_cpu import recipe")
    command, home = request.getfixturevalue(f"{way}_command")

    def said(*words: str) -> str:
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, env={"PATH": os.environ["PATH"]} | home,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "tiny_cpu" in said("recipes", "recipe=recipes.mine")
    assert "heldout-0" in said("tasks", "list", "synthetic:heldout", "--limit", "3")  # reads a file of the package


CODE = "import sys; from slime_swe.launch.cli import main; main(sys.argv[1:])"  # as the console script has it


@pytest.fixture
def wheel_command(installed) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-P", "-c", CODE], {"PYTHONPATH": str(installed)}


@pytest.fixture
def checkout_command(checkout) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "slime_swe.launch.cli"], {"PYTHONPATH": str(checkout / "src")}


@pytest.fixture
def editable_command(checkout, tmp_path_factory) -> tuple[list[str], dict[str, str]]:
    """An environment of its own, which sees the packages that ours are run with."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "of_the_tests.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    subprocess.run([*PIP, "--prefix", str(folder), "--editable", str(checkout)], check=True)
    return [str(folder / "bin" / "python"), str(folder / "bin" / "slime-swe")], {}
