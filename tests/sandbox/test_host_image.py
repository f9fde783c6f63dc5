"""The image made of this machine's own packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.sandbox.image import host as host_image

pytestmark = pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="not a Debian system")
COMMAND = [sys.executable, "-m", "slime_swe.sandbox.image.host"]


def test_it_has_what_its_packages_have_and_nothing_of_the_machine_s_own(tmp_path: Path) -> None:
    host_image.write_tar(tmp_path / "image.tar", ["bash", "coreutils"])
    with tarfile.open(tmp_path / "image.tar") as tar:
        names = set(tar.getnames())
        assert tar.extractfile("etc/passwd").read().startswith(b"root:x:0:0:")  # type: ignore[union-attr]
        assert {(entry.uid, entry.gid) for entry in tar} == {(0, 0)}
        assert tar.getmember("tmp").mode == 0o1777
    assert {"usr/bin/bash", "usr/bin/env"} <= names
    assert not [name for name in names if name.startswith(("home/", "root/", "tmp/", "usr/share/doc/"))]
    assert not {"etc/shadow", "etc/hostname", "usr/bin/git"} & names
    assert not [name for name in names if name.startswith("bin/")]  # a link into usr, where the machine has it so


def test_its_name_changes_with_what_is_in_it() -> None:
    assert host_image.digest(["bash"]) == host_image.digest(["bash"]) != host_image.digest(["bash", "coreutils"])


def test_a_package_that_is_not_installed_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    words = ["--package", "no-such-package", "--folder", str(tmp_path / "image")]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert not list(tmp_path.iterdir())
    assert done.returncode == 2
    assert done.stderr == "the host image needs no-such-package: apt-get install no-such-package\n"


def test_without_dpkg_an_image_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match=r"needs dpkg.*rollout\.sandbox=docker:python"):
        host_image.digest()


def test_python_s_modules_are_compiled_where_this_machine_has_them_so() -> None:
    names = set(host_image._contents(["python3"]))
    here = {str(path)[1:] for path in Path("/usr/lib").glob("python3.*/__pycache__/argparse.cpython-*.pyc")}
    if not here:
        pytest.skip("this machine's Python has no compiled modules")
    assert {name for name in here if ".opt-" not in name} <= names
    for name in names:
        if name.endswith(".pyc"):
            folder, _, file = name.rpartition("/__pycache__/")
            assert f"{folder}/{file.partition('.')[0]}.py" in names
