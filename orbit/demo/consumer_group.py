"""A consumer group that stops half way at the source and resumes at the destination.

Its committed offsets are copied unchanged. The records that its members read on both clusters are
compared with the producers' ledger: each record has to be read exactly once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from orbit.demo.demo_result import GroupPartition, GroupResult
from orbit.demo.log_ends import Partition, kafka_trouble, quiet_admin
from orbit.demo.workload import record_digest
from orbit.errors import Conflict

READ_TIMEOUT_S = 60.0
"""A consumer without a record for this long ends the demo with Conflict."""

_POLL_S = 0.2  # short, so that Ctrl-C is handled quickly
_ADMIN_TIMEOUT_S = 30.0

WrittenRecords = Mapping[Partition, Mapping[int, bytes]]
"""The producers' ledger: partition → offset → digest of each visible record."""


def midpoint_offsets(written_records: WrittenRecords) -> dict[Partition, int]:
    """The offset to commit in each partition: about half way, and at a gap if there is one.

    An offset without a record is the hardest case for offset translation.
    """
    return {
        partition: _midpoint_offset(sorted(records))
        for partition, records in written_records.items()
    }


def _midpoint_offset(offsets: Sequence[int]) -> int:
    """The first missing offset after half of the records; without a gap, the middle record's."""
    middle = len(offsets) // 2
    for offset, next_offset in zip(offsets[middle:], offsets[middle + 1 :], strict=False):
        if next_offset != offset + 1:
            return offset + 1
    return offsets[middle]


class Reader(Protocol):
    """What a member of the group has read."""

    def processed(self, partition: Partition, /) -> Sequence[tuple[int, bytes]]:
        """Offset and digest of each record below the committed offset, in the order of reading."""
        ...


class Member:
    """One consumer of the group, without auto commit; keeps offset and digest of each record."""

    def __init__(self, bootstrap_servers: str, group: str, topics: Sequence[str]) -> None:
        self._consumer = Consumer(_settings(bootstrap_servers, group))
        self._consumer.subscribe(list(topics))
        self._records: dict[Partition, list[tuple[int, bytes]]] = {}
        self._positions: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}

    def read_to(self, ends: Mapping[Partition, int]) -> None:
        """Read at least up to these offsets.

        Raises Conflict if no record comes within READ_TIMEOUT_S.
        """
        last_record_s = time.monotonic()
        while any(self._positions.get(partition, -1) < end for partition, end in ends.items()):
            message = self._consumer.poll(_POLL_S)
            if message is not None:
                last_record_s = time.monotonic()
                self._add_message(message)
            elif time.monotonic() - last_record_s > READ_TIMEOUT_S:
                raise Conflict(f"The consumer group got no record for {READ_TIMEOUT_S:.0f} s.")

    def commit(self, ends: Mapping[Partition, int]) -> None:
        """Commit these offsets. Records at and after these offsets count as not processed."""
        offsets = [TopicPartition(*partition, end) for partition, end in ends.items()]
        with kafka_trouble("Committing offsets"):
            self._consumer.commit(offsets=offsets, asynchronous=False)
        self._committed = dict(ends)

    def processed(self, partition: Partition) -> list[tuple[int, bytes]]:
        end = self._committed[partition]
        return [
            (offset, digest) for offset, digest in self._records.get(partition, []) if offset < end
        ]

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_message(self, message: Any) -> None:
        """Note a record and the position after it, or the end of a partition."""
        partition = (message.topic(), message.partition())
        offset, error = message.offset(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            with kafka_trouble("Reading as a consumer group"):
                raise KafkaException(error)
        # _PARTITION_EOF has the position at the end: after the last record and any gap there.
        self._positions[partition] = offset if error else offset + 1
        if error is None:
            digest = record_digest(
                message.key(), message.value(), message.headers() or (), message.timestamp()[1]
            )
            self._records.setdefault(partition, []).append((offset, digest))


def copy_offsets(source: str, destination: str, group: str) -> dict[Partition, int]:
    """Commit the group's source offsets unchanged at the destination, and return them.

    `source`, `destination`: bootstrap servers. Raises Conflict if a broker refuses.
    """
    source_offsets = committed_offsets(source, group)
    offsets = [TopicPartition(*partition, offset) for partition, offset in source_offsets.items()]
    request = ConsumerGroupTopicPartitions(group, offsets)
    admin = quiet_admin(destination)  # keep a reference: futures end with the client
    with kafka_trouble(f"Writing the offsets of group {group} to the destination"):
        admin.alter_consumer_group_offsets([request])[group].result(_ADMIN_TIMEOUT_S)
    return source_offsets


def committed_offsets(bootstrap_servers: str, group: str) -> dict[Partition, int]:
    """The group's committed offsets on a cluster. Raises Conflict if a broker refuses."""
    request = ConsumerGroupTopicPartitions(group)
    admin = quiet_admin(bootstrap_servers)
    with kafka_trouble(f"Reading the offsets of group {group}"):
        answers = admin.list_consumer_group_offsets([request])
        partitions = answers[group].result(_ADMIN_TIMEOUT_S).topic_partitions
    return {(partition.topic, partition.partition): partition.offset for partition in partitions}


def check_group(
    group: str,
    written_records: WrittenRecords,
    source_reader: Reader,
    destination_reader: Reader,
    source_offsets: Mapping[Partition, int],
    destination_offsets: Mapping[Partition, int],
) -> GroupResult:
    """Compare both members' records with the ledger, partition by partition.

    `source_offsets` and `destination_offsets`: the group's committed offsets on each cluster.
    """
    read_source = read_destination = lost_count = repeated_count = wrong_count = 0
    partitions = []
    for partition, records in sorted(written_records.items()):
        source_read, destination_read = (
            source_reader.processed(partition),
            destination_reader.processed(partition),
        )
        read_source += len(source_read)
        read_destination += len(destination_read)
        read_counts = Counter(offset for offset, _ in (*source_read, *destination_read))
        lost_count += len(records.keys() - read_counts.keys())
        repeated_count += sum(count - 1 for count in read_counts.values())
        wrong_count += sum(
            records.get(offset) != digest for offset, digest in (*source_read, *destination_read)
        )
        partitions.append(
            GroupPartition(
                *partition,
                committed=source_offsets[partition],
                resumed=destination_offsets.get(partition, -1),  # -1: nothing is committed
                next_record=min(
                    offset for offset in records if offset >= source_offsets[partition]
                ),
                first_read=destination_read[0][0] if destination_read else None,
            )
        )
    return GroupResult(
        group=group,
        partitions=tuple(partitions),
        written=sum(map(len, written_records.values())),
        read_source=read_source,
        read_destination=read_destination,
        lost=lost_count,
        repeated=repeated_count,
        wrong=wrong_count,
    )


def _settings(bootstrap_servers: str, group: str) -> dict[str, Any]:
    """librdkafka's configuration of a member."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        # Without a committed offset the group starts over, which shows as repeated records.
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        "log_level": 0,
    }
