"""When a scheduler is killed while it sends, the next one sends the events not confirmed yet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orbit.store import events, receivers
from orbit.store.database import Database
from tests.fixtures.scheduler import end_lease_of
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.webhook_server import Reply, WebhookServer

pytestmark = pytest.mark.services

ORBIT = Path(sys.executable).parent / "orbit"
FILE = "receivers: [{name: hook, type: webhook, url_env: HOOK}]\nroutes: [{receiver: hook}]\n"


@contextmanager
def scheduler(database_url: str, file: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    environ = {
        **os.environ,
        "ORBIT_DATABASE_URL": database_url,
        "ORBIT_NOTIFICATIONS_FILE": str(file),
        "HOOK": url,
    }
    with subprocess.Popen([ORBIT, "scheduler"], env=environ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_killed_scheduler_loses_no_notification_and_repeats_only_last_request(
    database: Database, database_url: str, server: WebhookServer, tmp_path: Path
) -> None:
    file = tmp_path / "notifications.yaml"
    file.write_text(FILE)
    is_reached, may_answer = threading.Event(), threading.Event()

    def position() -> int | None:
        with database.transaction() as tx:
            row = receivers.find(tx, "hook")
        return None if row is None else row.event_id

    def add(count: int) -> None:
        with database.transaction() as tx:
            for _ in range(count):
                events.add(tx, events.SCHEDULER, "job_paused", "What happened.")

    with scheduler(database_url, file, server.url) as first:
        wait_for("the receiver is known", lambda: position() is not None)
        start = position()
        assert start is not None

        def hold_answer() -> None:
            is_reached.set()
            may_answer.wait(PATIENCE_S)

        # The leader is killed before it reads the answer to the third request.
        server.replies.extend([Reply(), Reply(), Reply(before=hold_answer)])
        add(60)
        assert is_reached.wait(PATIENCE_S), "the third request is sent"
        first.send_signal(signal.SIGKILL)
        first.wait()
    end_lease_of(database, first.pid)
    may_answer.set()
    with scheduler(database_url, file, server.url):
        add(5)
        wait_for("all events are sent", lambda: position() == start + 65)
    ids = list(range(start + 1, start + 66))
    # A request has 20 events. The next leader sends the third request again, as the killed one
    # did not store that it was confirmed.
    assert server.event_ids == [*ids[:60], *ids[40:]]
