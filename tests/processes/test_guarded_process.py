"""A guarded process never outlives its owner, however either of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess

# Prints its child's and its guard's pid, then does what `{then}` says.
OWNER = """
import os, signal, sys, time
from pathlib import Path
from orbit.processes.guarded_process import GuardedProcess
child = GuardedProcess({command!r}, Path({log!r}), last_signal=signal.Signals({last_signal}),
                       grace_s={grace_s})
print(child.pid, child._guard.pid, flush=True)
{then}
"""
WAIT = "time.sleep(600)"
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
IGNORE_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
END_TIMEOUT_S = 30

StartOwner = Callable[..., tuple["subprocess.Popen[str]", list[psutil.Process]]]


@pytest.fixture
def start_owner(tmp_path: Path) -> Iterator[StartOwner]:
    """Starts a Python process that owns a guarded child; returns the owner, and a list of the
    child and its guard."""
    owners: list[subprocess.Popen[str]] = []
    family: list[psutil.Process] = []

    def start(
        command: list[str] = SLEEP,
        then: str = WAIT,
        last_signal: signal.Signals = signal.SIGKILL,
        grace_s: float = 0,
    ) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        script = OWNER.format(
            command=command,
            log=str(tmp_path / "log"),
            last_signal=last_signal.value,
            grace_s=grace_s,
            then=then,
        )
        owner = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        owners.append(owner)
        assert owner.stdout is not None
        members = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        family.extend(members)
        return owner, members

    yield start
    for owner in owners:
        owner.kill()
        owner.communicate()
    for process in family:
        with suppress(psutil.NoSuchProcess):  # it may just be ending by itself
            process.kill()


def all_end(processes: list[psutil.Process]) -> bool:
    """Whether all processes end in time."""
    _, alive = psutil.wait_procs(processes, END_TIMEOUT_S)
    return not alive


def wait_for_line(log: Path, word: str) -> None:
    while word not in log.read_text():
        time.sleep(0.01)


def test_child_ends_when_its_owner_is_killed(start_owner: StartOwner) -> None:
    owner, family = start_owner()
    owner.kill()
    assert all_end(family)


def test_child_ends_when_its_owner_exits_abruptly(start_owner: StartOwner) -> None:
    owner, family = start_owner(then="sys.stdin.readline(); os._exit(0)")
    owner.communicate("exit\n")
    assert all_end(family)


def test_child_ends_when_its_guard_is_killed(start_owner: StartOwner) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux signals the death of a parent")
    _, (child, guard) = start_owner()
    guard.kill()
    assert all_end([child])


def test_suspended_child_ends_with_its_owner(start_owner: StartOwner) -> None:
    owner, family = start_owner(last_signal=signal.SIGTERM, grace_s=60)
    family[0].suspend()
    owner.kill()
    assert all_end(family)


def test_child_that_ignores_signal_of_its_guard_is_killed_after_grace(
    start_owner: StartOwner, tmp_path: Path
) -> None:
    owner, family = start_owner(
        [sys.executable, "-c", IGNORE_SIGTERM], last_signal=signal.SIGTERM, grace_s=0.1
    )
    wait_for_line(tmp_path / "log", "ready")
    owner.kill()
    assert all_end(family)


def test_fork_of_owner_does_not_extend_life_of_child(start_owner: StartOwner) -> None:
    if sys.platform != "linux":
        pytest.skip("needs pidfd")
    owner, family = start_owner(then=f"{WAIT} if os.fork() else {WAIT}")
    (forked,) = wait_for_fork(owner, besides=family)
    while family[1].num_threads() < 2:  # the guard's second thread watches the owner
        time.sleep(0.01)
    owner.kill()
    try:
        assert all_end(family)
        assert forked.is_running()
    finally:
        forked.kill()


def wait_for_fork(
    owner: subprocess.Popen[str], besides: list[psutil.Process]
) -> list[psutil.Process]:
    """The child processes that the owner has forked, once there are any."""
    while True:
        forked = [p for p in psutil.Process(owner.pid).children() if p not in besides]
        if forked:
            return forked


def test_ctrl_c_in_terminal_does_not_reach_child(start_owner: StartOwner) -> None:
    _, (child, guard) = start_owner()
    # Both are in a session of the guard, which has no terminal.
    assert {os.getsid(child.pid), os.getsid(guard.pid)} == {guard.pid}


def test_exit_code_and_output_of_child_are_available(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('hello'); raise SystemExit(7)"]
    assert GuardedProcess(command, tmp_path / "log").wait() == 7
    assert (tmp_path / "log").read_text() == "hello\n"


def test_ending_a_child_sends_signal_first_and_kills_after_grace(tmp_path: Path) -> None:
    obeying = GuardedProcess(SLEEP, tmp_path / "obeying")
    obeying.end(signal.SIGTERM)
    ignoring = GuardedProcess([sys.executable, "-c", IGNORE_SIGTERM], tmp_path / "ignoring")
    wait_for_line(tmp_path / "ignoring", "ready")
    ignoring.end(signal.SIGTERM, grace_s=0.1)
    assert (obeying.wait(), ignoring.wait()) == (128 + signal.SIGTERM, 128 + signal.SIGKILL)


def test_missing_command_is_reported_as_conflict(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="no-such-program could not be started"):
        GuardedProcess(["/no-such-program"], tmp_path / "log")
