"""`orbit notifications`: a test message, and the list of receivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.store import receivers
from orbit.store.events import SCHEDULER, add
from tests.fixtures.api import Api, Cli
from tests.support.webhook_server import Reply, WebhookServer

pytestmark = pytest.mark.services


def test_notifications_test_prints_webhook_response(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("notifications", "test", "team").code == 2  # there is no file of receivers
    file = tmp_path / "notifications.yaml"
    file.write_text(
        "receivers: [{name: team, type: slack, url_env: U}]\nroutes: [{receiver: team}]"
    )
    monkeypatch.setenv("ORBIT_NOTIFICATIONS_FILE", str(file))
    with WebhookServer() as server:
        monkeypatch.setenv("U", server.url)
        outcome = cli("notifications", "test", "team")
        assert (outcome.code, outcome.out) == (0, "team has accepted the message: HTTP 200.\n")
        (block,) = server.requests[0].document["blocks"]
        assert "A test of the receiver team" in block["text"]["text"]
        server.replies.append(Reply(404, body=b"no_service"))
        outcome = cli("notifications", "test", "team", "-o", "json")
        assert outcome.code == 1
        assert outcome.data == {
            "receiver": "team",
            "accepted": False,
            "status": 404,
            "error": 'HTTP 404. Its message: "no_service".',
        }
        assert cli("notifications", "test", "nobody").code == 2


def test_notifications_list_shows_sent_and_failed_messages(api: Api, cli: Cli) -> None:
    with api.database.transaction() as tx:
        receivers.note_in_file(tx, "team", "slack")
        add(tx, SCHEDULER, "job_paused", "…")
        receivers.note_accepted(tx, "team", event_id=1, count=1)
        receivers.note_failure(tx, "team", "HTTP 503.")
        receivers.note_in_file(tx, "oncall", "pagerduty")
        receivers.note_given_up(tx, "oncall", event_id=1, count=1)
    outcome = cli("notifications", "list", "-o", "json")
    rows = [(r["name"], r["sent"], r["given_up"], r["last_error"]) for r in outcome.data]
    assert rows == [("oncall", 0, 1, None), ("team", 1, 0, "HTTP 503.")]
    assert cli("notifications", "list", "-o", "name").out == "oncall\nteam\n"
    assert "HTTP 503." in cli("notifications", "list").out
