"""The few system calls that the standard library lacks, by ctypes; each raises `OSError`."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 16384, 1 << 18
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_PR_SET_CHILD_SUBREAPER, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 36, 47, 4
_MNT_DETACH = 2
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41

LOOPBACK = "127.0.0.1"
_BACKLOG = 128

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    encoded = [text.encode() for text in (source, target, kind)]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), options.encode()), f"mount {kind} at {target}")


def bind(source: str, target: str) -> None:
    """Mount `source` at `target`, read-only where the mount that holds `source` is."""
    mount(source, target, "none", MS_BIND)


def make_read_only(target: str) -> None:
    """Make a mount of a device file read-only: the file can be written all the same, but nobody can set its times."""
    mount("none", target, "none", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def write(path: str, text: str) -> None:
    """Write a file of the kernel's."""
    fd = os.open(path, os.O_WRONLY)  # not `open`: its layers would cost a fork 200 page faults
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def set_dumpable(dumpable: bool) -> None:
    """Set whether processes of the same user may trace this one and read its /proc entries."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def become_subreaper() -> None:
    """Make orphaned descendants this process's children, not init's."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def drop_all_capabilities() -> None:
    """Empty every capability set, for good: bounding and ambient too, and no_new_privs."""
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


class Filter:
    """A program of `seccomp.program`, ready to be loaded: forks share it."""

    def __init__(self, program: bytes) -> None:
        self._instructions = ctypes.create_string_buffer(program, len(program))
        packed = struct.pack("@HP", len(program) // 8, ctypes.addressof(self._instructions))
        self._program = ctypes.create_string_buffer(packed, len(packed))

    def load(self) -> None:
        """Load it for this process and all that it forks, for good. No new privileges must have been set."""
        result = _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), self._program, 0, 0)
        _check(result, "prctl(PR_SET_SECCOMP)")


def join_new_session_keyring() -> None:
    """Leave the session keyring for a new one. Where the kernel has no keyrings, or this process may not ask for them,
    there are none to leave; where this user's quota of keys is used up, it stays in the one that it is in.
    """
    call = ctypes.c_long(_KEYCTL[os.uname().machine])
    if _libc.syscall(call, ctypes.c_long(_JOIN_SESSION_KEYRING), None, 0, 0, 0) < 0:
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EPERM, errno.EDQUOT):
            raise OSError(number, f"keyctl(JOIN_SESSION_KEYRING): {os.strerror(number)}")


def bring_up_loopback() -> None:
    """Bring up `lo` in the current network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING))


def open_low_ports() -> None:
    """Let any user of the current network namespace listen on ports below 1024, as in a container of Docker."""
    write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")


def listen(namespace: int, port: int) -> socket.socket:
    """Open a socket that listens on the loopback of an open network namespace. The calling thread is in that one from
    then on, and is to end. Raises `OSError`: EPERM without the capabilities to enter it.
    """
    setns(namespace, NEWNET)
    return socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
