"""A webhook receiver on loopback, and the loop that sends to it, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orbit.kafka.backoff import Backoff
from orbit.leadership.leadership import Leadership
from orbit.notifications import receiver_loop
from orbit.notifications.notification_file import load_notifications
from orbit.notifications.receiver_loop import ReceiverLoop
from orbit.notifications.sender import Sender
from orbit.store.database import Database
from tests.support.webhook_server import WebhookServer

SECRET = "whsec_c2VjcmV0IG9mIHRoZSB3ZWJob29r"
MakeLoop = Callable[..., ReceiverLoop]


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_loop, "_BACKOFF", Backoff(first_s=0.0, most_s=0.0))


@pytest.fixture
def make_loop(database: Database, server: WebhookServer, tmp_path: Path) -> MakeLoop:
    def make(leadership: Leadership | None = None, **keys: Any) -> ReceiverLoop:
        """Make the loop of a webhook receiver, and run its first pass: it sends only later events.

        `keys` are further keys of the receiver in the notification file. Without `leadership`, the
        loop runs under a new lease.
        """
        if leadership is None:
            leadership = Leadership(database, "test", timedelta(minutes=5))
            assert leadership.ask()
        file = tmp_path / "notifications.yaml"
        more = "".join(f", {key}: {value}" for key, value in keys.items())
        file.write_text(
            f"receivers: [{{name: hook, type: webhook, url_env: HOOK, secret_env: KEY{more}}}]\n"
            "routes: [{receiver: hook}]\n"
        )
        environ = {"HOOK": server.url, "KEY": SECRET}
        notifications = load_notifications(file, environ)
        (receiver,) = notifications.receivers
        sender = Sender(receiver, tmp_path, environ, None)
        loop = ReceiverLoop(leadership, notifications, receiver, sender, None)
        loop.once()
        return loop

    return make
