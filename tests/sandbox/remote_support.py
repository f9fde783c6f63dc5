"""Real SWE-ReX servers, each in a bubblewrap: this machine's system read-only, a /tmp and processes of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from slime_swe.sandbox.remote import RemoteBackend
from tests.waiting import wait_for

_SERVE = "import sys; sys.argv[0] = 'swerex-remote'; from swerex.server import main; main()"


class RemoteServer:
    """`folder` is mounted at /repo."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(16)
        self._bubblewrap = _bubblewrap(folder)
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._launch()

    def _launch(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--auth-token", self.token]
        self.process = subprocess.Popen(
            [*self._bubblewrap, sys.executable, "-c", _SERVE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._printed,
            env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path), "PYTHONSAFEPATH": "1"},
        )

    def wait(self) -> None:
        """Until it answers."""
        wait_for(self._answers, "an answer of the server")

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            assert "address already in use" in self._said(), self._said()
            self._launch()  # another test has taken the port meanwhile
        request = urllib.request.Request(f"{self.url}/is_alive", headers={"X-API-Key": self.token})
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(request, timeout=5).close()
            return True
        return False

    def freeze(self) -> None:
        """It answers nobody any more, and its connections stay."""
        for pid in _below(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def stop(self) -> None:
        """Kill its namespace's first process: bubblewrap ends after that one, which ends after all others."""
        for pid in _below(self.process.pid)[:1] or [self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._printed.close()

    def _said(self) -> str:
        self._printed.seek(0)
        return self._printed.read().decode("utf-8", "replace")


def _below(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended since its parent named it
        return []
    return [below for child in map(int, children) for below in (child, *_below(child))]


def _bubblewrap(folder: Path) -> list[str]:
    flags = [
        "bwrap",
        "--unshare-pid",
        "--unshare-ipc",
        "--die-with-parent",
        *("--cap-drop", "ALL"),
    ]
    for top in sorted(os.listdir("/")):
        path = f"/{top}"
        if top in ("proc", "dev", "tmp", "sys", "testbed", "repo"):
            continue
        flags += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    flags += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/testbed"]
    for path in {sys.prefix, *filter(os.path.isdir, sys.path)}:
        flags += ["--ro-bind", path, path] if path.startswith("/tmp/") else []
    return [*flags, "--bind", str(folder), "/repo", "--chdir", "/"]


def server_deployment(image: str) -> Any:
    """A deployment of SWE-ReX's that serves a copy of the folder `image` from a server of its own."""
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.runtime.remote import RemoteRuntime

    class ServerDeployment(AbstractDeployment):
        def __init__(self) -> None:
            self._server: RemoteServer | None = None
            self._runtime: RemoteRuntime | None = None
            self._folder = Path(tempfile.mkdtemp(prefix="remote-image-"))

        def add_hook(self, hook: Any) -> None:
            pass

        async def is_alive(self, *, timeout: float | None = None) -> Any:
            return await self.runtime.is_alive(timeout=timeout)

        async def start(self) -> None:
            if image and not Path(image).is_dir():
                raise FileNotFoundError(f"no image {image}")
            if image:
                shutil.copytree(image, self._folder, symlinks=True, dirs_exist_ok=True)
            self._server = RemoteServer(self._folder)
            self._server.wait()
            self._runtime = RemoteRuntime(host=self._server.url, auth_token=self._server.token, timeout=10.0)

        async def stop(self) -> None:
            if self._runtime is not None:
                await self._runtime.close()
                self._runtime = None
            if self._server is not None:
                self._server.stop()
            shutil.rmtree(self._folder, ignore_errors=True)

        @property
        def runtime(self) -> RemoteRuntime:
            assert self._runtime is not None, "not started"
            return self._runtime

    return ServerDeployment()


def own_servers() -> RemoteBackend:
    """A backend whose every sandbox has a server of its own, as on a cloud."""
    return RemoteBackend(deploy=server_deployment)
