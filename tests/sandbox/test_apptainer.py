"""What is Apptainer's own: its images, what it must not let through, and what is said where it is missing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.image import host as host_image
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.image_support import FOLDER, overlay_image

pytestmark = pytest.mark.extended("tests/sandbox/test_images.py::test_the_image_s_repository_is_the_start")
_DEFINITION = """\
Bootstrap: localimage
From: {root}
%environment
    export GREETING="hello you"
"""


@pytest.fixture(scope="session")
def sif(apptainer_pool: SandboxPool, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with later history, and an environment, in a .sif file."""
    folder = tmp_path_factory.mktemp("sif")
    image = overlay_image(cache, folder / "root")
    (folder / "image.def").write_text(_DEFINITION.format(root=image.name.removeprefix("dir:")))
    command = ["apptainer", "--silent", "build", "--mksquashfs-args", "-noI -noD -noF -noX"]
    subprocess.run([*command, str(folder / "image.sif"), str(folder / "image.def")], check=True)
    return folder / "image.sif"


async def test_a_sif_file_is_an_image(apptainer_pool: SandboxPool, sif: Path) -> None:
    async with apptainer_pool.open({"a": "b"}, image=Image(str(sif), FOLDER)) as sandbox:
        result = await sandbox.exec("pwd; ./run.sh; echo $GREETING; git log --all --format=%s; env | grep -c ^APPT")
        assert result.output == "/repo\nrun\nhello you\nbase\nfirst\n0\n"
        await sandbox.exec("echo more >> pkg/mod.py; rm run.sh")
        patch = await sandbox.diff()
    assert "+more" in patch
    assert patch.count("diff --git") == 2


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A small image as `docker save` writes it."""
    layer = tmp_path / "layer.tar"
    host_image.write_tar(layer, ("bash", "coreutils", "tar"))
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin:/bin", "GREETING=hello you"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": ["small:latest"], "Layers": ["layer.tar"]}]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        for name in ("manifest.json", "config.json", "layer.tar"):
            tar.add(tmp_path / name, name)
    return tmp_path / "image.tar"


async def test_what_apptainer_pulls_is_an_image_made_once(apptainer_pool: SandboxPool, archive: Path) -> None:
    """By the one of its sources that needs no registry."""
    image = Image(f"docker-archive://{archive}")
    async with apptainer_pool.open({"a": "b"}, image=image) as sandbox:
        assert (await sandbox.exec("cat a; echo $GREETING $PATH")).output.startswith("bhello you /usr/bin:/bin:")
    archive.unlink()
    async with SandboxPool("apptainer") as pool, pool.open({}, image=image) as sandbox:
        assert (await sandbox.exec("echo $GREETING")).output == "hello you\n"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("/no-such.sif", UserError, "is no file on this machine"),
        ("docker-archive:///no-such.tar", SandboxError, "could not unpack the image docker-archive.*no-such.tar"),
        ("nosuch://image", SandboxError, "could not unpack the image nosuch"),
    ],
)
async def test_an_image_that_can_t_be_had_is_an_error_that_says_so(
    apptainer_pool: SandboxPool, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        async with apptainer_pool.open({}, image=Image(name)):
            pass


async def test_a_user_s_settings_of_apptainer_are_not_a_sandbox_s(
    apptainer_pool: SandboxPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_BIND", f"{tmp_path}:/home")
    monkeypatch.setenv("APPTAINERENV_SECRET", "secret")
    (tmp_path / "secret").touch()
    async with SandboxPool("apptainer") as pool, pool.open({}) as sandbox:
        assert (await sandbox.exec("ls /home; env | grep -i -e secret -e appt")).output == ""


async def test_shared_memory_is_part_of_the_disk(apptainer_pool: SandboxPool) -> None:
    async with apptainer_pool.open({}) as sandbox:
        result = await sandbox.exec("for i in 1 2 3 4 5 6; do head -c 4000000 /dev/zero > /dev/shm/$i || break; done")
    assert "No space left" in result.output


async def test_a_missing_or_broken_apptainer_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"need apptainer.*on the PATH: `module load.*rollout\.sandbox=overlay"):
        await SandboxPool("apptainer")._backend.start()
    (tmp_path / "singularity").write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    (tmp_path / "singularity").chmod(0o755)
    (tmp_path / "sh").symlink_to(shutil.which("sh", path=os.defpath) or "/bin/sh")
    with pytest.raises(UserError, match=r"singularity --version` fails: broken"):
        await SandboxPool("apptainer")._backend.start()
