"""The processes that start sandboxes on this machine, and bubblewrap, which confines them.

`GuestProcess` is a process of the guest's code. `start_contained` and `start_plain` start the one of `local`, the fork
server's supervisor, with bubblewrap and without. `Bubblewrap` runs a sandbox's driver in a root folder, for `overlay`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Protocol, Self

from slime_swe.errors import UserError
from slime_swe.sandbox.base import Limits, Requirement, SandboxError
from slime_swe.sandbox.guest import counters, devices, seccomp
from slime_swe.sandbox.guest.launcher import SECCOMP_FD
from slime_swe.sandbox.host_packages import hidden_folders

GUEST_SECONDS = 60.0  # for a process of the guest's to start, and to answer
_END_SECONDS = 5.0
NOBODY = 65534
_USERS = range(1 << 30, 1 << 31)  # beyond what distributions give to people, services and containers
_SANDBOX_USERS = 1024  # of one fork server
_GUEST = Path(__file__).with_name("guest")
_GUEST_ROOT = "/run/guest"
_GUEST_NAME = "slime_swe_guest"  # as a package there, where nothing else of ours is
_GUEST_PROGRAM = """
import sys, types
guest = sys.modules["slime_swe_guest"] = types.ModuleType("slime_swe_guest")
guest.__path__ = [sys.argv[1]]
from slime_swe_guest.{module} import main
main()
"""
_SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
_JAVA_SETTINGS = "/etc/java-*-openjdk"  # where Debian's /usr/lib/jvm links to: no Java starts without
_OPTIONAL_FLAGS = ("--disable-userns",)  # of bubblewrap 0.8
_DATA = {
    "/etc/passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:1000:1000:agent:/tmp:/bin/bash\n",
    "/etc/group": "root:x:0:\nagent:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_NET_ADMIN", "CAP_SETUID", "CAP_SETGID")
# Root needs these to use the files of an image as its owner would, and the driver to end what has changed its user.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
# -P -s instead of -I: an isolated interpreter would not take its hash seed from the environment.
_PYTHON_FLAGS = ("-P", "-s", "-S", "-B")
# A root who is also the host's owns these, and device files, capabilities or none.
_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
# These tell of the machine, not of the sandbox; some of the files only to a root who is also the host's.
_MASKED = (
    "/proc/timer_list", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/slabinfo",
    "/proc/vmallocinfo", "/proc/pagetypeinfo", "/proc/mtrr",
    "/proc/fs", "/proc/acpi", "/proc/scsi", "/proc/driver", "/proc/dynamic_debug", "/proc/pressure",
)  # fmt: skip
_SHARED = (
    "this kernel mounts no overlay in a user namespace (that takes Linux 5.11), so all sandboxes share the files of "
    "their system: two of them can exchange text by locks on these files"
)


BUBBLEWRAP = (
    Requirement("bubblewrap", ("bwrap", "--version"), "sudo apt-get install bubblewrap"),
    Requirement(  # what it stands on; distributions and clusters forbid it in three different places
        "user namespaces",
        ("unshare", "--user", "--map-root-user", "true"),
        "sudo apt-get install util-linux",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), "
        "kernel.unprivileged_userns_clone=1 (Debian) or user.max_user_namespaces=10000; in a container, "
        "--security-opt seccomp=unconfined",
        works="this user may make them",
    ),
    Requirement(
        "seccomp",
        ("grep", "^Seccomp:", "/proc/self/status"),
        "sudo apt-get install grep",
        "a kernel with CONFIG_SECCOMP_FILTER, as all distributions have it",
        works="the kernel filters system calls",
    ),
)


def confinement() -> Iterator[str]:
    """Yield the version of bubblewrap, and whether it works."""
    program = shutil.which("bwrap")
    if program is None:
        yield "no bubblewrap"
        return
    for command in ([program, "--version"], [program, "--unshare-all", "--ro-bind", "/", "/", "true"]):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        yield f"{result.returncode} {result.stdout}"


class ForkServerError(SandboxError):
    """The fork server could not be started; the message holds what it printed."""


class GuestProcess:
    """A process of the guest's code that is asked over a socket. With it or the socket ends all that it has started."""

    def __init__(self, start: Callable[[socket.socket, IO[bytes]], subprocess.Popen[bytes]]) -> None:
        """Start it: `start` gets the socket's other end and a file for errors. Blocks. Raises `ForkServerError`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(GUEST_SECONDS)  # and later, where the process lags by hundreds of requests
        greeting, problem = b"", ""
        try:
            with theirs:
                self._process = start(theirs, self._errors)
            greeting = self._control.recv(64)
        except OSError as error:
            problem = f"{error}; "
        if greeting == b"shared":
            warnings.warn(_SHARED, RuntimeWarning, stacklevel=2)
        elif greeting != b"ready":
            self.close()
            raise ForkServerError(f"the process that forks sandboxes did not start: {problem}{self._printed()}")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End it, and with it every process that it has started. Blocks."""
        self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _printed(self) -> str:
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode("utf-8", "replace").strip()
        return f"it printed: {said}" if said else "it printed nothing"


def start_contained(control: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the supervisor in namespaces of its own. Raises `OSError` where bubblewrap is missing or is refused."""
    if reason := why_no_filter():
        raise OSError(reason)
    if shutil.which("bwrap") is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "bwrap")
    users = _users() if os.geteuid() == 0 else None
    made, taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # of folders for /dev
    config = {"contained": True, "users": users, "devices": taken.fileno()}
    with contextlib.ExitStack() as stack, made, taken:
        flags, fds = _data_files(stack)
        ready = _IdMaps(stack, *users) if users is not None else None
        if ready is not None:
            flags += ready.flags
            fds += ready.fds
        command = ["bwrap", *flags, *system_flags(), "--chdir", "/", *_python(config, control, _GUEST_ROOT)]
        if users is not None:
            command = [*guest_program("devices"), str(made.fileno()), *command]
            fds.append(made.fileno())
        process = popen(command, errors, [*fds, control.fileno(), taken.fileno()])
        try:
            if ready is not None:
                ready.write(process)
        except OSError:
            process.kill()
            process.wait()
            raise
    return process


def start_plain(control: socket.socket, errors: IO[bytes], folder: str) -> subprocess.Popen[bytes]:
    """Start the supervisor as an ordinary process, whose sandboxes are folders in `folder`."""
    code = Path(folder, "code")  # where the guest is found without the packages around it
    code.mkdir(parents=True)
    (code / _GUEST_NAME).symlink_to(_GUEST)
    config = {"contained": False, "root": folder}
    return popen(_python(config, control, str(code)), errors, [control.fileno()], environment())


def system_flags() -> list[str]:
    """Return bwrap's flags for a read-only system without the host's files, network, processes and environment.

    `--die-with-parent` is not among them: the kernel takes the thread that started it for the parent, and threads of
    pools end.
    """
    flags = ["--unshare-user", "--unshare-all", "--new-session", "--clearenv"]
    for capability in _CAPABILITIES:
        flags += ["--cap-add", capability]
    for name, value in environment().items():
        flags += ["--setenv", name, value]
    flags += ["--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM_LINKS:
        flags += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]
    for path in (*_SYSTEM_FILES, *sorted(glob.glob(_JAVA_SETTINGS))):
        flags += ["--ro-bind-try", path, path]
    prefix = python_prefix()
    if not prefix.startswith("/usr"):
        flags += [*_folders(prefix), "--ro-bind", prefix, prefix]
    flags += _hide(["/usr"] if prefix.startswith("/usr") else ["/usr", prefix])
    flags += [*_folders(_GUEST_ROOT), "--ro-bind", str(_GUEST), f"{_GUEST_ROOT}/{_GUEST_NAME}"]
    for path in ("/testbed", "/tmp", "/var"):
        flags += _folders(path)
    flags += ["--dev-bind-try", devices.MADE, devices.FOLDER]
    flags += ["--symlink", "../tmp", "/var/tmp", "--proc", "/proc", *_device_flags()]
    return [*flags, "--remount-ro", "/dev", "--remount-ro", "/"]


def _hide(trees: list[str]) -> list[str]:
    flags: list[str] = []
    for folder, shown in hidden_folders(trees, python_executable()):
        flags += ["--tmpfs", str(folder)]
        for place, source in shown.items():
            flags += ["--ro-bind", str(source), str(place)]
        flags += ["--remount-ro", str(folder)]
    return flags


def environment() -> dict[str, str]:
    """Return the whole environment of a sandbox."""
    path = dict.fromkeys([f"{python_prefix()}/bin", "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": ":".join(path), "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def python_prefix() -> str:
    """Return the folder where the running Python is installed; in a virtual environment, that of its base."""
    return os.path.realpath(sys.base_prefix)


def python_executable() -> str:
    """Return the path of the interpreter: `python3`, as commands call it, where that is this one."""
    folder = Path(python_prefix(), "bin")
    versioned = folder / f"python{sys.version_info.major}.{sys.version_info.minor}"
    plain = folder / "python3"
    return str(plain if plain.resolve() == versioned.resolve() else versioned)


def guest_program(module: str) -> list[str]:
    """Return the command that runs a guest's module on the host, importing nothing of the packages around it."""
    return [python_executable(), "-I", "-S", "-B", "-c", _GUEST_PROGRAM.format(module=module), str(_GUEST)]


def _python(config: Mapping[str, object], control: socket.socket, root: str) -> list[str]:
    bootstrap = f"{root}/{_GUEST_NAME}/bootstrap.py"
    return [python_executable(), *_PYTHON_FLAGS, bootstrap, str(control.fileno()), json.dumps(config)]


def popen(
    command: list[str], errors: IO[bytes], fds: list[int], env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=env,
        pass_fds=fds,
        start_new_session=True,  # so that Ctrl-C reaches the host alone, which then closes its sandboxes
    )


def _folders(path: str) -> list[str]:
    """Return bwrap's flags to make a folder and those above it readable: it would make them for their owner alone."""
    folders = [*reversed(Path(path).parents), Path(path)][1:]
    return [flag for folder in folders for flag in ("--perms", "0755", "--dir", str(folder))]


def _device_flags() -> list[str]:
    flags = ["--tmpfs", "/dev"]
    for name in devices.NUMBERS:
        flags += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in devices.LINKS.items():
        flags += ["--symlink", target, f"/dev/{name}"]
    return [*flags, "--dir", f"/dev/{devices.TERMINALS}"]


def _data_files(stack: contextlib.ExitStack) -> tuple[list[str], list[int]]:
    flags = _folders("/etc")
    fds: list[int] = []
    for path, text in _DATA.items():
        fd = os.memfd_create(path)
        stack.callback(os.close, fd)
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        flags += ["--perms", "0644", "--ro-bind-data", str(fd), path]
        fds.append(fd)
    return flags, fds


class _IdMaps:
    """Maps more users into the fork server, which only the host's root may do, and bubblewrap does not."""

    def __init__(self, stack: contextlib.ExitStack, first: int, count: int) -> None:
        self._map = f"0 0 1\n{first} {first} {count}\n"
        self._info, info_write = os.pipe()
        block_read, self._block = os.pipe()
        self.fds = [info_write, block_read]
        self.flags = ["--info-fd", str(info_write), "--userns-block-fd", str(block_read)]
        self._open = {self._info, info_write, block_read, self._block}
        stack.callback(self._close)

    def write(self, process: subprocess.Popen[bytes]) -> None:
        for fd in self.fds:
            os.close(fd)
            self._open.remove(fd)
        info = b"".join(iter(lambda: os.read(self._info, 4096), b"")) if process.poll() is None else b""
        if info:
            pid = json.loads(info)["child-pid"]
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{pid}/{kind}").write_text(self._map, encoding="ascii")
            os.write(self._block, b"x")

    def _close(self) -> None:
        for fd in self._open:
            os.close(fd)


def _users() -> tuple[int, int] | None:
    """Return the users whom sandboxes are to be, the first and how many.

    Each of as many sandboxes as are open at once is one that nobody else is, so that none uses up another's share of
    what the kernel counts by user. Where our own user namespace has fewer, all are `NOBODY`; None where it has not even
    that one.
    """
    first = _USERS.start + secrets.randbelow(len(_USERS) // _SANDBOX_USERS) * _SANDBOX_USERS
    for start, count in ((first, _SANDBOX_USERS), (NOBODY, 1)):
        if _is_mapped(start) and _is_mapped(start + count - 1):
            return start, count
    return None


def _is_mapped(uid: int) -> bool:
    """Say whether this id exists in our own user namespace."""
    lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    return any(int(start) <= uid < int(start) + int(count) for start, _, count in map(str.split, lines))


def why_no_filter() -> str:
    """Say why no sandbox can be confined on this machine; empty where it can."""
    machine = os.uname().machine
    if seccomp.supports(machine):
        return ""
    return f"there is no list of {machine}'s system calls, only of x86_64's and aarch64's"


def proc_mounts(mount_point: Path) -> list[tuple[str, str]]:
    """List the mounts, source and place, that go read-only over a sandbox's /proc in this order, as far as this kernel
    has the places. Every source is the sandbox's own: `guest.launcher` has made it below `mount_point`.
    """
    mounts = [(f"{mount_point}{place}", place) for place in _READ_ONLY if os.path.exists(place)]
    mounts += [(f"{mount_point}/counters/{name}", place) for name, place in counters.here()]
    for place in filter(os.path.exists, _MASKED):
        mounts.append((f"{mount_point}/{'nothing' if os.path.isdir(place) else 'none'}", place))
    return mounts


class Runner(Protocol):
    """A runner is the program that starts a sandbox's driver in a root folder.

    reads_filter: whether it finds the filter's program at `SECCOMP_FD`. keeps_users: whether it is to be started by the
    root of a user namespace that has all users, and has them inside too.
    """

    reads_filter: ClassVar[bool]
    keeps_users: ClassVar[bool]

    @classmethod
    def find(cls) -> Self:
        """Find the program. Raises `UserError` where there is none."""
        ...

    def command(
        self,
        mount_point: Path,
        environment: Mapping[str, str],
        limits: Limits,
        program: Sequence[str],
        *,
        root: bool,
    ) -> list[str]:
        """Return the command that runs the program as PID 1 of new namespaces, in the folder `root` of the mount point.

        The program is in the network namespace that the command is started in, with `guest.seccomp`'s filter; with
        /dev, a /dev/shm of no more than `disk_bytes`, and a /proc that has `proc_mounts`. It has no capabilities, but
        where `keeps_users` and this process's user is `root`: then it has `CAPABILITIES`.
        """
        ...

    def first(self, pid: int) -> int:
        """Return the pid of the program, where `pid` is that of the command. Raises `OSError`, `IndexError`."""
        ...


@dataclass(frozen=True)
class Bubblewrap:
    """The `Runner` that starts a sandbox by bubblewrap. flags: those that not every version has."""

    flags: tuple[str, ...]
    reads_filter: ClassVar[bool] = True
    keeps_users: ClassVar[bool] = True

    @classmethod
    def find(cls) -> Self:
        if shutil.which("bwrap") is None:
            raise UserError(
                "overlay sandboxes need bubblewrap: apt-get install bubblewrap; without: rollout.sandbox=docker or "
                "apptainer, or local for tasks of files alone"
            )
        usage = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout
        return cls(tuple(flag for flag in _OPTIONAL_FLAGS if flag in usage))

    def command(
        self,
        mount_point: Path,
        environment: Mapping[str, str],
        limits: Limits,
        program: Sequence[str],
        *,
        root: bool,
    ) -> list[str]:
        flags = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1"]
        flags += ["--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL"]
        if root:
            for capability in CAPABILITIES:
                flags += ["--cap-add", f"CAP_{capability}"]
        else:
            flags += ["--unshare-user", *self.flags]
        flags += ["--seccomp", str(SECCOMP_FD)]
        for name, value in environment.items():
            flags += ["--setenv", name, value]
        flags += ["--bind", f"{mount_point}/root", "/", "--proc", "/proc", "--dev", "/dev"]
        for source, place in proc_mounts(mount_point):
            flags += ["--ro-bind", source, place]
        flags += ["--size", str(limits.disk_bytes), "--tmpfs", "/dev/shm", "--chdir", "/"]
        return ["bwrap", *flags, *program]

    def first(self, pid: int) -> int:
        return children(pid)[0]


def children(pid: int) -> list[int]:
    """List the processes that a process has forked and that live. Raises `OSError`."""
    return [
        int(child)
        for thread in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split()
    ]
