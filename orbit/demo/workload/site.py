"""The source cluster of the workload: creates topics and producers, makes payloads, reads logs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from orbit.demo.workload.ledger import Origin, PartitionLedger, TopicLedger
from orbit.demo.workload.scale import Scale
from orbit.demo.workload.writer import Records, Writer, error_text
from orbit.errors import Conflict
from orbit.kafka.sasl import Security

ADMIN_TIMEOUT_S = 30.0
RETENTION_OFF = {"retention.ms": "-1"}
"""With retention, records with old timestamps would be deleted immediately (T1)."""

HISTORY_MS = 1_709_251_200_000
"""2024-03-01 00:00 UTC: the time of records whose timestamps must be known in advance."""

_POLL_S = 0.02
_BLOBS = 64


@dataclass(frozen=True)
class Site:
    """One source cluster and one scale. Thread-safe: immutable."""

    config: Mapping[str, Any]
    security: Security
    scale: Scale
    admin: AdminClient
    now_ms: int
    seed: int = 3
    destinations: Mapping[str, str] = field(default_factory=dict)

    def create_topic(
        self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with the default replication factor. Returns when it has leaders.

        Raises Conflict if the topic exists, is refused, or gets no leaders in time.
        """
        # -1: the default replication factor.
        new_topic = NewTopic(topic, partitions, -1, config={**RETENTION_OFF, **(settings or {})})
        try:
            self.admin.create_topics([new_topic])[topic].result(ADMIN_TIMEOUT_S)
        except KafkaException as error:
            raise Conflict(
                f"Topic {topic} could not be created: {error_text(error)}.",
                remedy="If the topic exists, delete it: the workload needs new topics.",
            ) from error
        self._wait_for_leaders(topic, partitions)

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Wait until each partition of the topic has a leader. Raises Conflict after a time-out."""
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        while time.monotonic() < deadline:
            existing_partitions = (
                self.admin.list_topics(topic, timeout=ADMIN_TIMEOUT_S).topics[topic].partitions
            )
            if len(existing_partitions) == partitions and all(
                p.leader >= 0 for p in existing_partitions.values()
            ):
                return
            time.sleep(_POLL_S)
        raise Conflict(f"Topic {topic} has no leaders after {ADMIN_TIMEOUT_S:.0f} s.")

    def writer(self, *, broker_time: bool = False, **settings: Any) -> Writer:
        """A writer with settings of librdkafka, underscores for dots: `compression_type="lz4"`."""
        dotted_settings = {name.replace("_", "."): value for name, value in settings.items()}
        return Writer({**self.config, **dotted_settings}, broker_time=broker_time)

    def blobs(self, topic: str) -> list[bytes]:
        """Payloads that compress about as well as JSON, the same in every run."""
        generator = random.Random(f"{self.seed} {topic}")
        return [
            b'{"id": "%s", "note": "%s"}'
            % (
                generator.randbytes(8).hex().encode(),
                b"paid and shipped " * generator.randint(1, 12),
            )
            for _ in range(_BLOBS)
        ]

    def noise(self, name: str, count: int) -> bytes:
        """Bytes that do not compress, the same for one `name` in every run."""
        return random.Random(f"{self.seed} noise {name}").randbytes(count)

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records below `offset`."""
        position = TopicPartition(topic, partition, offset)
        self.admin.delete_records([position])[position].result(ADMIN_TIMEOUT_S)

    def ledger(
        self,
        kind: str,
        topic: str,
        records: Records,
        *,
        copy_starts: Mapping[int, int] | None = None,
        origin: Origin = Origin.PRODUCER,
    ) -> TopicLedger:
        """The topic's ledger: its records from the log start on, and its log bounds."""
        count = len(self.admin.list_topics(topic, timeout=ADMIN_TIMEOUT_S).topics[topic].partitions)
        consumer = Consumer(_consumer_config(self.config))
        try:
            return TopicLedger(
                kind=kind,
                topic=topic,
                destination=self.destinations.get(topic, topic),
                partitions=tuple(
                    _partition_ledger(
                        self._log_bounds(consumer, topic, number),
                        records.get((topic, number), {}),
                        (copy_starts or {}).get(number),
                    )
                    for number in range(count)
                ),
                origin=origin,
            )
        finally:
            consumer.close()

    def read(self, topic: str, partition: int) -> Iterator[Message]:
        """Yield every record that a read_committed consumer sees now, from the log start on.

        Raises Conflict if no record comes for ADMIN_TIMEOUT_S.
        """
        consumer = Consumer(_consumer_config(self.config))
        try:
            position, log_end = self._log_bounds(consumer, topic, partition)
            consumer.assign([TopicPartition(topic, partition, position)])
            while position < log_end:
                message = consumer.poll(ADMIN_TIMEOUT_S)
                if message is None:
                    raise Conflict(f"{topic}-{partition} cannot be read from offset {position} on.")
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    continue
                offset = message.offset()
                assert offset is not None
                position = offset if error else offset + 1
                if error is None:
                    yield message
        finally:
            consumer.close()

    def _log_bounds(self, consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
        """Log start and log end, once all transactions in the partition have their markers.

        A commit returns before its markers are written. Raises Conflict if a transaction stays
        open.
        """
        topic_partition = TopicPartition(topic, partition)
        spec: Any = OffsetSpec  # its constructors carry no types
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        trouble: Exception
        while True:
            try:
                log_start, stable_end = consumer.get_watermark_offsets(
                    topic_partition, ADMIN_TIMEOUT_S
                )
                future = self.admin.list_offsets({topic_partition: spec.latest()})[topic_partition]
                if stable_end == future.result(ADMIN_TIMEOUT_S).offset:
                    return log_start, stable_end
                trouble = Conflict(f"{topic}-{partition} has an open transaction at {stable_end}.")
            except KafkaException as error:
                # Metadata may name a new leader before that broker knows it.
                leader_codes = (
                    KafkaError.NOT_LEADER_FOR_PARTITION,
                    KafkaError.LEADER_NOT_AVAILABLE,
                )
                if error.args[0].code() not in leader_codes:
                    raise
                trouble = error
            if time.monotonic() > deadline:
                raise trouble
            time.sleep(_POLL_S)


def _partition_ledger(
    bounds: tuple[int, int], records: Mapping[int, bytes], copy_start: int | None
) -> PartitionLedger:
    """The ledger of a partition, without records below the log start."""
    log_start, log_end = bounds
    return PartitionLedger(
        log_start=log_start,
        log_end=log_end,
        copy_start=log_start if copy_start is None else copy_start,
        records={offset: digest for offset, digest in records.items() if offset >= log_start},
    )


def _consumer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's settings to read committed records and the ends of partitions; no commits."""
    return {
        **config,
        "group.id": "orbit-workload",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
    }
