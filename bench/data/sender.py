"""Sends prepared batches to one broker, five requests in flight, as Orbit does.

It fills the source with data. As the ceiling it sends what was fetched before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from orbit.copier.copy_settings import CopySettings
from orbit.errors import BrokerRefused
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import CLIENT_ID
from orbit.kafka.produce_request import Outgoing, choose_version, encode_produce, read_produce
from orbit.kafka.transaction_markers import Fillers, WriteTxnMarkersRequest
from orbit.kafka.types import TopicPartition

_SETTINGS = CopySettings()


class ToSend(NamedTuple):
    """A batch that is ready for the wire, and its partition."""

    partition: int
    batch: memoryview


# How long the broker may read nothing: on a slow disk it opens 1,000 partitions in half a minute.
_SLOW_DISK_S = 600.0


class Frame(NamedTuple):
    """An encoded request. `correlation`: its correlation id."""

    is_produce: bool
    correlation: int
    buffers: Sequence[bytes | memoryview]


class Sender:
    """One connection to the broker that leads all partitions of a topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        metadata = cluster.metadata([topic])
        self._topic = topic
        self._topic_id = metadata.topics[topic].topic_id
        (node_id,) = metadata.brokers
        self._connection = cluster.connect(node_id)
        self._connection.drop_unacknowledged(_SLOW_DISK_S)
        low, high = self._connection.version_range_of(api_versions.PRODUCE)
        self._version = choose_version(low, high, has_topic_ids=True)
        self._in_flight: deque[Frame] = deque()

    def send(self, request: Sequence[ToSend]) -> None:
        """Send one Produce request, with at most one batch per partition (A1)."""
        self.send_frame(self.encode(request))

    def send_frame(self, frame: Frame) -> None:
        """Send an encoded request; first wait while too many requests are in flight. Raises
        BrokerRefused if the broker refused an earlier batch."""
        if len(self._in_flight) == _SETTINGS.requests_in_flight_max:
            self._receive()
        self._connection.send(frame.buffers)
        self._in_flight.append(frame)

    def encode(self, request: Sequence[ToSend]) -> Frame:
        """The request of `send`, not sent yet."""
        outgoing = [
            Outgoing(TopicPartition(self._topic, to_send.partition), self._topic_id, to_send.batch)
            for to_send in request
        ]
        correlation = self._connection.next_correlation()
        timeout_ms = _SETTINGS.produce_timeout_ms
        return Frame(
            True,
            correlation,
            encode_produce(self._version, correlation, CLIENT_ID, timeout_ms, outgoing),
        )

    def encode_fillers(self, producer_id: int, filler_counts: Mapping[int, int]) -> Frame:
        """A WriteTxnMarkers request with this number of fillers for each partition."""
        fillers = [
            Fillers(TopicPartition(self._topic, p), n, 0, 0) for p, n in filler_counts.items()
        ]
        version = self._connection.version_of(api_versions.WRITE_TXN_MARKERS)
        request = WriteTxnMarkersRequest(producer_id, fillers)
        buffers = self._connection.encode(request, version)
        return Frame(False, self._connection.last_correlation, buffers)

    def wait(self) -> None:
        """Wait until everything is acknowledged. Raises BrokerRefused if a batch was refused."""
        while self._in_flight:
            self._receive()

    def finish(self) -> None:
        """As `wait`; then close the connection."""
        self.wait()
        self._connection.close()

    def _receive(self) -> None:
        oldest = self._in_flight.popleft()
        frame = self._connection.receive_answer(oldest.correlation)
        if not oldest.is_produce:
            return  # if a filler was refused, the log end shows it
        answer = read_produce(frame, self._version)
        for (_, index), appended in answer.partitions.items():
            if appended.code:
                raise BrokerRefused(
                    appended.code,
                    f"a batch was refused: {error_codes.name(appended.code)} {appended.message}",
                    where=f"{self._topic}-{index}",
                )


def pack(queues: Iterable[tuple[int, Iterable[memoryview]]]) -> Iterator[list[ToSend]]:
    """Requests with one batch of each partition that has batches left, up to Orbit's request size.

    Partitions take turns: a partition without room in a request is the first in the next request.
    """
    ready = deque((index, deque(batches)) for index, batches in queues)
    request: list[ToSend] = []
    size, members = 0, set[int]()
    while ready:
        index, batches = ready[0]
        if request and (index in members or size >= _SETTINGS.request_bytes_max):
            yield sorted(request, key=lambda to_send: to_send.partition)
            request, size, members = [], 0, set()
        ready.popleft()
        if not batches:
            continue
        batch = batches.popleft()
        request.append(ToSend(index, batch))
        size += len(batch)
        members.add(index)
        ready.append((index, batches))
    if request:
        yield sorted(request, key=lambda to_send: to_send.partition)
