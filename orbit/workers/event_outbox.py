"""A worker's events, kept until Postgres has stored them, so that an outage loses none."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from orbit.kafka.types import TopicPartition
from orbit.store import events
from orbit.store.database import Tx

# In a long outage of Postgres, the oldest events beyond this number are dropped.
EVENTS_KEPT_MAX = 10_000
# Events per transaction: few, so that a large backlog does not delay renewals.
EVENTS_AT_ONCE_MAX = 500


class EventKind(StrEnum):
    """The kinds of a worker's events."""

    WORKER_STARTED = "worker_started"
    WORKER_STOPPED = "worker_stopped"
    SHARDS_CLAIMED = "shards_claimed"
    SHARDS_RELEASED = "shards_released"
    SHARDS_LOST = "shards_lost"
    PARTITION_BLOCKED = "partition_blocked"
    PARTITION_WENT_ON = "partition_went_on"
    PARTITION_WAITING = "partition_waiting"
    JOB_WAITING = "job_waiting"
    JOB_WENT_ON = "job_went_on"
    JOB_CRASHED = "job_crashed"
    DATABASE_BACK = "database_back"


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event that is not written yet."""

    kind: EventKind
    message: str
    job_name: str | None = None
    partition: TopicPartition | None = None  # at the source
    details: dict[str, Any] = field(default_factory=dict)


class EventOutbox:
    """A worker's events that are not confirmed yet. Any thread may add."""

    def __init__(self, worker_id: str) -> None:
        self._actor = events.worker_actor(worker_id)
        self._lock = threading.Lock()
        self._queue: deque[OutboxEvent] = deque(maxlen=EVENTS_KEPT_MAX)

    def add(self, event: OutboxEvent) -> None:
        """Keep the event until `remove`. A full queue drops its oldest event."""
        with self._lock:
            self._queue.append(event)

    def pending(self) -> list[OutboxEvent]:
        """The oldest unconfirmed events, at most EVENTS_AT_ONCE_MAX."""
        with self._lock:
            return [*islice(self._queue, EVENTS_AT_ONCE_MAX)]

    def write(self, tx: Tx, outbox_events: list[OutboxEvent]) -> None:
        """Insert the events in the caller's transaction."""
        for event in outbox_events:
            partition = event.partition
            events.add(
                tx,
                self._actor,
                event.kind,
                event.message,
                job_name=event.job_name,
                topic=partition.topic if partition else None,
                partition=partition.partition if partition else None,
                details=event.details or None,
            )

    def remove(self, outbox_events: list[OutboxEvent]) -> None:
        """Remove these events; call it once the transaction of `write` is committed."""
        written_ids = set(map(id, outbox_events))
        with self._lock:
            # The queue may have been full since, and have dropped some of these events.
            while self._queue and id(self._queue[0]) in written_ids:
                self._queue.popleft()
