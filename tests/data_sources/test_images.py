"""Tasks of corpora in images that hold what `metadata["image"]` asks for, made offline from this machine's packages."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.errors import UserError
from slime_swe.rewards.grade import grade, try_patch
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.image import host as host_image
from slime_swe.sandbox.pool import SandboxPool
from tests.data_sources.r2e_image import copy_pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FIXTURES = Path(__file__).parent / "fixtures"
SCRIPT = "#!/usr/bin/python3\nimport sys, pytest\nsys.exit(pytest.main())\n"
SETTINGS = "<settings><localRepository>/usr/share/maven-repo</localRepository></settings>"
LOOK = "git log --format=%s; git status --short; cat toy/sums.py; echo $CONDA_DEFAULT_ENV"
MAVEN = ("maven", "openjdk-17-jdk-headless", "junit4", "libsurefire-java", "libmaven-compiler-plugin-java",
         "libmaven-resources-plugin-java")  # fmt: skip
SUMS = {
    "toy/__init__.py": "",
    "toy/sums.py": "def add(first, second):\n    return first + second\n",
    "tests/test_sums.py": "from toy.sums import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\n"
    "def test_none():\n    assert add(0, 0) == 0\n",
    "conftest.py": "",
}
WORDS_TEST = """package org.toy;
public class WordsTest {
  @org.junit.Test public void none() {}
  @org.junit.Test public void two() { org.junit.Assert.assertEquals(2, new Words().count()); }
}
"""
PLUGINS = {"surefire": "2.22.3", "compiler": "3.10.1", "resources": "3.3.0"}


def pom() -> str:
    plugins = "".join(
        f"<plugin><artifactId>maven-{name}-plugin</artifactId><version>{version}</version></plugin>"
        for name, version in PLUGINS.items()
    )
    junit = "<groupId>junit</groupId><artifactId>junit</artifactId><version>4.x</version><scope>test</scope>"
    settings = {"maven.compiler.source": 17, "maven.compiler.target": 17, "project.build.sourceEncoding": "UTF-8"}
    properties = "".join(f"<{name}>{value}</{name}>" for name, value in settings.items())
    return (
        "<project xmlns='http://maven.apache.org/POM/4.0.0'><modelVersion>4.0.0</modelVersion><groupId>org.toy</groupId>"
        f"<artifactId>toy</artifactId><version>1</version><properties>{properties}</properties><dependencies><dependency>"
        f"{junit}</dependency></dependencies><build><plugins>{plugins}</plugins></build></project>"
    )


def write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).unlink(missing_ok=True)  # a link of what other tests' images share
        (folder / path).write_text(text)


def commit(folder: Path) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@x"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "the right sums"]):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


def in_folder(task: Task, folder: Path) -> Task:
    """The task with its image in a folder, under which name no Docker is needed."""
    assert task.workspace.image is not None
    image = dataclasses.replace(task.workspace.image, name=f"dir:{folder}")
    return dataclasses.replace(task, workspace=Workspace(task.workspace.files, image))


def host_folder(folder: Path, *packages: str) -> Path:
    try:
        host_image.write_folder(folder, (*host_image.PACKAGES, *packages))
    except UserError as error:
        pytest.skip(str(error))
    return folder


@contextlib.asynccontextmanager
async def overlays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxPool]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with SandboxPool("overlay", concurrency=2) as pool:
        try:
            await pool._backend.start()
        except (UserError, SandboxError) as error:
            pytest.skip(f"overlay sandboxes do not work here: {error}")
        yield pool


async def test_swesmith_in_an_image_of_the_project_without_the_fault(host_base, tmp_path, monkeypatch):
    (task, _) = load_tasks(f"swesmith:train?folder={FIXTURES}/swesmith")
    root = host_base(tmp_path / "image")
    copy_pytest(root / "usr" / "lib" / "python3" / "dist-packages")
    write(root / "usr" / "local" / "bin", {"pytest": SCRIPT})
    (root / "usr" / "local" / "bin" / "pytest").chmod(0o755)
    write(root / "opt" / "miniconda3" / "bin", {"activate": "conda() { export CONDA_DEFAULT_ENV=$2; }\n"})
    write(root / "testbed", SUMS)
    commit(root / "testbed")
    task = in_folder(task, root)
    async with overlays(tmp_path, monkeypatch) as sandboxes:
        async with sandboxes.open({}, image=task.workspace.image) as sandbox:
            seen = await sandbox.exec(LOOK)
            assert seen.output == f"start\n{SUMS['toy/sums.py'].replace('+', '-')}testbed\n"
            assert await sandbox.diff() == "", "the fault is no change of the agent's"
            await sandbox.write_file("toy/sums.py", SUMS["toy/sums.py"].encode())
            patch = await sandbox.diff()
        for good in (patch, task.oracle.gold_patch):
            score = await grade(task, good, sandboxes)
            assert score.solved, score.evidence
        assert (await try_patch(task, "", sandboxes)).tests == {
            "tests/test_sums.py::test_add": False,
            "tests/test_sums.py::test_none": True,
        }


@pytest.mark.extended("tests/data_sources/test_images.py::test_swesmith_in_an_image_of_the_project_without_the_fault")
@pytest.mark.skipif(not shutil.which("mvn"), reason="Maven is not installed")
async def test_gitbug_java_by_real_maven(tmp_path, monkeypatch):
    (task, _) = load_tasks(f"gitbug_java:all?folder={FIXTURES}/gitbug_java")
    names = {"org.toy.WordsTest::[1]_two_words": "org.toy.WordsTest::two"}
    failing = tuple(names.get(name, name) for name in task.oracle.fail_to_pass)
    task = dataclasses.replace(task, oracle=dataclasses.replace(task.oracle, fail_to_pass=failing))
    root = host_folder(tmp_path / "image", *MAVEN)
    write(root / "testbed", {
        "pom.xml": pom(),
        "src/main/java/org/toy/Words.java": "class Words {\n    int count() { return 1; }\n}\n",
        "src/test/java/org/toy/WordsTest.java": WORDS_TEST,
    })  # fmt: skip
    words = root / "testbed" / "src" / "main" / "java" / "org" / "toy" / "Words.java"
    words.write_text(f"package org.toy;\n{words.read_text()}")
    gold = task.oracle.gold_patch.replace("@@ -1,3 +1,3 @@\n", "@@ -1,4 +1,4 @@\n package org.toy;\n")
    write(
        root / "root" / ".m2",
        {"settings.xml": "<settings><localRepository>/usr/share/maven-repo</localRepository></settings>"},
    )
    task = in_folder(dataclasses.replace(task, oracle=dataclasses.replace(task.oracle, gold_patch=gold)), root)
    async with overlays(tmp_path, monkeypatch) as sandboxes:
        solved = await grade(task, gold, sandboxes)
        assert solved.solved, solved.evidence
        unchanged = await try_patch(task, "", sandboxes)
        assert unchanged.tests == {"org.toy.WordsTest::two": False, "org.toy.WordsTest::none": True}, unchanged.log
