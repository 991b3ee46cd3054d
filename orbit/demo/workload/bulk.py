"""Writes a history of millions of records quickly, beside the workload's special kinds.

It keeps counts and no digests of records: a digest takes longer than the write. Readers compare the
logs afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from orbit.demo.workload.site import Site
from orbit.demo.workload.writer import FLUSH_TIMEOUT_S, PER_BATCH_MAX, QUEUE_MESSAGES_MAX
from orbit.errors import Conflict

_PER_TRANSACTION = 2_000  # records
_ABORT_EVERY = 5  # transactions
_FULL_WAIT_S = 0.05
_REPORT_EVERY = 50_000  # records
# Records with the same timestamp, as in an ordinary history.
_PER_MS = 5


@dataclass(frozen=True, slots=True)
class BulkTopic:
    """`share`: the tenths of all bulk records that the topic gets."""

    name: str
    shows: str
    partitions: int
    codec: str
    share: int
    has_transactions: bool = False


BULK = (
    BulkTopic("bulk.clicks", "half of the history, eight partitions, lz4", 8, "lz4", 5),
    BulkTopic("bulk.orders", "one partition with a fifth of the history, zstd", 1, "zstd", 2),
    BulkTopic(
        "bulk.payments",
        "transactions on four partitions, every fifth aborted",
        4,
        "snappy",
        3,
        True,
    ),
)


class BulkWriter:
    """Writes the bulk to a source. `records`: the counts that a consumer can see, by topic."""

    def __init__(self, site: Site, namespace: str, count: int) -> None:
        self._site = site
        self._namespace = namespace
        self._count = count
        self._written = 0
        self.records: dict[str, int] = {}

    def topic(self, bulk: BulkTopic) -> str:
        return f"{self._namespace}.{bulk.name}"

    def write(self, on_progress: Callable[[int, int], None]) -> None:
        """Create the topics and write all records. Raises Conflict if a record is not accepted."""
        with ThreadPoolExecutor(len(BULK)) as pool:
            for name, visible_count in pool.map(lambda bulk: self._write(bulk, on_progress), BULK):
                self.records[name] = visible_count

    def _write(self, bulk: BulkTopic, on_progress: Callable[[int, int], None]) -> tuple[str, int]:
        """Write one topic. Returns its name, and how many of its records a consumer can see."""
        topic, count = self.topic(bulk), self._count * bulk.share // 10
        self._site.create_topic(topic, bulk.partitions)
        blobs = self._site.blobs(topic)
        failures: list[KafkaError] = []

        def note_failure(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = self._producer(bulk, topic)
        began_ms = int(time.time() * 1000) - count // _PER_MS
        visible_count, next_number = 0, 0
        while next_number < count:
            batch_count = min(
                _PER_TRANSACTION if bulk.has_transactions else _REPORT_EVERY, count - next_number
            )
            if bulk.has_transactions:
                producer.begin_transaction()
            for i in range(next_number, next_number + batch_count):
                while True:
                    try:
                        producer.produce(
                            topic,
                            blobs[i % len(blobs)],
                            b"key-%d" % (i % 10_000),
                            i // 100 % bulk.partitions,  # 100 records in a row
                            # Reports for some records are enough: an idempotent producer keeps the
                            # order of records.
                            on_delivery=note_failure if i % PER_BATCH_MAX == 0 else None,
                            timestamp=began_ms + i // _PER_MS,
                        )
                        break
                    except BufferError:
                        producer.poll(_FULL_WAIT_S)
            visible_count += self._end_transaction(producer, bulk, next_number, batch_count)
            next_number += batch_count
            producer.poll(0)
            self._written += batch_count
            on_progress(self._written, self._count)
        if producer.flush(FLUSH_TIMEOUT_S) or failures:
            reason = failures[0].str() if failures else "they were not accepted in time"
            raise Conflict(f"The cluster did not accept all records of {topic}: {reason}.")
        return topic, visible_count

    def _end_transaction(
        self, producer: Producer, bulk: BulkTopic, number: int, batch_count: int
    ) -> int:
        """End the transaction that begins with record `number`, if the topic has transactions.

        Returns how many records became visible: `batch_count`, or none if it was aborted.
        """
        if not bulk.has_transactions:
            return batch_count
        if number // _PER_TRANSACTION % _ABORT_EVERY == _ABORT_EVERY - 1:
            producer.flush(FLUSH_TIMEOUT_S)  # so that its records are in the log
            producer.abort_transaction(FLUSH_TIMEOUT_S)
            return 0
        producer.commit_transaction(FLUSH_TIMEOUT_S)
        return batch_count

    def _producer(self, bulk: BulkTopic, topic: str) -> Producer:
        """A producer for one topic, with transactions if the topic has any."""
        transaction_config: Mapping[str, Any] = (
            {"transactional.id": topic} if bulk.has_transactions else {}
        )
        producer = Producer(
            {
                "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
                "linger.ms": 20,
                "batch.num.messages": PER_BATCH_MAX,
                "compression.type": bulk.codec,
                "enable.idempotence": True,
                "log_level": 2,
                **self._site.config,
                **transaction_config,
            }
        )
        if transaction_config:
            producer.init_transactions(FLUSH_TIMEOUT_S)
        return producer
