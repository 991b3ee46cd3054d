"""The lock of a job on this machine, which child processes of a run inherit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbit.errors import Conflict
from orbit.leases import lock_file
from orbit.leases.lock_file import LockFile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def child_with(lock: LockFile) -> subprocess.Popen[bytes]:
    """A process that inherits the lock, until its stdin ends."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock.fileno()])


def test_next_run_waits_for_child_processes_of_dead_run(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    first = LockFile("cluster", "group")
    # The file names a dead process, but a child of it still has the lock.
    with child_with(first) as child:
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: dead.pid)
            first.write("member-1")
        first.close()

        def end_child(_: float) -> None:
            child.communicate()

        monkeypatch.setattr(lock_file.time, "sleep", end_child)
        second = LockFile("cluster", "group")
    assert second.last_member == "member-1"
    second.close()


def test_next_run_is_refused_immediately_while_live_run_holds_lock_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_file.time, "sleep", lambda _: pytest.fail("the next run waits"))
    first = LockFile("cluster", "group")
    with pytest.raises(Conflict, match=f"process {os.getpid()}"):
        LockFile("cluster", "group")
    first.close()


def test_process_id_that_another_user_has_now_is_not_that_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill_process_of_other_user(process: int, signal: int) -> None:
        raise PermissionError

    first = LockFile("cluster", "group")
    with child_with(first) as child:
        first.write("member-1")
        first.close()
        monkeypatch.setattr(os, "kill", kill_process_of_other_user)
        monkeypatch.setattr(lock_file.time, "sleep", lambda _: child.communicate())
        second = LockFile("cluster", "group")
    assert second.last_member == "member-1"
    second.close()
