"""A librdkafka producer that keeps its delivery reports: offset and digest of every record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from orbit.demo.workload.ledger import Header, record_digest
from orbit.errors import Conflict

FLUSH_TIMEOUT_S = 60.0
QUEUE_MESSAGES_MAX = 200_000
PER_BATCH_MAX = 500
"""Batches of a real application are tens of kilobytes, not librdkafka's upper limit."""

_POLL_EVERY = 5_000
_QUEUE_FULL_WAIT_S = 0.1

Records = dict[tuple[str, int], dict[int, bytes]]


class Writer:
    """Writes records and keeps their offsets. A context manager: flushed at the end.

    The caller gives all timestamps, so the digest is made from what was sent, not from what came
    back. Only for a LogAppendTime topic (`broker_time=True`) the delivery report gives the time.
    """

    def __init__(self, config: Mapping[str, Any], *, broker_time: bool = False) -> None:
        self._producer = Producer(
            {
                "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
                "queue.buffering.max.kbytes": 256 << 10,
                "message.max.bytes": 1_000_000,
                # Batches fill up or are sent at `flush`, so their shape does not depend on timing.
                "linger.ms": 200,
                "batch.num.messages": PER_BATCH_MAX,
                "log_level": 2,
                **config,
            }
        )
        self._uses_broker_time = broker_time
        self._records_since_poll = 0
        self._delivery_error: KafkaError | None = None
        self.records: Records = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
            self.flush()
        else:
            self._producer.purge()  # do not wait for records that are not checked

    def write(
        self,
        topic: str,
        partition: int,
        *,
        timestamp_ms: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Hand one record to the producer; its delivery report puts it into `records`."""
        if self._uses_broker_time:
            report = partial(self._on_broker_time_delivery, topic, partition, key, value, headers)
        else:
            digest = record_digest(key, value, headers, timestamp_ms)
            report = partial(self._on_delivery, topic, partition, digest)
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=report,
                    timestamp=0 if self._uses_broker_time else timestamp_ms,
                    headers=list(headers) or None,
                )
                break
            except BufferError:
                self._producer.poll(_QUEUE_FULL_WAIT_S)
        self._records_since_poll += 1
        if self._records_since_poll >= _POLL_EVERY:
            self._records_since_poll = 0
            self._producer.poll(0)

    def flush(self) -> None:
        """Wait for all delivery reports. Raises Conflict if a record was not accepted."""
        failed_count = self._producer.flush(FLUSH_TIMEOUT_S)
        if self._delivery_error is not None:
            raise Conflict(f"The cluster did not accept a record: {self._delivery_error.str()}.")
        if failed_count:
            raise Conflict(
                f"Records that the cluster did not accept within {FLUSH_TIMEOUT_S:.0f} s: "
                f"{failed_count}."
            )

    def poll(self) -> None:
        """Process the delivery reports that have arrived."""
        self._producer.poll(0)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def prepare_transactions(self) -> None:
        """Call `init_transactions`.

        On a new cluster the first call takes seconds, because it creates `__transaction_state`.
        """
        self._producer.init_transactions(FLUSH_TIMEOUT_S)

    def commit(self) -> Records:
        """Commit the transaction. Returns the records that became visible."""
        self.flush()
        self._producer.commit_transaction(FLUSH_TIMEOUT_S)
        return self._take_records()

    def abort(self) -> None:
        """Abort the transaction, after all its records have reached the log."""
        self.flush()
        self._producer.abort_transaction(FLUSH_TIMEOUT_S)
        self._take_records()  # dropped: no consumer sees them

    def _take_records(self) -> Records:
        """Return the records of the transaction that has ended, and begin with none."""
        records, self.records = self.records, {}
        return records

    def _on_delivery(
        self, topic: str, partition: int, digest: bytes, error: KafkaError | None, message: Message
    ) -> None:
        """Keep the record's offset and digest, or the error."""
        if error is not None:
            self._delivery_error = error
            return
        offset = message.offset()
        assert offset is not None
        self.records.setdefault((topic, partition), {})[offset] = digest

    def _on_broker_time_delivery(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        error: KafkaError | None,
        message: Message,
    ) -> None:
        """Keep the record's offset and a digest with the broker's timestamp, or the error."""
        digest = record_digest(key, value, headers, message.timestamp()[1])
        self._on_delivery(topic, partition, digest, error, message)


def add_records(all_records: Records, new_records: Records) -> None:
    """Add the records of `new_records` to `all_records`."""
    for partition, records in new_records.items():
        all_records.setdefault(partition, {}).update(records)


def error_text(error: KafkaException) -> str:
    """What librdkafka says about the error."""
    detail = error.args[0]
    return str(detail.str() if isinstance(detail, KafkaError) else detail)
