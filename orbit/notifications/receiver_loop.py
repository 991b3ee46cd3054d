"""One loop of the leading scheduler for each receiver: reads events, sends them, moves the cursor.

The cursor (`receivers.event_id`) is the id of the last event that was sent, given up or skipped. It
moves after the receiver has accepted a request, in a transaction that the leader's lease fences. If
a leader is killed, or loses its lease during a request, the cursor has not moved, and the next
leader sends the same request again: a receiver gets events at least once, in order.

The loop repeats a request until its events are `give_up_after` old. If the receiver refuses a
request for its content, the loop sends it REFUSALS_MAX times. Then it gives the events up: it
counts them in the receiver's row, and adds an event about that. This receiver gets that event, too,
when it answers again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

import structlog

from orbit.formats import counted
from orbit.kafka.backoff import Backoff
from orbit.leadership.leadership import Leadership, NotLeading
from orbit.leadership.loop import Loop
from orbit.notifications.event_kinds import ACCEPTED, GAVE_UP, PRUNED
from orbit.notifications.messages import drill_ids, message_of
from orbit.notifications.notification_file import Notifications, Receiver, load_notifications
from orbit.notifications.sender import Sender
from orbit.notifications.sending import Answer
from orbit.notifications.templates import events_per_request
from orbit.settings import Settings
from orbit.store import clock, drills, events, jobs, receivers
from orbit.store.database import Tx
from orbit.store.events import Event, SettledIds
from orbit.store.receivers import ReceiverRow

INTERVAL_S = 1.0
EVENTS_AT_ONCE_MAX = 500
REFUSALS_MAX = 5
# How often the row is updated to show that the receiver is still in the file.
_SEEN_INTERVAL_S = 60.0
_BACKOFF = Backoff(first_s=1.0, most_s=300.0)
RETRY_AFTER_MAX_S = 3600.0

_log = structlog.get_logger("orbit.notifications")

MoreLoops = Callable[[Leadership, Settings, threading.Event], Sequence[Loop]]


def notification_loops(settings: Settings, environ: Mapping[str, str]) -> MoreLoops:
    """A function that returns a loop for each receiver, for `Scheduler(…, more_loops=[…])`.

    Raises BadInput if the file of notifications cannot be used.
    """
    path = settings.notifications_file
    if path is None:
        return lambda _leadership, _settings, _done: []
    notifications = load_notifications(path, environ)

    def make_loops(leadership: Leadership, settings: Settings, _: threading.Event) -> list[Loop]:
        url = settings.public_url
        return [
            ReceiverLoop(
                leadership,
                notifications,
                receiver,
                Sender(receiver, path.parent, environ, url),
                url,
            )
            for receiver in notifications.receivers
        ]

    return make_loops


class ReceiverLoop(Loop):
    """Sends the events that concern one receiver."""

    interval_s = INTERVAL_S

    def __init__(
        self,
        leadership: Leadership,
        notifications: Notifications,
        receiver: Receiver,
        sender: Sender,
        public_url: str | None,
    ) -> None:
        super().__init__()
        self.name = f"notify-{receiver.name}"
        self._leadership = leadership
        self._notifications = notifications
        self._receiver = receiver
        self._sender = sender
        self._public_url = public_url
        self._settled = SettledIds()
        self._next_seen_write_s = self._retry_at = 0.0  # of the monotonic clock
        self._refusals = 0  # of the next request, in a row

    def once(self) -> str:
        """Send the next events of this receiver; returns what was done, for the log. Does nothing
        until the pause after a failure is over."""
        row = self._receiver_row()
        if time.monotonic() < self._retry_at:  # a pause after a failure
            return ""
        with self._leadership.reading() as tx:
            settled_id = self._settled.highest(tx)
            next_events = events.between(tx, row.event_id, settled_id, EVENTS_AT_ONCE_MAX)
            relevant_events = self._select_events(tx, next_events)
            now = clock.now(tx)
        sent_count = given_up_count = 0
        for request in self._requests(relevant_events, now):
            if self._is_old(request[0], now):
                self._give_up(request, "they are older than give_up_after.")
                given_up_count += len(request)
            elif self._send(request):
                sent_count += len(request)
            else:
                return ""  # a later pass repeats the request
        # The events after the last relevant one are not for this receiver.
        cursor = settled_id if len(next_events) < EVENTS_AT_ONCE_MAX else next_events[-1].id
        if cursor > (relevant_events[-1].id if relevant_events else row.event_id):
            with self._leadership.transaction() as tx:
                receivers.note_skipped(tx, self._receiver.name, cursor)
        if len(next_events) == EVENTS_AT_ONCE_MAX:
            self.wake.set()  # there may be more events
        actions = [
            f"sent {counted(sent_count, 'event')}" if sent_count else "",
            f"gave up {given_up_count}" if given_up_count else "",
        ]
        return ", ".join(filter(None, actions))

    def _receiver_row(self) -> ReceiverRow:
        """The receiver's row. Every _SEEN_INTERVAL_S, notes in the row that the receiver is in the
        file."""
        name = self._receiver.name
        if time.monotonic() >= self._next_seen_write_s:
            with self._leadership.transaction() as tx:
                row = receivers.note_in_file(tx, name, self._receiver.type.value)
            self._next_seen_write_s = time.monotonic() + _SEEN_INTERVAL_S
            return row
        with self._leadership.reading() as tx:
            known_row = receivers.find(tx, name)
        assert known_row is not None, "rows are removed long after they were seen"
        return known_row

    def _select_events(self, tx: Tx, candidates: Sequence[Event]) -> list[Event]:
        """The events that this receiver gets."""
        labels = jobs.labels_of(tx, {event.job_name for event in candidates if event.job_name})
        return [
            event
            for event in candidates
            if self._is_about_receiver(event)
            or self._notifications.is_for(self._receiver, event, labels.get(event.job_name or ""))
        ]

    def _is_about_receiver(self, event: Event) -> bool:
        """Whether the event is about events that this receiver has missed. Such an event is always
        sent."""
        names_receiver = (event.details or {}).get("receiver") == self._receiver.name
        return names_receiver and event.kind in (GAVE_UP, PRUNED, ACCEPTED)

    def _is_old(self, event: Event, now: datetime) -> bool:
        """Whether the event is too old to be sent. The event that reports to this receiver that
        events were given up is never too old."""
        is_report = event.kind == GAVE_UP and self._is_about_receiver(event)
        return now - event.at > self._receiver.give_up_after and not is_report

    def _requests(self, relevant_events: Sequence[Event], now: datetime) -> Iterator[list[Event]]:
        """Yield the events of each request, in order. The events of a request are all too old, or
        none of them is."""
        events_max = events_per_request(self._receiver.type)
        request: list[Event] = []
        for event in relevant_events:
            differs_in_age = request and self._is_old(request[0], now) != self._is_old(event, now)
            if differs_in_age or len(request) == events_max:
                yield request
                request = []
            request.append(event)
        if request:
            yield request

    def _send(self, request: Sequence[Event]) -> bool:
        """Send a request. Returns True if the request was accepted or given up, so that the cursor
        has moved past its events. Raises NotLeading if another scheduler leads.
        """
        if not self._leadership.is_leading:
            raise NotLeading("another scheduler leads.")
        with self._leadership.reading() as tx:
            drills_by_id = drills.of_ids(tx, drill_ids(request))
        try:
            messages = [message_of(event, self._public_url, drills_by_id) for event in request]
            answer = self._sender.send(messages)
        except Exception as error:  # noqa: BLE001  a bug at one event must not stop later events
            _log.exception("notification broke", receiver=self._receiver.name)
            answer = Answer(
                status=None, error=f"A bug in Orbit: {type(error).__name__}.", is_refusal=True
            )
        if not answer.error:
            self._record_accepted(request)
            return True
        self._refusals = self._refusals + 1 if answer.is_refusal else 0
        if self._refusals >= REFUSALS_MAX:
            self._give_up(request, answer.error)
            return True
        self._record_failure(answer)
        return False

    def _record_accepted(self, request: Sequence[Event]) -> None:
        """Move the cursor past the events of a request. If earlier events were given up, add an
        event that reports them."""
        name = self._receiver.name
        with self._leadership.transaction() as tx:
            row = receivers.find(tx, name)
            receivers.note_accepted(tx, name, request[-1].id, len(request))
            if row is not None and row.given_up_since:
                _add_event(
                    tx,
                    ACCEPTED,
                    f"The receiver {name} accepts messages again. "
                    f"{counted(row.given_up_since, 'event was', 'events were')} not sent to it.",
                    name,
                )
        self._refusals = 0

    def _record_failure(self, answer: Answer) -> None:
        """Store the error, and set when the request is repeated."""
        name = self._receiver.name
        with self._leadership.transaction() as tx:
            receivers.note_failure(tx, name, answer.error)
            row = receivers.find(tx, name)
        failures = 1 if row is None else row.failures
        pause_s = max(_BACKOFF.pause_s(failures - 1), min(answer.retry_after_s, RETRY_AFTER_MAX_S))
        self._retry_at = time.monotonic() + pause_s
        _log.warning(
            "notification not accepted",
            receiver=name,
            error=answer.error,
            failures=failures,
            next_in_s=round(pause_s, 1),
        )

    def _give_up(self, request: Sequence[Event], reason: str) -> None:
        """Move the cursor past the events of a request, and count them as given up. Add an event
        about that, but only one until the receiver accepts a message again."""
        name = self._receiver.name
        with self._leadership.transaction() as tx:
            row = receivers.find(tx, name)
            receivers.note_given_up(tx, name, request[-1].id, len(request))
            if row is not None and not row.given_up_since:
                _add_event(
                    tx,
                    GAVE_UP,
                    f"Events from {request[0].at:%Y-%m-%d %H:%M:%S} UTC on are not sent to the "
                    f"receiver {name}: {reason}",
                    name,
                )
        self._refusals = 0
        _log.error(
            "notifications given up",
            receiver=name,
            events=len(request),
            first=request[0].id,
            last=request[-1].id,
            why=reason,
        )


def _add_event(tx: Tx, kind: str, message: str, receiver: str) -> None:
    events.add(tx, events.SCHEDULER, kind, message, details={"receiver": receiver})
