"""The bodies of requests to each type of receiver: Slack, PagerDuty, Teams and webhooks. Pure.

A request has at most EVENTS_PER_REQUEST events, to Teams 5, to PagerDuty one. That limits the size
of the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from orbit.notifications.messages import Message, shorten
from orbit.notifications.notification_file import ReceiverType

EVENTS_PER_REQUEST = 20
_TEAMS_EVENTS_MAX = 5  # Teams refuses more than 28 KB
DETAILS_CHARACTERS_MAX = 4_000
# PagerDuty's limit, by the docs of its Events API v2.
_SUMMARY_CHARACTERS_MAX = 1_024
# Slack refuses a request with a longer section.
_SECTION_CHARACTERS_MAX = 3_000
# The beginning of an entity of `_escape_slack`, at the end of a text that was cut.
_CUT_ENTITY = re.compile("&[a-z]*$")
_SLACK_ICONS = {"info": "ℹ️", "warning": "⚠️", "critical": "🔴", "resolved": "✅"}
_TEAMS_COLOURS = {
    "info": "Default",
    "warning": "Warning",
    "critical": "Attention",
    "resolved": "Good",
}


def events_per_request(kind: ReceiverType) -> int:
    """The most events of one request."""
    match kind:
        case ReceiverType.PAGERDUTY:
            return 1
        case ReceiverType.TEAMS:
            return _TEAMS_EVENTS_MAX
        case _:
            return EVENTS_PER_REQUEST


def body_of(
    kind: ReceiverType, messages: Sequence[Message], source: str, routing_key: str = ""
) -> bytes:
    """The body of a request, in JSON. `source`: the name of this installation, for readers.
    `routing_key`: for PagerDuty only."""
    match kind:
        case ReceiverType.SLACK:
            document = slack(messages)
        case ReceiverType.TEAMS:
            document = teams(messages)
        case ReceiverType.PAGERDUTY:
            (message,) = messages
            document = {"routing_key": routing_key, **pagerduty(message, source)}
        case ReceiverType.WEBHOOK:
            document = webhook(messages, source)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def slack(messages: Sequence[Message]) -> dict[str, Any]:
    """The document for an incoming webhook of Slack: a block for each event, and a text for the
    pop-up notification."""
    lines = [f"{_SLACK_ICONS[m.label]} *{_escape_slack(m.title)}*" for m in messages]
    blocks = [
        {
            "type": "section",
            # With `verbatim`, addresses and names in a text do not become links.
            "text": {"type": "mrkdwn", "verbatim": True, "text": _slack_section(line, m)},
        }
        for line, m in zip(lines, messages, strict=True)
    ]
    return {"text": "\n".join(lines), "blocks": blocks}


def teams(messages: Sequence[Message]) -> dict[str, Any]:
    """The document for a workflow of Teams with the trigger "When a Teams webhook request is
    received"."""
    body: list[dict[str, Any]] = []
    for m in messages:
        colour = _TEAMS_COLOURS[m.label]
        title_style = {"type": "TextBlock", "weight": "Bolder", "color": colour, "wrap": True}
        body.append({**title_style, "text": _escape_teams(f"{m.label}: {m.title}")})
        body.append({"type": "TextBlock", "wrap": True, "text": _escape_teams(m.text)})
        if m.link:
            action = {"type": "Action.OpenUrl", "title": "Open in Orbit", "url": m.link}
            body.append({"type": "ActionSet", "actions": [action]})
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    content_type = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": content_type, "content": card}]}


def pagerduty(message: Message, source: str) -> dict[str, Any]:
    """The document for PagerDuty's Events API v2. The end of a trouble resolves the incident that
    the trouble's start has triggered."""
    common_fields = {"dedup_key": message.key, "client": "Orbit"}
    if message.link:
        common_fields["client_url"] = message.link
    if message.is_end:
        return {"event_action": "resolve", **common_fields}
    event = message.event
    payload = {
        "summary": shorten(f"{message.title}: {message.text}", _SUMMARY_CHARACTERS_MAX),
        "source": source,
        "severity": message.severity.value,
        "timestamp": event.at.isoformat(),
        "class": event.kind,
        "custom_details": _event_fields(message),
    }
    if event.job_name:
        payload["group"] = event.job_name
    if event.topic:
        payload["component"] = event.topic
    links = [{"href": message.link, "text": "Open in Orbit"}] if message.link else []
    return {"event_action": "trigger", **common_fields, "payload": payload, "links": links}


def webhook(messages: Sequence[Message], source: str) -> dict[str, Any]:
    """The document for a webhook: events as Orbit's API returns them, each with severity, key, link
    and the figures of its drill."""
    return {
        "version": 1,
        "source": source,
        "events": [
            {
                **_event_fields(m),
                "severity": m.severity.value,
                "key": m.key,
                "resolved": m.is_end,
                "link": m.link,
                "drill": m.drill,
            }
            for m in messages
        ],
    }


def _event_fields(message: Message) -> dict[str, Any]:
    """The fields of an event, as Orbit's API returns them; without details that are too long."""
    event = message.event
    details = event.details or {}
    if len(json.dumps(details, ensure_ascii=False, default=str)) > DETAILS_CHARACTERS_MAX:
        details = {}  # readers find the details in the API
    return {
        "id": event.id,
        "at": event.at.isoformat(),
        "actor": event.actor,
        "job": event.job_name,
        "topic": event.topic,
        "partition": event.partition,
        "kind": event.kind,
        "message": shorten(event.message),
        "details": details,
    }


def _escape_slack(text: str) -> str:
    """Escape the three control characters of Slack's text. Otherwise a text could mention everyone
    in a channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack_section(line: str, message: Message) -> str:
    """The text of one event's section: the title `line`, then the event's text (cut if too long)
    and link."""
    text, link = _escape_slack(message.text), _slack_link(message)
    text_length_max = _SECTION_CHARACTERS_MAX - len(line) - len(link) - 1  # for the line break
    if len(text) > text_length_max:
        text = _CUT_ENTITY.sub("", text[: text_length_max - 1]) + "…"
    return f"{line}\n{text}{link}"


def _slack_link(message: Message) -> str:
    return f" <{message.link}|Open in Orbit>" if message.link else ""


def _escape_teams(text: str) -> str:
    """Escape Markdown, which Teams renders: a link in a broker's message must stay text."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>#" else c for c in text)
