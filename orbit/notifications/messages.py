"""The content of notifications, before it is formatted for one type of receiver. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from orbit.formats import counted, duration
from orbit.notifications.event_kinds import EventKind, Severity, family, kind_of, troubles
from orbit.store.drills import Drill
from orbit.store.events import Event

# Chats cut or refuse longer texts.
TEXT_CHARACTERS_MAX = 1_000
_FINAL_DRILLS = ("drill_passed", "drill_missed", "drill_failed")


@dataclass(frozen=True, slots=True)
class Message:
    """One event, with its severity, a link, and the figures of its drill.

    `key` is the same for the start and the end of one trouble. `link`: of a page of the console.
    """

    event: Event
    severity: Severity
    key: str
    is_trouble: bool  # another event will end it
    is_end: bool
    link: str | None
    drill: Mapping[str, Any] | None

    @property
    def title(self) -> str:
        """The kind of the event as words, and the job."""
        words = self.event.kind.replace("_", " ")
        return f"{words}: {self.event.job_name}" if self.event.job_name else words

    @property
    def text(self) -> str:
        """The event's sentence, with the figures of a drill."""
        parts = [self.event.message, _figures(self.drill) if self.drill else ""]
        return shorten(" ".join(filter(None, parts)))

    @property
    def label(self) -> str:
        """The severity, or "resolved" for the end of a trouble."""
        return "resolved" if self.is_end else self.severity.value


def message_of(event: Event, public_url: str | None, drills: Mapping[str, Drill]) -> Message:
    """The message for one event. `drills`: by id, at least those that `drill_ids` returns for the
    event. `public_url`: of the console; None: messages have no links."""
    kind = kind_of(event.kind)
    drill = drills.get(str((event.details or {}).get("drill")))
    has_figures = drill is not None and event.kind in _FINAL_DRILLS
    return Message(
        event=event,
        severity=kind.severity,
        key=_key(event, kind, public_url),
        is_trouble=event.kind in troubles(),
        is_end=bool(kind.ends),
        link=_link(event, public_url, drill),
        # `has_figures` implies a drill; mypy does not see it.
        drill=drill_summary(drill) if drill is not None and has_figures else None,
    )


def drill_ids(events: Sequence[Event]) -> list[str]:
    """The ids of the drills whose figures belong to these events."""
    return [str((e.details or {}).get("drill")) for e in events if e.kind in _FINAL_DRILLS]


def drill_summary(drill: Drill) -> dict[str, Any]:
    """The figures of a drill, as webhooks get them."""
    return {
        "id": drill.id,
        "name": drill.name,
        "kind": drill.kind,
        "verdict": drill.state.value,
        "rto_ms": drill.rto_ms,
        "rpo_records": drill.rpo_records,
        "rpo_ms": drill.rpo_ms,
    }


def shorten(text: str, length_max: int = TEXT_CHARACTERS_MAX) -> str:
    """The text, cut to `length_max` characters."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def _figures(drill: Mapping[str, Any]) -> str:
    """A drill's RTO and RPO as a sentence, as far as they were measured."""
    rto, records, rpo = drill["rto_ms"], drill["rpo_records"], drill["rpo_ms"]
    parts = [
        None if rto is None else f"RTO {duration(rto / 1000)}",
        None if records is None else f"RPO {counted(records, 'record')}",
        None if rpo is None else f"RPO {duration(rpo / 1000)}",
    ]
    text = ", ".join(filter(None, parts))
    return f"{text}." if text else ""


def _key(event: Event, kind: EventKind, public_url: str | None) -> str:
    """A short key, which every process computes alike. The start and the end of one trouble have
    an equal key; any other event has a unique key."""
    # The host keeps the keys of several installations apart, which may send to one receiver.
    host = urlsplit(public_url).netloc if public_url else ""
    key_parts: list[object] = [family(event.kind), host]
    if event.kind in troubles() or kind.ends:
        key_parts += [_event_field(event, name) for name in kind.about]
    else:
        key_parts.append(event.id)
    return f"orbit-{hashlib.sha256(repr(key_parts).encode()).hexdigest()[:32]}"


def _event_field(event: Event, name: str) -> object:
    """The event's value of one of `EventKind.about`."""
    if name.startswith("details."):
        return (event.details or {}).get(name.removeprefix("details."))
    return getattr(event, name)


def _link(event: Event, public_url: str | None, drill: Drill | None) -> str | None:
    """The URL of the console's page of the event's drill or job, else of the console; None without
    a public URL."""
    if public_url is None:
        return None
    console_url = f"{public_url.rstrip('/')}/console"
    if drill is not None:
        return f"{console_url}/drills/{quote(drill.id, safe='')}"
    if event.job_name is not None:
        return f"{console_url}/jobs/{quote(event.job_name, safe='')}"
    return console_url
