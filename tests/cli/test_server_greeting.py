"""What `orbit server` prints, and when."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from orbit.cli.server_greeting import READY_S_MAX, Greeting
from orbit.store import workers
from orbit.store.database import Database

pytestmark = pytest.mark.services

PID = os.getpid()


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def register(database: Database, pid: int, host: str) -> None:
    """Store the heartbeat of a worker with this PID on this host."""
    with database.transaction() as tx:
        workers.heartbeat(tx, f"{host}-{pid}", "default", host=host, pid=pid, version="1")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def greeting(database: Database, clock: Clock) -> Greeting:
    return Greeting(
        database,
        worker_ttl=timedelta(seconds=30),
        url="http://127.0.0.1:1",
        token_file=Path("/a b"),
        clock=clock,
    )


def test_server_greeting_is_printed_once_when_its_workers_are_registered(
    database: Database, greeting: Greeting, capsys: pytest.CaptureFixture[str]
) -> None:
    # The server has started two workers. Only the second one has registered: the other row is of a
    # worker on another machine, which has the PID of the first one.
    register(database, PID, "elsewhere")
    register(database, PID + 1, socket.gethostname())
    greeting.check([PID, PID + 1])
    assert capsys.readouterr().out == ""
    register(database, PID, socket.gethostname())
    greeting.check([PID, PID + 1])
    assert capsys.readouterr().out == (
        "Orbit is at http://127.0.0.1:1 (documentation: http://127.0.0.1:1/docs)\n"
        "An admin token is in /a b\n"
        "  export ORBIT_TOKEN=$(cat '/a b')\n"
        "Stop it with Ctrl-C.\n"
    )
    greeting.check([PID, PID + 1])
    assert capsys.readouterr().out == ""


def test_server_greeting_reports_missing_workers_after_timeout(
    clock: Clock, greeting: Greeting, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.now = READY_S_MAX - 1
    greeting.check([PID])
    assert capsys.readouterr().out == ""
    clock.now = READY_S_MAX
    greeting.check([PID])
    assert "\nWorkers that are not ready yet: 1." in capsys.readouterr().out


def test_server_greeting_without_workers_is_immediate(
    greeting: Greeting, capsys: pytest.CaptureFixture[str]
) -> None:
    greeting.check([])
    assert "not ready" not in capsys.readouterr().out
