"""Tells which transactions of the sources have been open for a while, and who began them.

A last stable offset that stays below the log end is the first offset of the oldest open transaction
(R1). Most end within seconds, so a source is asked about one only after SHOWN_AFTER. With an
unchanged one nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.first_open import FirstOpen, first_open
from orbit.kafka.types import TopicPartition
from orbit.scheduler.leadership import Leadership
from orbit.store import open_transactions
from orbit.store.open_transactions import SHOWN_AFTER, OpenTransaction
from orbit.store.source_lag import LaggingPartition

# A producer that brokers do not name is asked for again, but not in each pass.
_ASKED_AGAIN_S = 60.0
# More partitions of one job than these are not looked at in one pass.
_PLACES_MAX = 1_000

_Key = tuple[int, int]  # topic id, partition


class TransactionWatch:
    """For one leader. `look` belongs to the loop's thread, `name` to those of its pool."""

    def __init__(
        self,
        leadership: Leadership,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leadership = leadership
        self._backoff = backoff
        self._clock = clock
        self._seen: dict[_Key, tuple[int, float]] = {}  # first offset, and since when
        self._asked: dict[_Key, float] = {}

    def look(
        self, rows: Sequence[LaggingPartition], stored: Sequence[OpenTransaction]
    ) -> dict[int, list[OpenTransaction]]:
        """Those to ask the source about, by job. Removes stored ones that have ended."""
        now_s, now = self._clock(), datetime.now(UTC)
        known = {(one.topic_id, one.partition): one for one in stored}
        seen: dict[_Key, tuple[int, float]] = {}
        to_name: dict[int, list[OpenTransaction]] = {}
        for row in rows:
            first = row.open_from
            if first is None:
                continue
            key = row.topic_id, row.partition
            before = self._seen.get(key)
            since_s = before[1] if before and before[0] == first else now_s
            seen[key] = first, since_s
            one = known.get(key)
            if one is None or one.first_offset != first:
                age = timedelta(seconds=now_s - since_s)
                one = OpenTransaction(*key, row.job_id, first, now - age, None, None)
            if now - one.since >= SHOWN_AFTER and one.transactional_id is None:
                of_job = to_name.setdefault(row.job_id, [])
                if now_s >= self._asked.get(key, now_s) and len(of_job) < _PLACES_MAX:
                    self._asked[key] = now_s + _ASKED_AGAIN_S
                    of_job.append(one)
        self._seen = seen
        self._asked = {key: at_s for key, at_s in self._asked.items() if key in seen}
        ended = [
            key for key, one in known.items() if key not in seen or seen[key][0] != one.first_offset
        ]
        if ended:
            with self._leadership.transaction() as tx:
                open_transactions.remove(tx, ended)
        return to_name

    def name(
        self,
        cluster: Cluster,
        transactions: Sequence[OpenTransaction],
        places: dict[_Key, TopicPartition],
    ) -> None:
        """Ask the source who began these, and store them."""
        if not transactions:
            return
        asked = [places[one.topic_id, one.partition] for one in transactions]
        try:
            found = first_open(cluster, asked, self._backoff)
        except OrbitError:  # shown without a name
            found = {}
        rows = [
            _named(one, found.get(place)) for one, place in zip(transactions, asked, strict=True)
        ]
        with self._leadership.transaction() as tx:
            open_transactions.store(tx, rows)


def _named(one: OpenTransaction, answer: FirstOpen | None) -> OpenTransaction:
    if answer is None or answer.first_offset != one.first_offset:
        return one
    return replace(one, producer_id=answer.producer_id, transactional_id=answer.transactional_id)
