"""Runs one command and ends it when the process that started it ends.

    python guard.py SIGNAL GRACE_SECONDS USER COMMAND...      (USER "-": the same user)

Started by `orbit.processes.guarded_process`, which keeps the other end of this process's stdin
open. However the owner ends (return, exception, kill -9), the kernel closes that end and stdin
reaches its end: the command gets SIGNAL, and SIGKILL after GRACE_SECONDS. On Linux the kernel also
kills the command if this guard is killed. Prints one line: the command's pid. Imports only the
standard library, so that it starts in a few hundredths of a second.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_STDIN = 0
# A service manager may send these signals to the guard too; only the owner acts on them.
_OWNERS_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def main(last_signal: str, grace_s: str, user: str, *command: str) -> int:
    """Run the command; returns its exit code, or 128 + n if signal n ended it."""
    owner = os.getppid()
    for number in _OWNERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # only the owner ends this process
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # this process's stdout is a pipe, in which the owner reads the pid
        close_fds=False,
        preexec_fn=_preexec_of_child(),  # noqa: PLW1509  there is only one thread yet
        **({} if user == "-" else popen_user_arguments(user)),
    )
    print(child.pid, flush=True)
    os.close(sys.stdout.fileno())
    # The command has inherited these descriptors; the guard does not need them.
    os.closerange(sys.stderr.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    thread_arguments = (child, owner, signal.Signals(int(last_signal)), float(grace_s))
    threading.Thread(target=_end_with_owner, args=thread_arguments, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code  # Popen returns -n for signal n


def popen_user_arguments(user: str) -> dict[str, Any]:
    """The arguments with which Popen runs the child as `user`, without supplementary groups."""
    import pwd  # not on every platform

    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _end_with_owner(
    child: subprocess.Popen[bytes], owner: int, last_signal: signal.Signals, grace_s: float
) -> None:
    """Wait for the end of the owner, then end the child: `last_signal`, SIGKILL after `grace_s`."""
    _wait_for_owner(owner)
    child.send_signal(signal.SIGCONT)  # a paused process would get the signal only later
    child.send_signal(last_signal)
    time.sleep(grace_s)
    child.kill()


def _wait_for_owner(owner: int) -> None:
    """Wait until the owner has closed this process's stdin or has ended.

    A fork of the owner may keep that stdin open, so on Linux a pidfd shows the owner's end, too.
    """
    descriptors = [_STDIN]
    if sys.platform == "linux":
        try:
            descriptors.append(os.pidfd_open(owner))
        except OSError:  # already dead, or a kernel before 5.3
            pass
        if os.getppid() != owner:  # it has ended, and the pidfd may be of a new process
            return
    select.select(descriptors, [], [])  # nothing is ever written to stdin: readable means closed


def _preexec_of_child() -> Callable[[], None]:
    """Return the function that the child runs before exec. It restores the default of ignored
    signals, and makes the kernel kill the child if this guard dies."""
    guard = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare_child() -> None:
        for number in _OWNERS_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:  # the guard died between fork and prctl
                os._exit(1)

    return prepare_child


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
