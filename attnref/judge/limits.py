"""Limits that Linux can set to a stranger's code: all processes that it starts
end with it, and it writes in one folder only. On other systems nothing here has
an effect."""

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

LINUX = sys.platform == "linux"
PROCESSES = 64  # at once; torch.compile starts up to 32
INTERVAL = 0.25  # seconds from one count of the processes to the next
DEATH_SIGNAL, SUBREAPER, NO_NEW_PRIVILEGES = 1, 36, 38  # of prctl
CREATE, ADD, RESTRICT = 444, 445, 446  # the system calls of Landlock
WRITE_FILE = 1 << 1
# The last bit of each version of Landlock, of the rights to remove, make, link,
# truncate and control devices. Reading and executing are not restricted.
LAST = {1: 12, 2: 13, 3: 14, 4: 14, 5: 15}
NO_SIGNALS = 1 << 1  # to processes outside


def _call(name: str, *values: Any) -> int:
    types = {int: ctypes.c_long, bytes: ctypes.c_char_p}
    arguments = (types[type(x)](x) if x is not None else x for x in values)
    return int(getattr(ctypes.CDLL(None), name)(*arguments))


def version() -> int:
    """The version of Landlock; 0 where the system cannot refuse writing."""
    return max(0, _call("syscall", CREATE, None, 0, 1)) if LINUX else 0


def confine(folder: str) -> bool:
    """Let this thread, and all processes that it starts, write in this folder
    only; return whether the system refuses other folders."""
    if not (number := version()):
        return False
    end = LAST.get(number, 15) + 1
    writes = WRITE_FILE | (1 << end) - (1 << 4)  # bits 4 to the last one
    rules = struct.pack("QQQ", writes, 0, NO_SIGNALS if number > 5 else 0)
    size = 24 if number > 5 else 16 if number > 3 else 8
    ruleset = _call("syscall", CREATE, rules, size, 0)
    for path, rights in ((folder, writes), (os.devnull, WRITE_FILE)):
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights, file)
        _call("syscall", ADD, ruleset, 1, rule, 0)
        os.close(file)
    _call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    refuses = _call("syscall", RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return refuses


def supervise(too_many: Callable[[], None]) -> None:
    """Go on in a child process; this process only watches it.

    When the child ends, this process kills all others that the child has
    started, in any session, and ends as the child did. It does so too at
    SIGTERM, and after `too_many()` if there are more than `PROCESSES`.
    """
    if not LINUX:
        return
    signals = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _call("prctl", SUBREAPER, 1, 0, 0, 0)  # orphans become its children
    _call("prctl", DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    child = os.fork()
    if not child:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return
    code: int | None = None
    while code is None:
        event = signal.sigtimedwait(signals, INTERVAL)
        if event and event.si_signo == signal.SIGTERM:
            break
        if not event and len(_descendants()) > PROCESSES:
            too_many()
            break
        code = _reap(child)
    while pids := _descendants():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(child)
    if code is not None and code < 0:
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code or 0)


def _reap(child: int) -> int | None:
    """Wait for the processes that have ended; return the exit code of the child
    if it is one of them."""
    code = None
    with suppress(ChildProcessError):
        while (pair := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = pair
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
    return code


def _descendants() -> list[int]:
    """The processes that this one has started, and that those have started."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            *_, words = path.read_text("utf-8", "replace").rpartition(")")
            parents[int(path.parent.name)] = int(words.split()[1])
    pids = [os.getpid()]
    for pid in pids:  # the list grows while it is read
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids[1:]
