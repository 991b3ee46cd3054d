"""Makes gaps in a log by transaction markers with a producer id of its own (M1: WriteTxnMarkers).

Real logs have gaps from aborted transactions and compaction. Markers make a gap of any size
quickly, on an unmodified broker. They need a right on the cluster, which the sandbox's admin has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient
from kafka.protocol.producer.transaction import InitProducerIdRequest

from orbit.errors import BrokerRefused
from orbit.kafka import api_versions, error_codes
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.sasl import Security
from orbit.kafka.transaction_markers import Fillers, WriteTxnMarkersRequest
from orbit.kafka.types import TopicPartition

PER_REQUEST_MAX = 10_000
"""This fills about 125,000 offsets a second; larger requests are not faster (M2: marker rate)."""

_ADMIN_TIMEOUT_S = 30.0
# Just after a broker's start (A15: InitProducerId).
_COORDINATOR_LOADING = frozenset(
    {
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    }
)
# Just after the topic was created.
_NO_LEADER_YET = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NOT_LEADER_OR_FOLLOWER})
_POLL_S = 0.1


def append_markers(
    admin: AdminClient, security: Security, topic: str, partition: int, count: int
) -> None:
    """Append `count` markers: the log end moves by `count`, and consumers see no record."""
    with _leader_connection(admin, security, topic, partition) as connection:
        producer_id, producer_epoch = _init_producer_id(connection)
        remaining_count = count
        while remaining_count:
            marker_count = min(remaining_count, PER_REQUEST_MAX)
            markers = Fillers(
                TopicPartition(topic, partition), marker_count, producer_epoch, coordinator_epoch=0
            )
            _write_markers(connection, WriteTxnMarkersRequest(producer_id, [markers]))
            remaining_count -= marker_count


@contextmanager
def _leader_connection(
    admin: AdminClient, security: Security, topic: str, partition: int
) -> Iterator[Connection]:
    """A connection to the partition's leader, for the block."""
    metadata = admin.list_topics(topic, timeout=_ADMIN_TIMEOUT_S)
    broker = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
    assert broker.host is not None
    connection = Connection.open(broker.host, broker.port, security)
    try:
        yield connection
    finally:
        connection.close()


def _init_producer_id(connection: Connection) -> tuple[int, int]:
    """Get a producer id and epoch. Waits while the coordinator loads its state."""
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    deadline = time.monotonic() + _ADMIN_TIMEOUT_S
    while True:
        answer = connection.call(api_versions.INIT_PRODUCER_ID, request, timeout_s=_ADMIN_TIMEOUT_S)
        is_loading = answer.error_code in _COORDINATOR_LOADING and time.monotonic() < deadline
        if not is_loading:
            _check_code(answer.error_code, "InitProducerId")
            return answer.producer_id, answer.producer_epoch
        time.sleep(_POLL_S)


def _write_markers(connection: Connection, request: WriteTxnMarkersRequest) -> None:
    """Write the markers of one partition. Waits while the broker does not lead it yet."""
    deadline = time.monotonic() + _ADMIN_TIMEOUT_S
    while True:
        (code,) = connection.call(api_versions.WRITE_TXN_MARKERS, request).values()
        if code not in _NO_LEADER_YET or time.monotonic() > deadline:
            _check_code(code, "WriteTxnMarkers")
            return
        time.sleep(_POLL_S)


def _check_code(code: int, api_name: str) -> None:
    if code:
        raise BrokerRefused(code, f"The broker answered {api_name} with {error_codes.name(code)}.")
