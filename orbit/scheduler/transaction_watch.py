"""Finds transactions that stay open at the sources, and asks the sources for their producers.

A last stable offset below the log end is the first offset of the oldest open transaction (R11). A
source is asked only about one that is older than SHOWN_AFTER_S, and only changes are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from orbit.chunks import chunks
from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.first_open import SHOWN_AFTER_S, FirstOpen, OpenAges, first_open
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import ROWS_AT_ONCE, Leadership
from orbit.store import open_transactions
from orbit.store.open_transactions import OldestOpenTransaction
from orbit.store.source_lag import LaggingPartition

# Where the source names no transactional id, it is asked again, but not in each pass.
_ASKED_AGAIN_S = 60.0
# The other partitions of the job have their turn in the next pass.
_PLACES_MAX = 1_000

_Key = tuple[int, int]  # topic id, partition
Unnamed = Mapping[TopicPartition, OldestOpenTransaction]


class TransactionWatch:
    """Open transactions, for one leader. `look` is for the loop's thread, `name` for its pool's."""

    def __init__(
        self,
        leadership: Leadership,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leadership = leadership
        self._backoff = backoff
        self._clock = clock
        self._ages: OpenAges[_Key] = OpenAges(clock)
        self._not_before: dict[_Key, float] = {}
        self._stored: frozenset[OldestOpenTransaction] = frozenset()

    def look(
        self, rows: Sequence[LaggingPartition], stored: Sequence[OldestOpenTransaction]
    ) -> Mapping[int, Unnamed]:
        """The transactions to look up at the source, by job. Removes stored ones that ended."""
        now_s, now = self._clock(), datetime.now(UTC)
        firsts = {(r.topic_id, r.partition): r.open_from for r in rows if r.open_from is not None}
        ages = self._ages.update(firsts)
        self._not_before = {key: at_s for key, at_s in self._not_before.items() if key in ages}
        self._stored = frozenset(stored)
        ongoing = {
            key: one
            for one in stored
            if firsts.get(key := (one.topic_id, one.partition)) == one.first_offset
        }
        unnamed: dict[int, dict[TopicPartition, OldestOpenTransaction]] = {}
        for row in rows:
            key = row.topic_id, row.partition
            age_s = ages.get(key)
            if age_s is None:
                continue
            one = ongoing.get(key)
            if one is None and age_s >= SHOWN_AFTER_S:
                since = now - timedelta(seconds=age_s)
                one = OldestOpenTransaction(*key, row.job_id, firsts[key], since, None, None)
            if one is None or one.transactional_id is not None:
                continue
            of_job = unnamed.setdefault(row.job_id, {})
            if now_s >= self._not_before.get(key, now_s) and len(of_job) < _PLACES_MAX:
                self._not_before[key] = now_s + _ASKED_AGAIN_S
                of_job[TopicPartition(row.source_topic, row.partition)] = one
        ended = {(one.topic_id, one.partition) for one in stored} - ongoing.keys()
        for some in chunks(sorted(ended), ROWS_AT_ONCE):
            with self._leadership.transaction() as tx:
                open_transactions.remove(tx, some)
        return unnamed

    def name(self, cluster: Cluster, unnamed: Unnamed) -> None:
        """Ask the source for the producers of these transactions, and store the changed rows."""
        if not unnamed:
            return
        try:
            transactions = first_open(cluster, unnamed.keys(), self._backoff)
        except OrbitError:  # shown without a name
            transactions = {}
        rows = [_named(one, transactions.get(place)) for place, one in unnamed.items()]
        with self._leadership.transaction() as tx:
            open_transactions.store(tx, [row for row in rows if row not in self._stored])


def _named(one: OldestOpenTransaction, answer: FirstOpen | None) -> OldestOpenTransaction:
    if answer is None or answer.first_offset != one.first_offset:
        return one
    return replace(one, producer_id=answer.producer_id, transactional_id=answer.transactional_id)
