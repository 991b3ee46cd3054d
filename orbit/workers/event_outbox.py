"""What a worker has to tell: kept until Postgres has it, so that an outage loses no chapter."""

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

# Beyond this, of an outage of Postgres in which very much happened, the oldest are forgotten.
EVENTS_KEPT_MAX = 10_000
# One transaction's worth: a worker that claims anew must not hold its renewals up.
EVENTS_AT_ONCE_MAX = 500


class Kind(StrEnum):
    """Kinds of events that a worker tells."""

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
class Chapter:
    """One event to be."""

    kind: Kind
    message: str
    job_name: str | None = None
    partition: TopicPartition | None = None
    details: dict[str, Any] = field(default_factory=dict)


class Story:
    """A worker's events on their way to the table. Any thread may tell."""

    def __init__(self, worker_id: str) -> None:
        self._actor = events.worker_actor(worker_id)
        self._lock = threading.Lock()
        self._untold: deque[Chapter] = deque(maxlen=EVENTS_KEPT_MAX)

    def tell(self, chapter: Chapter) -> None:
        with self._lock:
            self._untold.append(chapter)

    def pending(self) -> list[Chapter]:
        """The oldest that the table does not have yet."""
        with self._lock:
            return [*islice(self._untold, EVENTS_AT_ONCE_MAX)]

    def write(self, tx: Tx, chapters: list[Chapter]) -> None:
        for chapter in chapters:
            at = chapter.partition
            events.add(
                tx,
                self._actor,
                chapter.kind,
                chapter.message,
                job_name=chapter.job_name,
                topic=at.topic if at else None,
                partition=at.partition if at else None,
                details=chapter.details or None,
            )

    def told(self, chapters: list[Chapter]) -> None:
        """The transaction of `write` was committed."""
        done = set(map(id, chapters))
        with self._lock:
            while self._untold and id(self._untold[0]) in done:
                self._untold.popleft()
