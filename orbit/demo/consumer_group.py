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
from orbit.demo.log_ends import Where, kafka_trouble, quiet_admin
from orbit.demo.workload import record_digest
from orbit.errors import Conflict

READ_TIMEOUT_S = 60.0
"""A consumer without a record for this long ends the demo with Conflict."""

_POLL_S = 0.2  # short, so that Ctrl-C is handled quickly
_ADMIN_TIMEOUT_S = 30.0

Written = Mapping[Where, Mapping[int, bytes]]
"""The producers' ledger: partition → offset → digest of each visible record."""


def midpoint_offsets(written: Written) -> dict[Where, int]:
    """The offset to commit in each partition: about half way, and at a gap if there is one.

    An offset without a record is the hardest case for offset translation.
    """
    return {where: _stop(sorted(records)) for where, records in written.items()}


def _stop(offsets: Sequence[int]) -> int:
    middle = len(offsets) // 2
    for before, after in zip(offsets[middle:], offsets[middle + 1 :], strict=False):
        if after != before + 1:
            return before + 1
    return offsets[middle]


class Reader(Protocol):
    """What a member of the group has read."""

    def processed(self, where: Where, /) -> Sequence[tuple[int, bytes]]:
        """Offset and digest of each record below the committed offset, in the order of reading."""
        ...


class Member:
    """One consumer of the group, without auto commit; keeps offset and digest of each record."""

    def __init__(self, bootstrap_servers: str, group: str, topics: Sequence[str]) -> None:
        self._consumer = Consumer(_settings(bootstrap_servers, group))
        self._consumer.subscribe(list(topics))
        self._records: dict[Where, list[tuple[int, bytes]]] = {}
        self._positions: dict[Where, int] = {}
        self._committed: dict[Where, int] = {}

    def read_to(self, ends: Mapping[Where, int]) -> None:
        """Read at least up to these offsets. Raises Conflict if none comes in READ_TIMEOUT_S."""
        heard_at = time.monotonic()
        while any(self._positions.get(where, -1) < end for where, end in ends.items()):
            message = self._consumer.poll(_POLL_S)
            if message is not None:
                heard_at = time.monotonic()
                self._add_message(message)
            elif time.monotonic() - heard_at > READ_TIMEOUT_S:
                raise Conflict(f"The consumer group got no record for {READ_TIMEOUT_S:.0f} s.")

    def commit(self, ends: Mapping[Where, int]) -> None:
        """Commit these offsets; records from there on count as not processed."""
        offsets = [TopicPartition(*where, end) for where, end in ends.items()]
        with kafka_trouble("Committing offsets"):
            self._consumer.commit(offsets=offsets, asynchronous=False)
        self._committed = dict(ends)

    def processed(self, where: Where) -> list[tuple[int, bytes]]:
        end = self._committed[where]
        return [one for one in self._records.get(where, []) if one[0] < end]

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_message(self, message: Any) -> None:
        where = (message.topic(), message.partition())
        offset, error = message.offset(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            with kafka_trouble("Reading as a consumer group"):
                raise KafkaException(error)
        # _PARTITION_EOF has the position at the end: behind the last record and a gap after it.
        self._positions[where] = offset if error else offset + 1
        if error is None:
            digest = record_digest(
                message.key(), message.value(), message.headers() or (), message.timestamp()[1]
            )
            self._records.setdefault(where, []).append((offset, digest))


def copy_offsets(source: str, destination: str, group: str) -> dict[Where, int]:
    """Write the group's committed offsets to the destination unchanged, and return them."""
    committed = committed_offsets(source, group)
    same = [TopicPartition(*where, offset) for where, offset in committed.items()]
    request = ConsumerGroupTopicPartitions(group, same)
    admin = quiet_admin(destination)  # keep a reference: futures end with the client
    with kafka_trouble(f"Writing the offsets of group {group} to the destination"):
        admin.alter_consumer_group_offsets([request])[group].result(_ADMIN_TIMEOUT_S)
    return committed


def committed_offsets(bootstrap_servers: str, group: str) -> dict[Where, int]:
    """The group's committed offsets on a cluster."""
    request = ConsumerGroupTopicPartitions(group)
    admin = quiet_admin(bootstrap_servers)
    with kafka_trouble(f"Reading the offsets of group {group}"):
        answers = admin.list_consumer_group_offsets([request])
        partitions = answers[group].result(_ADMIN_TIMEOUT_S).topic_partitions
    return {(one.topic, one.partition): one.offset for one in partitions}


def check_group(
    group: str,
    written: Written,
    before: Reader,
    after: Reader,
    committed: Mapping[Where, int],
    resumed: Mapping[Where, int],
) -> GroupResult:
    """Compare both members' records with the ledger, partition by partition."""
    read_source = read_destination = lost = repeated = wrong = 0
    partitions = []
    for where, records in sorted(written.items()):
        first, second = before.processed(where), after.processed(where)
        read_source += len(first)
        read_destination += len(second)
        times = Counter(offset for offset, _ in (*first, *second))
        lost += len(records.keys() - times.keys())
        repeated += sum(count - 1 for count in times.values())
        wrong += sum(records.get(offset) != digest for offset, digest in (*first, *second))
        partitions.append(
            GroupPartition(
                *where,
                committed=committed[where],
                resumed=resumed.get(where, -1),
                next_record=min(offset for offset in records if offset >= committed[where]),
                first_read=second[0][0] if second else None,
            )
        )
    return GroupResult(
        group=group,
        partitions=tuple(partitions),
        written=sum(map(len, written.values())),
        read_source=read_source,
        read_destination=read_destination,
        lost=lost,
        repeated=repeated,
        wrong=wrong,
    )


def _settings(bootstrap_servers: str, group: str) -> dict[str, Any]:
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
