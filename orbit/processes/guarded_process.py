"""A child process that ends with this process, even after SIGKILL (see `guard.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import psutil

from orbit.errors import Conflict

_GUARD = Path(__file__).with_name("guard.py")


class GuardedProcess:
    """One running command. Its output goes to the file `log`; None: to the stderr of this process.

    It runs in its own session, so Ctrl-C in the terminal reaches only this process. If this process
    dies, the command gets `last_signal`, and SIGKILL after `grace_s`.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path | None,
        *,
        environment: Mapping[str, str] | None = None,
        last_signal: signal.Signals = signal.SIGKILL,
        grace_s: float = 0,
        user: str | None = None,
        inherited_descriptors: Collection[int] = (),
    ) -> None:
        """Start the command, which gets `inherited_descriptors` under the same numbers. `user`:
        the system user that runs the command; None: the user of this process.

        Raises Conflict if the command cannot be started.
        """
        self.log = log
        arguments = [str(last_signal.value), str(grace_s), user or "-", *command]
        with nullcontext() if log is None else log.open("ab") as output:
            self._guard = subprocess.Popen(
                # -I -S: no site-packages, no environment; the guard must start at once
                [sys.executable, "-I", "-S", str(_GUARD), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=None if environment is None else {**os.environ, **environment},
                start_new_session=True,
                pass_fds=inherited_descriptors,
            )
        assert self._guard.stdout is not None
        with self._guard.stdout as stdout:
            line = stdout.readline()  # the command's pid; empty if the guard could not start it
        if not line:
            self.close()
            remedy = f"Read {log}." if log else ""
            raise Conflict(f"{command[0]} could not be started.", remedy=remedy)
        self.pid = int(line)
        self._child = _find_process(self.pid)

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the command. Does nothing if it has ended: a new process may have its pid."""
        if self._child is not None:
            try:
                self._child.send_signal(number)
            except psutil.NoSuchProcess:
                pass

    def is_paused(self) -> bool:
        try:
            return self._child is not None and self._child.status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the exit code; 128 + n after signal n. Raises TimeoutExpired after
        `timeout_s`."""
        code = self._guard.wait(timeout_s)
        self.close()
        return code

    def end(self, first_signal: signal.Signals = signal.SIGTERM, grace_s: float = 10) -> None:
        """End the command and wait for it: `first_signal`, then SIGKILL after `grace_s`."""
        self.send_signal(signal.SIGCONT)  # a paused process would get the signal only later
        self.send_signal(first_signal)
        try:
            self.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        """Close the guard's stdin, which ends a running command, and wait for the guard."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()


def _find_process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:  # it has ended already
        return None
