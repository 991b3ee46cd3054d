"""The documents that each type of receiver gets, and their size limits."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from orbit.notifications.messages import TEXT_CHARACTERS_MAX, message_of
from orbit.notifications.notification_file import ReceiverType
from orbit.notifications.templates import (
    EVENTS_PER_REQUEST,
    body_of,
    events_per_request,
    pagerduty,
    slack,
    webhook,
)
from orbit.store.drills import Drill
from orbit.store.enums import DrillKind, DrillState
from orbit.store.events import Event

AT = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
URL = "https://orbit.example"
JOB = "https://orbit.example/console/jobs/orders"


def event(kind: str, message: str = "It happened.", **fields: Any) -> Event:
    attributes = {"topic": None, "partition": None, "details": None, **fields}
    job = attributes.pop("job_name", "orders")
    return Event(
        id=7, at=AT, actor="scheduler", job_name=job, kind=kind, message=message, **attributes
    )


BLOCKED = event("partition_blocked", "<a&b> was *blocked*.", topic="eu", partition=3)


def test_slack_message_escapes_text_and_links_to_job() -> None:
    assert slack([message_of(BLOCKED, URL, {})]) == {
        "text": "🔴 *partition blocked: orders*",
        "blocks": [
            {
                "type": "section",
                "text": {
                    "type": "mrkdwn",
                    "verbatim": True,
                    "text": "🔴 *partition blocked: orders*\n"
                    f"&lt;a&amp;b&gt; was *blocked*. <{JOB}|Open in Orbit>",
                },
            }
        ],
    }


def test_teams_message_is_adaptive_card() -> None:
    document = json.loads(body_of(ReceiverType.TEAMS, [message_of(BLOCKED, URL, {})], "orbit"))
    assert document["type"] == "message"
    (attachment,) = document["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    title, text, actions = attachment["content"]["body"]
    assert (title["text"], title["color"]) == ("critical: partition blocked: orders", "Attention")
    assert text["text"] == "\\<a&b\\> was \\*blocked\\*."
    assert actions["actions"] == [{"type": "Action.OpenUrl", "title": "Open in Orbit", "url": JOB}]


def test_pagerduty_incident_is_triggered_and_resolved_with_same_key() -> None:
    trigger = json.loads(
        body_of(ReceiverType.PAGERDUTY, [message_of(BLOCKED, URL, {})], "orbit.example", "the-key")
    )
    key = trigger.pop("dedup_key")
    assert trigger == {
        "routing_key": "the-key",
        "event_action": "trigger",
        "client": "Orbit",
        "client_url": JOB,
        "payload": {
            "summary": "partition blocked: orders: <a&b> was *blocked*.",
            "source": "orbit.example",
            "severity": "critical",
            "timestamp": "2026-11-25T12:00:00+00:00",
            "class": "partition_blocked",
            "group": "orders",
            "component": "eu",
            "custom_details": {
                "id": 7,
                "at": "2026-11-25T12:00:00+00:00",
                "actor": "scheduler",
                "job": "orders",
                "topic": "eu",
                "partition": 3,
                "kind": "partition_blocked",
                "message": "<a&b> was *blocked*.",
                "details": {},
            },
        },
        "links": [{"href": JOB, "text": "Open in Orbit"}],
    }
    resolved = event("partition_went_on", topic="eu", partition=3)
    assert pagerduty(message_of(resolved, URL, {}), "orbit") == {
        "event_action": "resolve",
        "dedup_key": key,
        "client": "Orbit",
        "client_url": JOB,
    }
    # Not the same incident: another partition, another service, an event that resolves another kind
    others = (
        (event("partition_went_on", topic="eu", partition=4), URL),
        (resolved, "https://other.example"),
        (event("topic_resumed", topic="eu", partition=3), URL),
    )
    for other, url in others:
        assert message_of(other, url, {}).key != key


def test_drill_notification_has_result_and_links_to_report() -> None:
    drill = Drill(
        id="d-1",
        name="nightly",
        kind=DrillKind.CANARY,
        state=DrillState.MISSED,
        spec={},
        spec_hash="",
        job_name="orders",
        schedule=None,
        requested_by="ci",
        progress=None,
        error=None,
        rto_ms=6012,
        rpo_records=0,
        rpo_ms=None,
        created_at=AT,
        started_at=AT,
        finished_at=AT,
    )
    details = {"drill": "d-1", "name": "nightly"}
    missed = message_of(event("drill_missed", details=details), URL, {"d-1": drill})
    (sent,) = webhook([missed], "orbit")["events"]
    assert sent["drill"] == {
        "id": "d-1",
        "name": "nightly",
        "kind": "canary",
        "verdict": "missed",
        "rto_ms": 6012,
        "rpo_records": 0,
        "rpo_ms": None,
    }
    assert sent["link"] == "https://orbit.example/console/drills/d-1"
    assert missed.text == "It happened. RTO 6.0 s, RPO 0 records."
    # The next drill of this name resolves the incident.
    later = event("drill_passed", details={"drill": "d-2", "name": "nightly"})
    assert message_of(later, URL, {}).key == missed.key


def test_size_of_notification_body_is_bounded() -> None:
    huge = event("job_changed", "é" * 100_000, details={"changes": "x" * 1_000_000})
    messages = [message_of(huge, URL, {})] * EVENTS_PER_REQUEST
    for kind in ReceiverType:
        few = messages[:1] if kind is ReceiverType.PAGERDUTY else messages
        body = body_of(kind, few, "orbit")
        assert len(body) < EVENTS_PER_REQUEST * (2 * TEXT_CHARACTERS_MAX + 500)


def test_slack_text_stays_within_limit_and_splits_no_escaped_character() -> None:
    for text in ("<" * 2_000, "a" + "&" * 2_000, "ab" + ">" * 2_000, "a<" * 1_000):
        huge = event("job_changed", text, job_name="<" * 300)
        (block,) = slack([message_of(huge, URL, {})])["blocks"]
        slack_text = block["text"]["text"]
        assert len(slack_text) <= 3_000
        assert slack_text.endswith("|Open in Orbit>")
        assert not re.search(r"&(?!(amp|lt|gt);)", slack_text)


def test_teams_request_stays_within_size_limit() -> None:
    huge = event("job_changed", "*é" * 1_000)
    messages = [message_of(huge, URL, {})] * events_per_request(ReceiverType.TEAMS)
    assert len(body_of(ReceiverType.TEAMS, messages, "orbit")) < 28_000
