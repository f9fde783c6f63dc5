"""The `apptainer` backend: sandboxes as those of `overlay`, run by Apptainer, the container program of HPC nodes.

It takes unprivileged user namespaces (or root) and Linux 5.11, no setuid program and no daemon. Images are also `.sif`
files, and what Apptainer pulls (`docker://…`), each unpacked once into the cache.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from slime_swe.errors import UserError
from slime_swe.sandbox.base import Limits, Requirement, SandboxError
from slime_swe.sandbox.bubblewrap import BUBBLEWRAP, children, proc_mounts
from slime_swe.sandbox.cache import made_once
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.guest import seccomp
from slime_swe.sandbox.image.host import HOST_IMAGE
from slime_swe.sandbox.overlay.backend import OverlayBackend, Roots

_NAMES = ("apptainer", "singularity")
FLAGS = (
    "--userns",  # which never needs the setuid starter
    "--writable",  # the folder is an overlay already
    "--containall",
    "--cleanenv",
    "--no-home",
    *("--no-mount", "home,tmp,cwd,sys,bind-paths"),
    "--no-init",  # so that the program is PID 1
    *("--hostname", "sandbox"),
    "--no-privs",
    *("--drop-caps", "all"),
    *("--cwd", "/"),
)
_BUILD_SECONDS = 3600
_OWN = ("unshare", "--user", "--map-root-user")  # all files are this user's own: of no other's are there any inside
_NO_NETWORK = ("--net", "--network", "none")
_NOT_THE_IMAGE_S = ("APPTAINER_", "SINGULARITY_", "PROMPT_COMMAND=", "PWD=", "SHLVL=", "_=", "HOME=", "TERM=", "LANG=")


class ApptainerRoots(Roots):
    """`Roots` that also knows the names of images that Apptainer unpacks."""

    def unpacked(self, name: str) -> tuple[Path, Mapping[str, str]]:
        source = self._source(name)
        if source is None:
            return super().unpacked(name)
        place = self._built(source)
        if not place.is_dir():
            self._room.unpacked(name, functools.partial(made_once, place, functools.partial(self._build, source)))
        return place / "root", json.loads((place / "environment.json").read_text(encoding="utf-8"))

    def has(self, name: str) -> bool:
        source = self._source(name)
        return super().has(name) if source is None else self._built(source).is_dir()

    def _source(self, name: str) -> str | None:
        """Return what Apptainer unpacks; None for a folder, and for what Docker gives. Without Docker it pulls."""
        if name.endswith(".sif") or "://" in name:
            return name
        if name == HOST_IMAGE or name.startswith(("/", "dir:")) or docker_client.answers() or super().has(name):
            return None
        return f"docker://{name}"

    def _built(self, source: str) -> Path:
        key = source if "://" in source else _identify(source)
        return self._cache / f"apptainer-{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    def _build(self, name: str, place: Path) -> None:
        root, program = place / "root", Apptainer.find().program
        self._run(name, *_OWN, program, "--silent", "build", "--sandbox", str(root), name)
        printed = self._run(name, program, "--silent", "exec", *FLAGS, *_NO_NETWORK, str(root), "env", "-0")
        variables = [text for text in printed.split("\0") if "=" in text and not text.startswith(_NOT_THE_IMAGE_S)]
        environment = dict(text.split("=", 1) for text in variables)
        (place / "environment.json").write_text(json.dumps(environment), encoding="utf-8")

    def _run(self, name: str, *command: str) -> str:
        """Run a command of Apptainer and return its stdout. Raises `SandboxError` where it fails."""
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS)
        if done.returncode != 0:
            raise SandboxError(
                f"apptainer could not unpack the image {name} (`{' '.join(command)}` ended with {done.returncode}): "
                f"{done.stderr.strip()[-2000:]}"
            )
        return done.stdout


def _identify(name: str) -> str:
    """Return a file's path, modification time and size as one text. Raises `UserError` where it is not there."""
    try:
        state = os.stat(name)
    except OSError as error:
        raise UserError(f"the image {name} is no file on this machine") from error
    return f"{os.path.realpath(name)} {state.st_mtime_ns} {state.st_size}"


def _profile(folder: Path) -> Path:
    """Write the system calls that are allowed to a file that Apptainer reads, once, and return its path."""
    text = json.dumps(seccomp.profile())
    place = folder / f"seccomp-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def write(new: Path) -> None:
        (new / "profile.json").write_text(text, encoding="ascii")

    return made_once(place, write) / "profile.json"


@dataclass(frozen=True)
class Apptainer:
    """The `Runner` that starts a sandbox by Apptainer. program: its path."""

    program: str
    reads_filter: ClassVar[bool] = False
    keeps_users: ClassVar[bool] = False

    @classmethod
    def find(cls) -> Self:
        """Find the program. Raises `UserError` where there is none, or it does not run."""
        program = next((path for name in _NAMES if (path := shutil.which(name))), None)
        if program is None:
            raise UserError(
                "apptainer sandboxes need apptainer (or singularity) on the PATH: `module load apptainer` on many "
                "clusters, or https://apptainer.org/docs/admin/latest/installation.html; without: "
                "rollout.sandbox=overlay, docker, or local for tasks of files alone"
            )
        ran = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            said = (ran.stderr or ran.stdout).strip()[-500:]
            raise UserError(f"apptainer sandboxes need a working {program}; `{program} --version` fails: {said}")
        return cls(program)

    def command(
        self,
        mount_point: Path,
        environment: Mapping[str, str],
        limits: Limits,
        program: Sequence[str],
        *,
        root: bool,
    ) -> list[str]:
        mounts = [f"{mount_point}/shm:/dev/shm"]
        mounts += [f"{source}:{place}:ro" for source, place in proc_mounts(mount_point)]
        flags = [*FLAGS, *(word for bind in mounts for word in ("--bind", bind))]
        flags += ["--security", f"seccomp:{_profile(mount_point.parent)}"]
        # `env` outside keeps APPTAINER_BIND and its like out; inside, what Apptainer adds of its own.
        own = [f"{name}={os.environ[name]}" for name in ("PATH", "HOME") if name in os.environ]
        inside = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *program]
        return ["env", "-i", *own, self.program, "--silent", "exec", *flags, f"{mount_point}/root", *inside]

    def first(self, pid: int) -> int:
        waiting = children(pid)
        while not _is_first(waiting[0]):
            waiting = [*waiting[1:], *children(waiting[0])]
        return waiting[0]


def _is_first(pid: int) -> bool:
    """Say whether a process is PID 1 of a pid namespace."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1] == "1"


class ApptainerBackend(OverlayBackend):
    """An `OverlayBackend` with another runner."""

    requirements = (
        Requirement("apptainer", ("apptainer", "--version"), "`module load apptainer`, or install Apptainer"),
        *BUBBLEWRAP[1:],
    )
    name = "apptainer"
    runner = Apptainer
    roots = ApptainerRoots

    def _confinement(self) -> Iterator[str]:
        try:
            program = Apptainer.find().program
            yield subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        except UserError as error:
            yield str(error)
