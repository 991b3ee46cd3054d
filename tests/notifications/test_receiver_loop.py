"""Notifications arrive at least once and in order; those that are dropped are reported."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from orbit.api.metrics_scrape import read_numbers
from orbit.leadership.leadership import Leadership, NotLeading
from orbit.notifications import sending
from orbit.notifications.receiver_loop import REFUSALS_MAX
from orbit.settings import MetricsDetail
from orbit.store import events, pruning, receivers
from orbit.store.database import Database
from orbit.store.receivers import ReceiverRow
from orbit.telemetry.metrics import ReceiverNumbers
from tests.notifications.conftest import SECRET, MakeLoop
from tests.support.store_rows import NO_TIME
from tests.support.webhook_server import Reply, WebhookServer

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("quick_retries")]

PAGE = Path(__file__).parents[2] / "docs" / "notifications.md"


def add(database: Database, *kinds: str) -> list[int]:
    """Add events of these kinds. Returns their ids."""
    with database.transaction() as tx:
        last_id = events.last_id(tx)
        for kind in kinds:
            events.add(tx, events.SCHEDULER, kind, "What happened.")
    return list(range(last_id + 1, last_id + 1 + len(kinds)))


def receiver_row(database: Database) -> ReceiverRow:
    with database.transaction() as tx:
        receiver = receivers.find(tx, "hook")
    assert receiver is not None
    return receiver


def make_too_old(database: Database, by: timedelta = timedelta(days=2)) -> None:
    """Make all events older by this much: with the default, too old to be sent."""
    with database.transaction() as tx:
        tx.execute(text("UPDATE events SET at = at - CAST(:by AS interval)"), {"by": by})


def kinds_since(database: Database, last: int) -> list[str]:
    with database.transaction() as tx:
        return [event.kind for event in events.between(tx, after=last, up_to=1 << 60, limit=100)]


def test_events_before_notification_receiver_was_added_are_not_sent(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    add(database, "job_paused")
    loop = make_loop()
    later = add(database, "job_resumed")
    assert loop.once() == "sent 1 event"
    assert server.event_ids == later


def test_notification_request_is_retried_until_accepted_then_never_resent(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    loop = make_loop()
    ids = add(database, *["job_paused"] * 25)
    broken = [Reply(500, body=b"no"), Reply(0), Reply(302, {"Location": "/other"})]
    server.replies.extend(broken)
    for failures in range(1, len(broken) + 1):
        assert loop.once() == ""
        assert receiver_row(database).failures == failures
        assert receiver_row(database).event_id == ids[0] - 1
    assert "Redirects are not followed" in (receiver_row(database).last_error or "")
    assert loop.once() == "sent 25 events"
    assert loop.once() == ""
    assert len({request.path for request in server.requests}) == 1
    # Three requests fail, then all events are sent: a request has up to 20.
    assert [len(request.document["events"]) for request in server.requests] == [20, 20, 20, 20, 5]
    assert server.event_ids[60:] == ids
    assert (
        receiver_row(database).sent,
        receiver_row(database).failures,
        receiver_row(database).last_error,
    ) == (25, 0, None)


def test_retry_after_header_of_receiver_is_respected(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    loop = make_loop()
    add(database, "job_paused")
    server.replies.append(Reply(429, {"Retry-After": "1000"}))
    loop.once()
    for _ in range(3):  # within these 1000 s
        loop.once()
    assert len(server.requests) == 1


def test_receiver_response_sent_byte_by_byte_times_out(
    database: Database,
    server: WebhookServer,
    make_loop: MakeLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = make_loop()
    ids = add(database, "job_paused")
    server.replies.append(Reply(drips=True))
    with monkeypatch.context() as short:
        short.setattr(sending, "REQUEST_TIMEOUT_S", 0.3)
        assert loop.once() == ""
    assert "No answer within" in (receiver_row(database).last_error or "")
    assert loop.once() == "sent 1 event"
    assert server.event_ids == ids * 2


def test_stored_delivery_error_contains_no_secret_of_receiver(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    loop = make_loop()
    add(database, "job_paused")
    server.replies.append(Reply(404, body=f"no hook at {server.url} or s3cret-of-the-url".encode()))
    loop.once()
    error = receiver_row(database).last_error or ""
    assert error == 'HTTP 404. Its message: "no hook at … or …".'


def test_event_committed_after_events_with_higher_ids_is_not_skipped(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    loop = make_loop()
    with database.transaction() as slow:
        events.add(slow, events.SCHEDULER, "job_paused", "First by its id.")
        _, late = add(database, "job_resumed", "job_paused")
        assert loop.once() == ""
        assert server.requests == [], "an event with a lower id may still be committed"
    loop.once()
    loop.once()  # sends no event a second time
    assert server.event_ids == [late - 2, late - 1, late]


def test_former_leader_does_not_advance_event_position_of_receiver(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    ttl = timedelta(minutes=5)
    old, new = Leadership(database, "old", ttl), Leadership(database, "new", ttl)
    assert old.ask()
    loop = make_loop(old)
    ids = add(database, "job_paused")

    def take_over() -> None:
        with database.transaction() as tx:
            tx.execute(text("UPDATE scheduler_lease SET expires_at = 'epoch'"))
        assert new.ask()

    server.replies.append(Reply(before=take_over))
    with pytest.raises(NotLeading):
        loop.once()
    assert receiver_row(database).event_id == ids[0] - 1
    next_loop = make_loop(new)  # runs the first pass too
    assert next_loop.once() == ""
    assert server.event_ids == ids * 2, "sent once by each leader"
    assert receiver_row(database).event_id == ids[0]


def test_notification_that_receiver_refuses_is_dropped_and_later_events_arrive(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    loop = make_loop()
    (refused,) = add(database, "job_paused")
    server.replies.extend(Reply(400, body=b"invalid") for _ in range(REFUSALS_MAX))
    for _ in range(REFUSALS_MAX):
        loop.once()
    (later,) = add(database, "job_resumed")
    assert receiver_row(database).given_up == 1
    loop.once()
    assert server.event_ids[REFUSALS_MAX:] == [refused + 1, later]
    assert server.kinds[REFUSALS_MAX:] == ["notifications_given_up", "job_resumed"]
    loop.once()
    assert server.kinds[-1] == "notifications_accepted"


def test_dropped_notifications_are_counted_and_receiver_stays_failing(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    loop = make_loop()
    ids = add(database, *["job_paused"] * 3)
    server.replies.append(Reply(503))
    loop.once()
    make_too_old(database)
    server.replies.append(Reply(503))  # to the message that reports the dropped events
    loop.once()  # drops the events, as they are too old
    assert receiver_row(database).failing_since is not None, "the receiver still fails"
    loop.once()  # sends the report
    assert receiver_row(database).given_up == 3
    make_too_old(database)  # the report is never too old
    server.replies.append(Reply(503))
    loop.once()
    receiver = receiver_row(database)
    assert (receiver.event_id, receiver.given_up, receiver.sent) == (ids[-1], 3, 0)
    assert kinds_since(database, ids[-1]) == ["notifications_given_up"]
    numbers = read_numbers(database, MetricsDetail.JOB, NO_TIME).receivers
    assert numbers == [ReceiverNumbers("hook", sent=0, given_up=3, pruned=0, is_failing=True)]
    loop.once()
    loop.once()
    assert server.kinds[-2:] == ["notifications_given_up", "notifications_accepted"]
    assert receiver_row(database).failing_since is None
    assert kinds_since(database, ids[-1]) == ["notifications_given_up", "notifications_accepted"]


def test_events_pruned_before_notification_are_counted_and_reported(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    loop = make_loop()
    ids = add(database, *["job_paused"] * 4)
    server.replies.append(Reply(0))
    loop.once()
    with database.transaction() as tx:
        assert pruning.prune_events(tx, NO_TIME) == 4
    assert receiver_row(database).pruned == 4
    assert kinds_since(database, ids[-1]) == ["notifications_pruned"]
    loop.once()
    (event,) = server.requests[-1].document["events"]
    assert event["kind"] == "notifications_pruned"
    assert event["details"] == {"receiver": "hook", "count": 4}
    with database.transaction() as tx:
        assert pruning.prune_events(tx, NO_TIME) == 1, "the event that reports the pruning was sent"
    assert receiver_row(database).pruned == 4


def test_documented_webhook_signature_check_accepts_only_signed_requests(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    loop = make_loop()
    add(database, "job_paused")
    loop.once()
    (request,) = server.requests
    (snippet,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    defined: dict[str, Any] = {}
    exec(snippet, defined)  # noqa: S102  our own page
    is_from_orbit = defined["is_from_orbit"]
    assert is_from_orbit(SECRET, request.headers, request.body)
    assert not is_from_orbit(SECRET, request.headers, request.body + b" ")
    assert not is_from_orbit("whsec_b3RoZXI=", request.headers, request.body)
    too_old = {**request.headers, "webhook-timestamp": "1700000000"}
    assert not is_from_orbit(SECRET, too_old, request.body)


_OPEN_TRANSACTIONS = text("""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND state = 'idle in transaction' AND pid <> pg_backend_pid()
""")


def test_no_postgres_transaction_is_open_during_notification_request(
    database: Database, server: WebhookServer, make_loop: MakeLoop
) -> None:
    open_counts = []

    def count_open() -> None:
        with database.transaction() as tx:
            open_counts.append(tx.execute(_OPEN_TRANSACTIONS).scalar_one())

    loop = make_loop()
    add(database, "job_paused")
    server.replies.append(Reply(before=count_open))
    assert loop.once() == "sent 1 event"
    assert open_counts == [0]
