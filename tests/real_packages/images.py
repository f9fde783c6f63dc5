"""Images of the instances, made offline: this machine's own packages, the running pytest, and the repository."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from slime_swe.data_sources.corpora.swebench import task_of
from slime_swe.data_sources.task import Image, Task
from slime_swe.rewards.swebench.harness import image_of
from slime_swe.sandbox.cache import cache_folder, made_once
from slime_swe.sandbox.image.host import digest, import_tag, write_folder
from slime_swe.sandbox.pool import SandboxPool
from tests.real_packages.instances import IMAGE_PREFIX, PYTEST_FOLDER, Instance
from tests.real_packages.shapes import Shape

_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_DOCKERFILE = """\
FROM {base}
COPY . /
WORKDIR /testbed
STOPSIGNAL SIGKILL
"""


def place() -> Path:
    """Where sources and folders are kept for the next time."""
    return cache_folder() / "real-packages"


def folder(instance: Instance | Shape) -> Path:
    """The image as a folder, for overlay sandboxes; it is made unless it is there."""
    base = made_once(place() / f"base-{digest()}", write_folder)

    def make(root: Path) -> None:
        subprocess.run(["cp", "-al", f"{base}/.", str(root)], check=True)
        write_files(root, instance)

    return made_once(place() / instance.image.replace(":", "-"), make)


def in_folder(task: Task, instance: Instance | Shape) -> Task:
    """The same task, its image as a folder."""
    image = replace(image_of(task), name=str(folder(instance)))
    return replace(task, workspace=replace(task.workspace, image=image))


def build(instance: Instance | Shape) -> str:
    """The Docker image's name; it is made unless it is there."""
    if _exists(instance.image):
        return instance.image
    base = f"{IMAGE_PREFIX}-base:{digest()}"
    if not _exists(base):
        import_tag(base)
    with tempfile.TemporaryDirectory() as temporary:
        context = Path(temporary)
        write_files(context, instance)
        (context / "Dockerfile").write_text(_DOCKERFILE.format(base=base))
        (context / ".dockerignore").write_text("Dockerfile\n.dockerignore\n")
        _docker("build", "--quiet", "--network", "none", "--tag", instance.image, str(context))
    return instance.image


def write_files(root: Path, instance: Instance | Shape) -> None:
    """What the instance's image holds beside the system: the repository, committed, and pytest."""
    _write(root / "testbed", instance.repository)
    subprocess.run(["bash", "-euc", instance.prepare], cwd=root / "testbed", check=True, capture_output=True)
    _write(root / PYTEST_FOLDER.strip("/"), _pytest_files())


async def task_for(instance: Instance, overlay: SandboxPool) -> Task:
    """The instance as a task, with the tests that runs with and without the gold patch tell apart."""
    gold = await _statuses(instance, overlay, instance.patches["gold"])
    base = await _statuses(instance, overlay, "")
    passing = [name for name, status in gold.items() if status == "PASSED"]
    fail_to_pass = [name for name in passing if base.get(name) != "PASSED"]
    assert fail_to_pass, f"{instance.id}: no test tells the faults: {gold}"
    return as_task(instance.record(fail_to_pass, [name for name in passing if name not in fail_to_pass]))


def as_task(record: dict[str, Any]) -> Task:
    return task_of(record, source="real_packages", split="test")


async def _statuses(instance: Instance, overlay: SandboxPool, patch: str) -> dict[str, str]:
    """Test → status, as the log's lines have it."""
    async with overlay.open({}, image=Image(str(folder(instance)))) as sandbox:
        await sandbox.write_file("/tmp/eval.sh", instance.eval_script.encode())
        await sandbox.write_file("/tmp/gold.diff", patch.encode())
        applied = "git apply /tmp/gold.diff && " if patch else ""
        result = await sandbox.exec(f"{applied}bash /tmp/eval.sh", timeout=120)
    words = [line.split() for line in result.output.splitlines() if line.startswith(("PASSED ", "FAILED ", "ERROR "))]
    return {word[1]: word[0] for word in words}


def _pytest_files() -> dict[str, bytes]:
    """The modules of the pytest that runs this: pure Python, which an interpreter of another version takes too."""
    found: dict[str, bytes] = {}
    for name in _PYTEST:
        try:
            parts = distribution(name)
        except PackageNotFoundError:
            continue
        for path in parts.files or ():
            if (
                ".." not in path.parts
                and path.suffix in {".py", ".txt", ""} | {".typed"}
                and "__pycache__" not in path.parts
            ):
                found[str(path)] = Path(str(parts.locate_file(path))).read_bytes()
    return found


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _exists(name: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode == 0


def _docker(*words: str) -> None:
    result = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
