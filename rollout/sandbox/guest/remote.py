"""What SWE-ReX's `execute` runs in a remote sandbox: one request of the host, by a process of its own.

SWE-ReX's server runs one program at a time, answers nobody meanwhile and kills no more than a program's first process.
So a child carries the request out and leaves the answer in a file; no call waits for it longer than a moment.

Where this user may make namespaces, the child and its commands have pid, mount, network and IPC ones of their own and
no capability. Elsewhere what a command started is found among the child's descendants.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from . import files, kernel, processes, wire
from .commands import Commands
from .server import Answer, Server

_UNBOUNDED = {"cpu_seconds": 1 << 40, "memory_bytes": 1 << 60, "file_bytes": 1 << 60, "processes": 1 << 30,
              "output_bytes": 1 << 16}  # fmt: skip
_MARK = "SLIME_SWE_SANDBOX"
_NO_HISTORY = 3  # of shallow_history.sh
_SAVE_STATE = "\n__code=$?; set +eux; { export -p; declare -f; } >'%s'; exit $__code"


def main() -> None:
    """Carry out, wait for or end request `number`, and print its answer, or that it is running, in base64.

    argv: the sandbox's state folder; a message in base64, or the path of a file that holds it and goes.
    """
    state, text = sys.argv[1:3]
    if text.startswith("/"):
        with open(text, "rb") as file:
            data = file.read()
    else:
        data = base64.b64decode(text)
    message, blob = wire.decode(data)
    name = f"{state}/{message['number']}"
    pid = _start(state, name, message["request"], blob) if message["kind"] == "run" else _claim(name)[1]
    if message["kind"] == "cancel":
        _signal(pid, signal.SIGTERM)
    elif message["kind"] == "kill":
        for target in (*processes.descendants(pid), pid):
            _signal(target, signal.SIGKILL)
    answer = _answer(state, name) if _has_ended(pid, message["wait"]) else wire.encode({"running": True})
    sys.stdout.write(base64.b64encode(answer).decode())


def _start(state: str, name: str, request: dict[str, Any], blob: bytes) -> int:
    """The child's process id. A request that comes again, as its answer was lost, is not carried out again."""
    fd, pid = _claim(name)
    if fd < 0:
        return pid
    pid = os.fork()
    if pid == 0:
        _carry_out(state, name, request, blob)
    os.write(fd, str(pid).encode())
    return pid


def _claim(name: str) -> tuple[int, int]:
    """A file for the process id of a request that has not been heard of, which then never starts by another call; or
    -1, and the process id of the one that was."""
    try:
        return os.open(f"{name}.pid", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), 0
    except FileExistsError:
        with open(f"{name}.pid", encoding="ascii") as file:
            return -1, int(file.read() or 0)


def _has_ended(pid: int, seconds: float) -> bool:
    try:
        ended = os.pidfd_open(pid)
    except OSError:  # no such process, or 0: it has never started
        return True
    return bool(select.select([ended], [], [], seconds)[0])


def _answer(state: str, name: str) -> bytes:
    """Where there is none, a command has killed what ran it: what that started is found by its environment."""
    try:
        with open(f"{name}.answer", "rb") as file:
            return file.read()
    except FileNotFoundError:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if f"{_MARK}={state}\0".encode() in file.read():
                    os.kill(int(pid), signal.SIGKILL)
        return wire.encode({"died": True})


def _signal(pid: int, number: signal.Signals) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Cancellation:
    """In place of the socket to the host: readable once this process has had a SIGTERM."""

    def __init__(self) -> None:
        self._socket, wakeup = socket.socketpair()
        self._wakeup = wakeup
        wakeup.setblocking(False)
        signal.set_wakeup_fd(wakeup.fileno())
        signal.signal(signal.SIGTERM, lambda number, frame: None)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> None:
        self._socket.recv(64)


def _carry_out(state: str, name: str, request: dict[str, Any], blob: bytes) -> NoReturn:
    """In the child."""
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):  # or `execute` would wait for this process
            os.dup2(null, fd)
        os.closerange(3, 65536)
        os.environ[_MARK] = state
        contained = _isolate()
        answer = RemoteServer(state, request["limits"], contained).answer(request, blob)
        with open(f"{name}.part", "wb") as file:
            file.write(wire.encode({**answer[0], "contained": contained}, answer[1]))
        os.rename(f"{name}.part", f"{name}.answer")
    finally:
        os._exit(0)


def _isolate() -> bool:
    """Whether this process is PID 1 of its own namespaces now: a child is, and the caller waits for it."""
    try:
        kernel.unshare(kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC)
    except OSError:
        kernel.become_subreaper()
        return False
    pid = os.fork()
    if pid != 0:
        signal.signal(signal.SIGTERM, lambda number, frame: _signal(pid, signal.SIGTERM))
        os.waitpid(pid, 0)
        os._exit(0)
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    with contextlib.suppress(OSError):  # without, there is no network at all
        kernel.bring_up_loopback()
    kernel.drop_all_capabilities()
    kernel.set_dumpable(False)
    return True


class RemoteServer(Server):
    """Answers one request. What the sandbox started with is in the file `start` of the state folder."""

    def __init__(self, state: str, limits: Mapping[str, Any], contained: bool) -> None:
        self._cancellation = Cancellation()
        self._limits = limits
        self._contained = contained
        self._place = f"{state}/start"
        self._setup_state = ""
        super().__init__(Commands(limits, contained, None, self._cancellation))

    def answer(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        self._go_to(request["folder"])
        if request["op"] not in ("prepare", "read", "write"):
            with open(self._place, "rb") as file:
                start, contents = wire.decode(file.read())
            self._initial = wire.unpack_files(start["files"], contents)
            self._setup_state = start["state"]
        return super().answer(request, blob)

    def _go_to(self, folder: str) -> None:
        with contextlib.suppress(OSError):  # gone, or not a folder any more: then commands run elsewhere
            os.makedirs(folder, exist_ok=True)
            if not os.access(folder, os.X_OK):
                os.chmod(folder, 0o700)
            os.chdir(folder)
        for variable in ("OLDPWD", "_", "SHLVL"):
            os.environ.pop(variable, None)
        os.environ["PWD"] = folder
        for variable, value in (("LANG", "C.UTF-8"), ("PYTHONHASHSEED", "0"), ("HOME", "/root")):
            os.environ.setdefault(variable, value)

    def _exec(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        return super()._exec({**request, "command": self._setup_state + request["command"]}, blob)

    def _prepare(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        """Cut the history short, run the setup, write the files, and keep what there is then."""
        for what in ("history", "setup"):
            failed = self._run_step(what, request) if request[what] else ""
            if failed:
                return {"failed": failed}, b""
        given = wire.unpack_files(request["files"], blob)
        try:
            files.write(given)
        except OSError as error:
            return {"failed": f"could not write its files: {error}"}, b""
        state = self._take_state(request["folder"]) if request["setup"] else ""
        index, contents = wire.pack_files((files.read_all() if request["whole"] else given).items())
        with open(self._place, "wb") as file:
            file.write(wire.encode({"files": index, "state": state}, contents))
        return {}, b""

    def _run_step(self, what: str, request: Mapping[str, Any]) -> str:
        """Empty where it went well."""
        script = request[what] + (_SAVE_STATE % f"{self._place}.setup" if what == "setup" else "")
        commands = Commands(_UNBOUNDED, self._contained, None, self._cancellation)
        outcome = commands.run(script, request["seconds"])
        if outcome.exit_code == 0 or (what == "history" and outcome.exit_code == _NO_HISTORY):
            return ""
        ended = "did not end in time" if outcome.exit_code is None else f"ended with {outcome.exit_code}"
        printed = b"".join(outcome.output.parts()).decode("utf-8", "replace")
        name = f"setup {request['setup']!r}" if what == "setup" else "history, when it was to be cut,"
        return f"did not start: its {name} {ended}: {printed}"

    def _take_state(self, folder: str) -> str:
        """Shell code that restores what the setup has set."""
        with open(f"{self._place}.setup", encoding="utf-8", errors="surrogateescape") as file:
            saved = file.read()
        quoted = "'" + folder.replace("'", "'\\''") + "'"
        return f"{saved}\nunset OLDPWD; cd -- {quoted} 2>/dev/null || cd /; unset OLDPWD\n"

    def _changes(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        changes = files.changes(self._initial)
        touched = (*changes.files, *changes.oversized, *changes.deleted)
        before = {path: self._initial[path] for path in touched if path in self._initial}
        index, contents = wire.pack_files(changes.files.items())
        index_before, contents_before = wire.pack_files(before.items())
        answer = {"files": index, "before": index_before, "oversized": changes.oversized}
        return answer, contents + contents_before
