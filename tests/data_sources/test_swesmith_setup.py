"""The setup that puts SWE-smith's fault into an image, run by bash on a real repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slime_swe.data_sources.corpora.swesmith import setup
from slime_swe.data_sources.registry import load_tasks

FIXTURE = Path(__file__).parent / "fixtures" / "swesmith"
RIGHT, FAULTY = (f"def add(first, second):\n    return first {sign} second\n" for sign in "+-")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def image(tmp_path) -> Path:
    """What an image holds: the project without the fault, its history, and Conda."""
    folder = tmp_path / "testbed"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "sums.py").write_text(RIGHT)
    (folder / ".gitignore").write_text("*.so\n")
    (folder / "built.so").write_text("x")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "the secret")
    (tmp_path / "activate").write_text("conda() { export ENVIRONMENT=$2; }\n")
    return folder


def run(folder: Path, fault: str) -> subprocess.CompletedProcess[str]:
    script = setup(fault).replace("/testbed", str(folder)).replace("/opt/miniconda3/bin", str(folder.parent))
    reported = f'{script}\necho "exit $? in $ENVIRONMENT"'
    return subprocess.run(["bash", "-c", reported], cwd=folder.parent, capture_output=True, text=True, check=False)


def fault() -> str:
    from slime_swe.patches import reverse_patch

    return reverse_patch(load_tasks(f"swesmith:train?folder={FIXTURE}&limit=1")[0].oracle.gold_patch)


def test_the_fault_is_in_and_nothing_tells_it(image):
    assert run(image, fault()).stdout == "exit 0 in testbed\n"
    assert (image / "toy" / "sums.py").read_text() == FAULTY
    assert git(image, "status", "--porcelain") == "" and git(image, "log", "--format=%s") == "start"
    objects = git(image, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    contents = [git(image, "cat-file", "-p", name) for name in objects]
    assert not any("first + second" in text or "secret" in text for text in contents)
    assert (image / "built.so").exists()


def test_running_it_again_leaves_what_the_agent_did(image):
    run(image, fault())
    (image / "toy" / "sums.py").write_text(RIGHT)
    assert run(image, fault()).stdout == "exit 0 in testbed\n"
    assert (image / "toy" / "sums.py").read_text() == RIGHT


def test_a_fault_that_does_not_fit_the_image_is_no_sandbox(image):
    (image / "toy" / "sums.py").write_text("something else\n")
    assert "exit 1 in" in run(image, fault()).stdout
    assert git(image, "log", "--format=%s") == "the secret"


def test_the_gold_patch_undoes_it_for_git(image):
    run(image, fault())
    gold = load_tasks(f"swesmith:train?folder={FIXTURE}&limit=1")[0].oracle.gold_patch
    subprocess.run(["git", "apply"], input=gold, cwd=image, text=True, check=True)
    assert (image / "toy" / "sums.py").read_text() == RIGHT
