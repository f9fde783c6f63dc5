"""Images to test with, made offline from this machine's own packages."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from slime_swe.data_sources.task import Image
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker.backend import PREPARED
from slime_swe.sandbox.image import host as host_image

FOLDER = "/repo"
REPOSITORY = f"slime-swe/test-repository-{os.getpid()}"  # two test processes may run beside each other


def make_repository(folder: Path) -> None:
    """A repository of three commits whose HEAD is the second; the third, with the secret, is on a branch and a tag."""

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)

    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "mod.py").write_text("def f():\n    return 0\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho run\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "data.bin").write_bytes(b"\x00\xff")
    (folder / ".gitignore").write_text("ignored.txt\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    (folder / "pkg" / "mod.py").write_text("def f():\n    return 1\n")
    git("commit", "-q", "-a", "-m", "base")
    (folder / "pkg" / "mod.py").write_text("def f():\n    return 'the secret fix'\n")
    git("commit", "-q", "-a", "-m", "future")
    git("tag", "v2")
    git("branch", "later")
    git("reset", "-q", "--hard", "HEAD~1")
    (folder / "ignored.txt").write_text("ignored\n")


def overlay_image(cache: Path, folder: Path) -> Image:
    """A folder with the host image, its files linked, and the repository."""
    base = cache / "slime-swe" / "sandbox" / f"host-{host_image.digest()}"
    if not base.exists():
        host_image.write_folder(base)
    shutil.copytree(base, folder, symlinks=True, copy_function=os.link)
    make_repository(folder / FOLDER.strip("/"))
    return Image(f"dir:{folder}", FOLDER)


def docker_image(folder: Path) -> Image:
    """The host image and the repository, committed under a name of this process."""
    make_repository(folder / FOLDER.strip("/"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder / FOLDER.strip("/"), FOLDER.strip("/"), filter=_as_root)
    client = docker_client.connect()
    name = f"slime-swe/host:{host_image.digest()}"
    if not client.images(name):
        host_image.import_tag(name)
    container = client.create_container(name, command=["true"], labels=docker_client.labels())["Id"]
    try:
        client.put_archive(container, "/", packed.getvalue())
        client.commit(container, repository=REPOSITORY, tag="latest")
    finally:
        client.remove_container(container, force=True)
    return Image(f"{REPOSITORY}:latest", FOLDER)


def remove_docker_images() -> None:
    """What `docker_image` has made, and what was prepared from it."""
    client = docker_client.connect()
    for image in client.images(REPOSITORY):
        made = [other["Id"] for other in client.images(PREPARED) if other["ParentId"] == image["Id"]]
        for identity in (*made, image["Id"]):
            client.remove_image(identity, force=True)


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry
