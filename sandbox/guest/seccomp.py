"""The system calls that a sandbox may make, as the program that the kernel's seccomp runs at each, and as a profile for
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
# These are answered as by a kernel that lacks them. The flags of clone3 lie behind a pointer; every libc takes clone
# instead. cachestat and mincore tell what other sandboxes have read of a shared file. One call of io_setup takes what
# the machine has.
UNKNOWN = "clone3 cachestat mincore io_setup _sysctl afs_syscall getpmsg putpmsg security tuxcall vserver".split()


class Condition(NamedTuple):
    """A condition on an argument's lower 32 bits: that they are a value, are not, or have no bit of it."""

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
    # This tells whether a page of a shared file has been read lately. A kernel may say so of any file.
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
    """Assemble the filter in the kernel's BPF (see its Documentation/userspace-api/seccomp_filter.rst).

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
    """Return the filter in the format of the OCI's runtime specification, as far as that goes. Where no condition
    holds, the call is not there, but for the cases that a rule names as refused. A call of another architecture ends
    the process. Raises `KeyError` as `program` does.
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
    """List comparisons of which one must hold.

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
    """Make the instruction that skips so many others unless the condition holds."""
    if condition.kind == "is":
        return _IF_EQUAL, 0, skip, condition.value
    return (_IF_EQUAL if condition.kind == "is not" else _IF_ANY_BIT), skip, 0, condition.value


def _runs(answers: Mapping[int, Block], default: Block) -> list[tuple[int, Block]]:
    """List the first of each run of numbers with one answer. After the highest number the answer is the default."""
    runs: list[tuple[int, Block]] = []
    for number in range(max(answers) + 2):
        block = answers.get(number, default)
        if not runs or runs[-1][1] != block:
            runs.append((number, block))
    return runs


def _search(runs: Sequence[tuple[int, Block]]) -> Block:
    """Assemble a binary search for the run of the number that is loaded."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    low, high = _search(runs[:middle]), _search(runs[middle:])
    return [(_IF_AT_LEAST, len(low), 0, runs[middle][0]), *low, *high]


# The kernel's system calls by name, as of Linux 6.18. Source: its arch/x86/entry/syscalls/syscall_64.tbl and
# scripts/syscall.tbl.
_SHARED_FROM = 424  # from here on a call has one number on every architecture
_SHARED = """
    pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount
    fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr
    quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease
    futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue
    statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat
    listxattrat removexattrat open_tree_attr file_getattr file_setattr
"""
# The calls are in order of their numbers; "-" is a number without a call.
_X86_64 = """
    read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
    rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise
    shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket connect accept
    sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt
    clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock
    fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink
    readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid
    syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid setregid getgroups
    setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending
    rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs
    sysfs getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler
    sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup
    modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2
    swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module
    get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead
    setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr
    lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup
    io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old
    epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create
    timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres
    clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open
    mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl
    ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat
    fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll
    unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait
    signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2
    epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init
    fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu
    process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom
    memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2
    pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq
"""
_AARCH64 = """
    io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
    listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2
    epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl
    ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root
    nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat
    fchown openat close vhangup pipe2 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv
    pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat fstat sync fsync fdatasync
    sync_file_range timerfd_create timerfd_settime timerfd_gettime utimensat acct capget capset personality exit
    exit_group waitid set_tid_address unshare futex set_robust_list get_robust_list nanosleep getitimer setitimer
    kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun timer_settime timer_delete
    clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam sched_setscheduler
    sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend
    rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority
    reboot setregid setgid setreuid setuid setresuid getresuid setresgid getresgid setfsuid setfsgid times setpgid
    getpgid getsid setsid getgroups setgroups uname sethostname setdomainname getrlimit setrlimit getrusage umask
    prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget
    semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind listen accept connect getsockname
    getpeername sendto recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk munmap mremap add_key
    request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock mlockall munlockall
    mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo
    perf_event_open accept4 recvmmsg - - - - - - - - - - - - - - - - wait4 prlimit64 fanotify_init fanotify_mark
    name_to_handle_at open_by_handle_at clock_adjtime syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp
    finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat userfaultfd
    membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq
    kexec_file_load
"""


def numbers(machine: str) -> dict[str, int]:
    """Map an architecture's calls to their numbers, as of Linux 6.18. Raises `KeyError` for one that is not here."""
    own = {"x86_64": _X86_64, "aarch64": _AARCH64}[machine].split()
    pairs = [*enumerate(own), *enumerate(_SHARED.split(), _SHARED_FROM)]
    return {name: number for number, name in pairs if name != "-"}
