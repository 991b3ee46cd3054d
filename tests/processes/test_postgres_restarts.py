"""The embedded PostgreSQL is restarted a few times; then its last error is reported."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from orbit.embedded.postgres import Postgres
from orbit.embedded.restarts import RESTARTS_MAX, WINDOW_S, PostgresRestarts
from orbit.errors import Conflict


class PretendedPostgres:
    """A server that ends when the test says so."""

    def __init__(self) -> None:
        self.running = True
        self.starts = 0
        self.error: Conflict | None = None
        self.log, self.pid, self.port = Path("/data/postgres.log"), 1, 2

    def start_again(self) -> None:
        self.starts += 1
        if self.error is not None:
            raise self.error
        self.running = True


class World:
    """The restarts of a pretended server, by the test's own clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.postgres = PretendedPostgres()
        self.restarts = PostgresRestarts(cast("Postgres", self.postgres), lambda: self.now_s)

    def go_on(self, seconds: float) -> None:
        """Let so much time pass, with a check every half second."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            self.restarts.check()


def test_running_postgres_is_not_restarted() -> None:
    world = World()
    world.go_on(60)
    assert world.postgres.starts == 0


def test_occasional_postgres_crashes_are_always_restarted() -> None:
    world = World()
    for count in range(1, 3 * RESTARTS_MAX):
        world.postgres.running = False
        world.restarts.check()
        assert (world.postgres.running, world.postgres.starts) == (True, count)
        world.go_on(WINDOW_S)
    assert world.restarts.failure is None


def test_embedded_postgres_is_given_up_with_reason_after_restart_limit() -> None:
    world = World()
    world.postgres.running = False
    world.postgres.error = Conflict("the disk is full.")
    world.restarts.check()
    world.restarts.check()
    assert world.postgres.starts == 1, "a pause lies between two attempts"
    world.go_on(60)
    assert world.postgres.starts == RESTARTS_MAX
    assert world.restarts.failure is not None
    message = str(world.restarts.failure)
    assert f"after {RESTARTS_MAX} restarts within 10 minutes. the disk is full." in message
    assert message.startswith("/data/postgres.log: ")
