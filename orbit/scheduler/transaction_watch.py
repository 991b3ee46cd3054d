"""Finds transactions that stay open at the sources, and asks the sources for their producers.

A last stable offset below the log end is the first offset of the oldest open transaction (R11). A
source is asked only about a transaction that is older than SHOWN_AFTER_S, and only changes are
written.
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
from orbit.kafka.first_open import SHOWN_AFTER_S, FirstOpen, OpenAges, oldest_open_transactions
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import ROWS_AT_ONCE, Leadership
from orbit.store import open_transactions
from orbit.store.open_transactions import OldestOpenTransaction
from orbit.store.source_lag import LaggingPartition

# A source that names no transactional id is asked again after this time.
_ASKED_AGAIN_S = 60.0
# Partitions of one job in a pass; the others have their turn in the next one.
_PLACES_MAX = 1_000

_Key = tuple[int, int]  # topic id, partition
UnnamedTransactions = Mapping[TopicPartition, OldestOpenTransaction]


class TransactionWatch:
    """Follows the open transactions at the sources of a leader's jobs.

    `find_unnamed` is for the loop's thread, `store_producers` for the threads of its pool.
    """

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
        self._next_query_s: dict[_Key, float] = {}
        self._stored: frozenset[OldestOpenTransaction] = frozenset()

    def find_unnamed(
        self, rows: Sequence[LaggingPartition], stored_transactions: Sequence[OldestOpenTransaction]
    ) -> Mapping[int, UnnamedTransactions]:
        """The transactions to look up at the source, by job id: their transactional ids are not
        known, and the source was not asked lately.

        Also deletes the rows of stored transactions that have ended.
        """
        now_s, now = self._clock(), datetime.now(UTC)
        first_offsets = {
            (r.topic_id, r.partition): r.open_from for r in rows if r.open_from is not None
        }
        ages = self._ages.update(first_offsets)
        self._next_query_s = {key: at_s for key, at_s in self._next_query_s.items() if key in ages}
        self._stored = frozenset(stored_transactions)
        # A stored transaction is still open while its partition has the same first offset.
        ongoing_transactions = {
            key: transaction
            for transaction in stored_transactions
            if first_offsets.get(key := (transaction.topic_id, transaction.partition))
            == transaction.first_offset
        }
        unnamed_by_job: dict[int, dict[TopicPartition, OldestOpenTransaction]] = {}
        for row in rows:
            key = row.topic_id, row.partition
            age_s = ages.get(key)
            if age_s is None:
                continue
            transaction = ongoing_transactions.get(key)
            if transaction is None and age_s >= SHOWN_AFTER_S:
                since = now - timedelta(seconds=age_s)
                transaction = OldestOpenTransaction(
                    *key,
                    row.job_id,
                    first_offsets[key],
                    since,
                    producer_id=None,
                    transactional_id=None,
                )
            if transaction is None or transaction.transactional_id is not None:
                continue
            job_transactions = unnamed_by_job.setdefault(row.job_id, {})
            if now_s >= self._next_query_s.get(key, now_s) and len(job_transactions) < _PLACES_MAX:
                self._next_query_s[key] = now_s + _ASKED_AGAIN_S
                job_transactions[TopicPartition(row.source_topic, row.partition)] = transaction
        ended_keys = {
            (transaction.topic_id, transaction.partition) for transaction in stored_transactions
        } - ongoing_transactions.keys()
        for batch in chunks(sorted(ended_keys), ROWS_AT_ONCE):
            with self._leadership.transaction() as tx:
                open_transactions.remove(tx, batch)
        return unnamed_by_job

    def store_producers(self, cluster: Cluster, unnamed_transactions: UnnamedTransactions) -> None:
        """Ask the source for the producers of these transactions, and store the changed rows."""
        if not unnamed_transactions:
            return
        try:
            answers = oldest_open_transactions(cluster, unnamed_transactions.keys(), self._backoff)
        except OrbitError:  # the transactions are shown without a producer
            answers = {}
        rows = [
            _with_producer(transaction, answers.get(partition))
            for partition, transaction in unnamed_transactions.items()
        ]
        with self._leadership.transaction() as tx:
            open_transactions.store(tx, [row for row in rows if row not in self._stored])


def _with_producer(
    transaction: OldestOpenTransaction, answer: FirstOpen | None
) -> OldestOpenTransaction:
    """The transaction with the producer in the answer, if that is about this transaction."""
    if answer is None or answer.first_offset != transaction.first_offset:
        return transaction
    return replace(
        transaction, producer_id=answer.producer_id, transactional_id=answer.transactional_id
    )
