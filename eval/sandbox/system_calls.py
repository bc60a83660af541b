"""Which system calls a candidate program is refused on Linux, as a filter for the kernel."""

import platform
import struct
import sys

# Name -> its number on x86-64 and, where there is one, on 64-bit ARM.
_REFUSED = {
    # New programs and processes, and reaching into processes that are there.
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "prlimit64": (302, 261), "setsid": (112, 157), "setpgid": (109, 154),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    # The network. Of `socketpair` what asyncio needs stays, see `filter_of`.
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "io_uring_setup": (425, 425),
    # Memory and messages that outlive the program or escape its memory limit.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "mlockall": (151, 230),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180),
    # Owners, rights and times of files, which the kernel's file rules leave open, older ones the
    # length too.
    "truncate": (76, 45),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "mknod": (133, None), "mknodat": (259, 33), "open_by_handle_at": (304, 265),
    # The machine, which matters to a program that root started.
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "settimeofday": (164, 170), "adjtimex": (159, 171), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "syslog": (103, 116), "quotactl": (179, 60), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip

# Column of a table, and the architecture's number in a filter.
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# Calls whose arguments decide.
_CLONE, _PRCTL, _SOCKETPAIR, _CLONE3 = (56, 220), (157, 167), (53, 199), 435
# With this first argument a process would ask `prctl` to outlive its parent.
_PARENT_DEATH_SIGNAL = 1
_CLONE_THREAD = 0x10000
_AF_UNIX = 1
# Bits of a socket's type that SOCK_STREAM, which is 1, does not have. Above them are options.
_NOT_STREAM = 0xE
_X32 = 0x40000000

# Classic BPF: load a word, jump if equal, if not less, if a bit is set, return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_MACHINE, _AT_FIRST_ARGUMENT, _AT_SECOND_ARGUMENT = 0, 4, 16, 24
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NOT_PERMITTED, _NOT_THERE = 1, 38


def filter_program() -> bytes:
    """Returns the filter for this machine; empty where there is none.

    Threads may be started, processes may not. Refused calls fail with "operation not permitted";
    `clone3` is said not to exist, whereupon the C library falls back to `clone`, whose arguments a
    filter can see.
    """
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return b""
    return filter_of(platform.machine())


def filter_of(machine: str) -> bytes:
    """Returns the filter for `x86_64` or `aarch64`: instructions of 8 bytes.

    A pair of datagram sockets is refused, although it is a pair: `sendto` with an address reaches
    any other socket of the host from it. A stream that is connected reaches its other end only.
    """
    column, architecture = _MACHINES[machine]
    refuse, allow = (_RETURN, 0, 0, _REFUSE | _NOT_PERMITTED), (_RETURN, 0, 0, _ALLOW)
    first, second = (_LOAD, 0, 0, _AT_FIRST_ARGUMENT), (_LOAD, 0, 0, _AT_SECOND_ARGUMENT)
    # By number of the call what is done about it.
    answers = {numbers[column]: [refuse] for numbers in _REFUSED.values()}
    answers |= {
        _CLONE3: [(_RETURN, 0, 0, _REFUSE | _NOT_THERE)],
        _PRCTL[column]: [first, (_EQUAL, 0, 1, _PARENT_DEATH_SIGNAL), refuse, allow],
        _CLONE[column]: [first, (_ANY_BIT, 1, 0, _CLONE_THREAD), refuse, allow],
        _SOCKETPAIR[column]: [
            first, (_EQUAL, 0, 2, _AF_UNIX), second, (_ANY_BIT, 0, 1, _NOT_STREAM), refuse, allow
        ],
    }  # fmt: skip
    instructions = [
        (_LOAD, 0, 0, _AT_MACHINE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
        # A second numbering of the same calls on x86-64.
        (_AT_LEAST, 0, 1, _X32),
        refuse,
    ]
    for number, answer in answers.items():
        if number is not None:
            instructions += [(_EQUAL, 0, len(answer), number), *answer]
    instructions.append(allow)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
