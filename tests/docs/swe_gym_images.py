"""Data sets and images of the form that SWE-Gym and SWE-bench publish, made of this machine's packages."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from slime_swe.patches import make_patch
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker.backend import PREPARED
from slime_swe.sandbox.image import host as host_image
from slime_swe.sandbox.overlay.backend import Roots
from tests.data_sources.r2e_image import git, make_environment, write

CONDA = "conda() { export PATH=/opt/environment/bin:$PATH; }\n"
PYTEST = '#!/bin/sh\nexec /opt/environment/bin/python -m pytest -p no:cacheprovider "$@"\n'


@dataclass(frozen=True)
class Instance:
    """One task: a function with a fault, the fix, and the test that tells them apart."""

    id: str
    repo: str
    image: str
    statement: str
    module: str
    faulty: str
    fixed: str
    test: str

    @property
    def files(self) -> dict[str, str]:
        return {f"{self.module}.py": self.faulty, f"tests/test_{self.module}.py": "def test_none():\n    pass\n"}

    def record(self, commit: str) -> dict[str, object]:
        """What SWE-Gym says of a task, and SWE-bench before its fifth version."""
        code, tests = f"{self.module}.py", f"tests/test_{self.module}.py"
        before = self.files
        return {
            "instance_id": self.id, "repo": self.repo, "base_commit": commit, "version": "1.0", "hints_text": "",
            "created_at": "2021-06-01T12:00:00Z", "problem_statement": self.statement,
            "patch": make_patch({code: before[code].encode()}, {code: self.fixed.encode()}),
            "test_patch": make_patch({tests: before[tests].encode()}, {tests: (before[tests] + self.test).encode()}),
            "FAIL_TO_PASS": [f"{tests}::test_it"], "PASS_TO_PASS": [f"{tests}::test_none"],
        }  # fmt: skip


GYM = Instance(
    "iterative__dvc-1", "iterative/dvc", "xingyaoww/sweb.eval.x86_64.iterative_s_dvc-1",
    "count() takes two spaces for a word.", "words",
    'def count(text):\n    return len(text.split(" "))\n', "def count(text):\n    return len(text.split())\n",
    "\n\ndef test_it():\n    from words import count\n\n    assert count('a  b') == 2\n",
)  # fmt: skip
VERIFIED = Instance(
    "psf__requests-1", "psf/requests", "swebench/sweb.eval.x86_64.psf_1776_requests-1:latest",
    "The largest of no numbers must be None.", "numbers_of",
    "def largest(numbers):\n    return max(numbers)\n",
    "def largest(numbers):\n    return max(numbers, default=None)\n",
    "\n\ndef test_it():\n    from numbers_of import largest\n\n    assert largest([]) is None\n",
)  # fmt: skip
SCRIPT = """#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git checkout {commit} tests/test_{module}.py
git apply -v - <<'EOF'
{patch}EOF
: '>>>>> Start Test Output'
pytest -rA tests/test_{module}.py
: '>>>>> End Test Output'
git checkout {commit} tests/test_{module}.py
"""


def make(folder: Path) -> dict[str, Path]:
    """Both data sets in `folder`, where `datasets` reads `ORG/NAME` in place of the Hub; image -> its files."""
    roots = {instance.image: folder / "images" / instance.module for instance in (GYM, VERIFIED)}
    commits = {instance: make_root(roots[instance.image], instance) for instance in (GYM, VERIFIED)}
    verified = VERIFIED.record(commits[VERIFIED])
    script = SCRIPT.format(commit=commits[VERIFIED], module=VERIFIED.module, patch=verified["test_patch"])
    verified |= {"image": VERIFIED.image, "eval_script": script, "log_parser": "parse_log_pytest"}
    verified |= {"eval_type": "pass_and_fail", "difficulty": "<15 min fix"}
    data_set(folder / "SWE-Gym" / "SWE-Gym", "train", GYM.record(commits[GYM]))
    data_set(folder / "SWE-bench" / "SWE-bench_Verified", "test", verified)
    return roots


def data_set(folder: Path, split: str, record: dict[str, object]) -> None:
    import pyarrow
    import pyarrow.parquet

    (folder / "data").mkdir(parents=True)
    table = pyarrow.Table.from_pylist([record])
    pyarrow.parquet.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")


def make_root(root: Path, instance: Instance) -> str:
    """The image's files; the commit that the task starts from."""
    root.mkdir(parents=True)
    host_image.write_folder(root)
    write(root, {"opt/miniconda3/bin/activate": CONDA})
    make_environment(root / "opt" / "environment")
    write(root, {"opt/environment/bin/pytest": PYTEST})
    (root / "opt" / "environment" / "bin" / "pytest").chmod(0o755)
    repository = root / "testbed"
    write(repository, instance.files)
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "start")
    return git(repository, "rev-parse", "HEAD")


def into_cache(cache: Path, roots: dict[str, Path]) -> None:
    """As a copy of the cache of a machine that had Docker."""
    for number, (image, root) in enumerate(roots.items()):
        place = cache / f"sha256-{number}"
        place.mkdir(parents=True)
        subprocess.run(["cp", "-al", str(root), str(place / "root")], check=True)
        (place / "environment.json").write_text("{}")
        named = Roots(cache)._named(image)
        named.parent.mkdir(exist_ok=True)
        named.write_text(place.name)


def into_docker(folder: Path, roots: dict[str, Path]) -> None:
    for image, root in roots.items():
        packed = folder / "image.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(packed), "."], check=True)
        docker_client.import_tar(packed, image)
        packed.unlink()


def out_of_docker(roots: dict[str, Path]) -> None:
    """Also what was prepared from them."""
    client = docker_client.connect()
    for image in map(docker_client.identify, roots):
        prepared = [other["Id"] for other in client.images(PREPARED) if other["ParentId"] == image]
        for identity in (*prepared, image):
            client.remove_image(identity, force=True)
