"""Which system calls a sandbox may make, as the program that the kernel's seccomp runs at each, and as a profile for
Docker and Apptainer.

What Docker's default profile refuses to a container without capabilities is refused, and more: reaching into other
processes (`ptrace`), io_uring, every family of sockets but those of the internet, of Unix and of routes, and whatever
would change the priority or the limits of the sandbox's first process. A call that this file does not know is answered
as by a kernel that does not have it. So are the calls of another architecture than the machine's own, i386 and x32 too.

It does not cover: bugs of the calls that are allowed; `ioctl`; what a kernel does with the arguments that only pointers
lead to.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .system_calls import numbers

REFUSED = """
    acct add_key bpf chroot clock_settime create_module delete_module fanotify_init fanotify_mark finit_module
    fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy init_module io_uring_enter io_uring_register
    io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl listmount lookup_dcookie lsm_list_modules
    lsm_set_self_attr mbind migrate_pages modify_ldt mount mount_setattr move_mount move_pages name_to_handle_at
    nfsservctl open_by_handle_at open_tree open_tree_attr perf_event_open pidfd_getfd pivot_root process_madvise
    process_vm_readv process_vm_writev ptrace query_module quotactl quotactl_fd reboot request_key set_mempolicy
    set_mempolicy_home_node setdomainname sethostname setns settimeofday statmount swapoff swapon sysfs syslog umount2
    unshare uselib userfaultfd ustat vhangup
""".split()
# As by a kernel that lacks them. The flags of clone3 lie behind a pointer; every libc takes clone instead. cachestat
# and mincore tell what other sandboxes have read of a shared file. One call of io_setup takes what the machine has.
UNKNOWN = "clone3 cachestat mincore io_setup _sysctl afs_syscall getpmsg putpmsg security tuxcall vserver".split()


class Condition(NamedTuple):
    """On an argument's lower 32 bits: that they are a value, are not, or have no bit of it."""

    argument: int
    kind: Literal["is", "is not", "has not"]
    value: int


class Rule(NamedTuple):
    """A call is allowed where all conditions of one of the `allowed` hold; else it fails with `error`.

    refused: cases in which it does so in a profile too. A profile can't say "else".
    """

    allowed: Sequence[Sequence[Condition]]
    error: int
    refused: Sequence[Sequence[Condition]] = ()


_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0  # what lists the machine's own addresses
_FAMILIES = 64  # of sockets; Linux has 46
_ALL_BITS = 0xFFFFFFFF
_NEW_NAMESPACES = 0x7E020000
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)  # as Docker: Linux, 32 bits, old `uname`, both, a question
_RWF_NOWAIT = 0x8
_FIRST = 1  # the sandbox's first process, in its own pid namespace
_PID_BITS = 22  # of the kernel's highest, PID_MAX_LIMIT
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1  # a group, or all processes of a user, may hold the first one too
_SOCKETS = Rule(
    [
        [Condition(0, "is", _AF_UNIX)],
        [Condition(0, "is", _AF_INET)],
        [Condition(0, "is", _AF_INET6)],
        [Condition(0, "is", _AF_NETLINK), Condition(2, "is", _NETLINK_ROUTE)],
    ],
    errno.EAFNOSUPPORT,
    # PAM takes this for a kernel without audit. Of any other error it makes that nobody can become another user: `su`,
    # `runuser` and `sudo` failed.
    [
        [Condition(0, "is", _AF_NETLINK), Condition(2, "is not", _NETLINK_ROUTE)],
        *(
            [Condition(0, "is", family)]
            for family in range(_FAMILIES)
            if family not in (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
        ),
    ],
)
_NOT_THE_FIRST = Rule([[Condition(0, "is not", _FIRST)]], errno.EPERM)
RULES: Mapping[str, Rule] = {
    "socket": _SOCKETS,
    "socketpair": _SOCKETS,
    "clone": Rule([[Condition(0, "has not", _NEW_NAMESPACES)]], errno.EPERM),
    # Whether a page of a shared file has been read lately. A kernel may say so of any file.
    "preadv2": Rule([[Condition(5, "has not", _RWF_NOWAIT)]], errno.EOPNOTSUPP),
    "personality": Rule([[Condition(0, "is", value)] for value in _PERSONALITIES], errno.EPERM),
    "prlimit64": _NOT_THE_FIRST,
    "sched_setaffinity": _NOT_THE_FIRST,
    "sched_setattr": _NOT_THE_FIRST,
    "sched_setparam": _NOT_THE_FIRST,
    "sched_setscheduler": _NOT_THE_FIRST,
    "setpriority": Rule([[Condition(0, "is", _PRIO_PROCESS), Condition(1, "is not", _FIRST)]], errno.EPERM),
    "ioprio_set": Rule([[Condition(0, "is", _IOPRIO_WHO_PROCESS), Condition(1, "is not", _FIRST)]], errno.EPERM),
}

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_RETURN_ALLOW, _RETURN_ERROR = 0x7FFF0000, 0x00050000
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_INSTRUCTION = struct.Struct("=HBBI")  # code, instructions to skip if true, if false, value

Instruction = tuple[int, int, int, int]
Block = list[Instruction]


def supports(machine: str) -> bool:
    return machine in _ARCHITECTURES


def program(machine: str | None = None) -> bytes:
    """The filter in the kernel's BPF (see its Documentation/userspace-api/seccomp_filter.rst).

    Raises `KeyError` for an architecture that there is none for.
    """
    machine = machine or os.uname().machine
    known = numbers(machine)
    unknown = _fails(errno.ENOSYS)
    answers = dict.fromkeys(known.values(), _allowed()) | {known[name]: unknown for name in UNKNOWN if name in known}
    answers |= {known[name]: _fails(errno.EPERM) for name in REFUSED if name in known}
    answers |= {known[name]: _by_rule(rule) for name, rule in RULES.items() if name in known}
    block = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        *unknown,
        (_LOAD, 0, 0, _NUMBER_AT),
        *_search(_runs(answers, unknown)),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in block)


def profile(machine: str | None = None) -> dict[str, Any]:
    """The same in the format of the OCI's runtime specification, as far as that goes. Where no condition holds, the
    call is not there, but for the cases that a rule names as refused. A call of another architecture ends the process.
    """
    machine = machine or os.uname().machine
    names = sorted(set(numbers(machine)) - set(REFUSED) - set(UNKNOWN) - set(RULES))
    calls: list[dict[str, Any]] = [
        {"names": names, "action": "SCMP_ACT_ALLOW"},
        {"names": REFUSED, "action": "SCMP_ACT_ERRNO"},  # EPERM: Apptainer knows no other
    ]
    for name, rule in RULES.items():
        fails = {"action": "SCMP_ACT_ERRNO", "errnoRet": rule.error}
        for answer, cases in (({"action": "SCMP_ACT_ALLOW"}, rule.allowed), (fails, rule.refused)):
            for conditions in cases:
                for arguments in itertools.product(*map(_as_arguments, conditions)):
                    calls.append({"names": [name], **answer, "args": list(arguments)})
    return {
        "defaultAction": "SCMP_ACT_TRACE",  # ENOSYS, where nobody traces
        "architectures": [f"SCMP_ARCH_{machine.upper()}"],
        "syscalls": calls,
    }


def _as_arguments(condition: Condition) -> list[dict[str, Any]]:
    """Comparisons of which one must hold.

    Each is of some of the lower 32 bits, since the format's other operators compare 64, of which the kernel reads 32.
    So a pid is another one if any of its bits is another.
    """
    argument, kind, value = condition
    if kind == "is not":
        bits = [1 << number for number in range(_PID_BITS)]
        return [_masked(argument, bit, bit & ~value) for bit in bits]
    return [_masked(argument, *((_ALL_BITS, value) if kind == "is" else (value, 0)))]


def _masked(argument: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": argument, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value}


def _allowed() -> Block:
    return [(_RETURN, 0, 0, _RETURN_ALLOW)]


def _fails(error: int) -> Block:
    return [(_RETURN, 0, 0, _RETURN_ERROR | error)]


def _by_rule(rule: Rule) -> Block:
    block: Block = []
    for conditions in rule.allowed:
        case = _allowed()
        for condition in reversed(conditions):
            case = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * condition.argument), _unless(condition, len(case)), *case]
        block += case
    return block + _fails(rule.error)


def _unless(condition: Condition, skip: int) -> Instruction:
    """Skip instructions unless the condition holds."""
    if condition.kind == "is":
        return _IF_EQUAL, 0, skip, condition.value
    return (_IF_EQUAL if condition.kind == "is not" else _IF_ANY_BIT), skip, 0, condition.value


def _runs(answers: Mapping[int, Block], default: Block) -> list[tuple[int, Block]]:
    """The first of each run of numbers with the same answer. After the highest number the answer is the default."""
    runs: list[tuple[int, Block]] = []
    for number in range(max(answers) + 2):
        block = answers.get(number, default)
        if not runs or runs[-1][1] != block:
            runs.append((number, block))
    return runs


def _search(runs: Sequence[tuple[int, Block]]) -> Block:
    """A binary search for the run of the number that is loaded."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    low, high = _search(runs[:middle]), _search(runs[middle:])
    return [(_IF_AT_LEAST, len(low), 0, runs[middle][0]), *low, *high]
