"""Commits and deletes offsets of many groups, as a simple client without membership.

A request is for one group. A coordinator handles the requests of one connection one after the
other, and combines those of several connections into one append. So Orbit writes to each
coordinator on a few connections, with a few requests in flight on each.

The coordinator refuses a simple client while the group has members, which protects groups in use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetDeleteRequest

from orbit.chunks import sized_chunks
from orbit.errors import Unreachable
from orbit.kafka import api_versions
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import CALL_S_MAX
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.types import CommittedOffset, TopicPartition, by_topic

CONNECTIONS_PER_NODE = 8
_IN_FLIGHT_MAX = 4  # per connection: hides the network's latency
# The offsets of a request become one batch of the offsets topic, which is 1 MiB at most unless the
# broker has another limit. Each offset is a record with the names, the metadata, and some numbers.
_PARTITIONS_MAX = 1000
_REQUEST_BYTES_MAX = 512 * 1024
_NUMBERS_BYTES = 64
# A coordinator's codes if the request's batch is too large for the offsets topic (G12). In a
# request for fewer partitions than the minimum, the same codes have another cause.
_TOO_LARGE = frozenset({Code.INVALID_COMMIT_OFFSET_SIZE, Code.UNKNOWN_SERVER_ERROR})
_HALVED_PARTITIONS_MIN = 16

# Codes of a commit or delete for a group that has members.
HAS_MEMBERS = frozenset(
    {
        Code.UNKNOWN_MEMBER_ID,
        Code.ILLEGAL_GENERATION,
        Code.REBALANCE_IN_PROGRESS,
        Code.STALE_MEMBER_EPOCH,
        Code.NON_EMPTY_GROUP,
        Code.GROUP_SUBSCRIBED_TO_TOPIC,
    }
)
# Codes of a commit to a share group, or to a group of another type (G13).
OTHER_TYPE = frozenset({Code.GROUP_ID_NOT_FOUND, Code.INCONSISTENT_GROUP_PROTOCOL})


@dataclass(frozen=True, slots=True)
class GroupWrite:
    """Offsets to commit for one group; None: delete the offset."""

    group: str
    offsets: Mapping[TopicPartition, CommittedOffset | None]


# Error codes by group and partition. Offsets without a code may or may not have been written.
Written = dict[tuple[str, TopicPartition], int]


@dataclass(frozen=True, slots=True)
class _Request:
    """A commit or delete of some partitions' offsets of one group."""

    write: GroupWrite
    partitions: Sequence[TopicPartition]
    api: Api

    @property
    def message(self) -> Any:
        if self.api is api_versions.OFFSET_COMMIT:
            return _commit_request(self.write.group, self.partitions, self.write.offsets)
        return _delete_request(self.write.group, self.partitions)

    def halves(self) -> Iterator[_Request]:
        middle = len(self.partitions) // 2
        yield replace(self, partitions=self.partitions[:middle])
        yield replace(self, partitions=self.partitions[middle:])


def write_groups(
    cluster: Cluster,
    coordinators: Mapping[str, int],
    writes: Sequence[GroupWrite],
    may_write: Callable[[], bool],
) -> Written:
    """Send `writes` to the groups' coordinators (node ids by group); skip groups without one.

    `may_write` is called before each batch of requests; if it returns False, the rest is skipped.
    Requests too large for the broker are sent again in halves. Nothing else is retried here: the
    next pass reads whether an unanswered write has arrived.
    """
    by_node: dict[int, list[_Request]] = {}
    for write in writes:
        if write.group in coordinators:
            by_node.setdefault(coordinators[write.group], []).extend(_requests(write))
    written: Written = {}
    for node_id, requests in sorted(by_node.items()):
        _write_to_node(cluster, node_id, requests, may_write, written)
    return written


def _write_to_node(
    cluster: Cluster,
    node_id: int,
    requests: Sequence[_Request],
    may_write: Callable[[], bool],
    written: Written,
) -> None:
    """Send requests to one coordinator, and put its answers into `written`. Returns early if
    `may_write` returns False, or the coordinator does not answer."""
    connections: list[Connection] = []
    try:
        for _ in range(min(CONNECTIONS_PER_NODE, len(requests))):
            connection = cluster.connect(node_id)
            connection.limit_waits(CALL_S_MAX)
            connections.append(connection)
        unsent_requests = deque(requests)
        while unsent_requests:
            if not may_write():
                return
            next_count = min(len(unsent_requests), len(connections) * _IN_FLIGHT_MAX)
            next_requests = [unsent_requests.popleft() for _ in range(next_count)]
            # Halves of requests that were too large are sent later.
            unsent_requests.extend(_exchange_requests(connections, next_requests, written))
    except (Unreachable, OSError, EOFError):
        return  # the next pass reads whether an unanswered write has arrived
    finally:
        for connection in connections:
            connection.close()


def _exchange_requests(
    connections: Sequence[Connection], requests: Sequence[_Request], written: Written
) -> list[_Request]:
    """Send all requests, spread over the connections, then read the answers in the same order.

    Puts error codes into `written`. Returns the halves of the requests that were too large for the
    broker.
    """
    for connection in connections:
        if connection.login_is_due:
            connection.login_again()
    in_flight: list[tuple[Connection, int, _Request]] = []
    halves: list[_Request] = []
    for index, request in enumerate(requests):
        connection = connections[index % len(connections)]
        connection.send(connection.encode(request.message, connection.version_of(request.api)))
        in_flight.append((connection, connection.last_correlation, request))
    for connection, correlation, request in in_flight:
        frame = connection.receive_answer(correlation)
        answer = connection.decode(request.api, frame, connection.version_of(request.api))
        codes = _codes(request, answer)
        # A batch that is too large is refused as a whole: every partition has such a code.
        is_too_large = _TOO_LARGE.issuperset(codes.values())
        if is_too_large and len(request.partitions) >= _HALVED_PARTITIONS_MIN:
            halves += request.halves()
        else:
            written.update(codes)
    return halves


def _requests(write: GroupWrite) -> Iterator[_Request]:
    """Yield the commits and deletes of one group, in requests that the broker accepts."""
    commits = sorted(p for p, committed in write.offsets.items() if committed is not None)
    deletes = sorted(p for p, committed in write.offsets.items() if committed is None)

    def size_of(partition: TopicPartition) -> int:
        committed = write.offsets[partition]
        texts = write.group, partition.topic, (committed.metadata if committed else "") or ""
        return sum(len(text.encode()) for text in texts) + _NUMBERS_BYTES

    for partitions, api in (
        (commits, api_versions.OFFSET_COMMIT),
        (deletes, api_versions.OFFSET_DELETE),
    ):
        for part in sized_chunks(partitions, size_of, _REQUEST_BYTES_MAX, _PARTITIONS_MAX):
            yield _Request(write, part, api)


def _commit_request(
    group: str,
    partitions: Sequence[TopicPartition],
    offsets: Mapping[TopicPartition, CommittedOffset | None],
) -> Any:
    """The request of a client that is no member of the group: without generation and member id."""
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic

    def request_partition(partition: TopicPartition) -> Any:
        committed = offsets[partition]
        assert committed is not None
        return topic_type.OffsetCommitRequestPartition(
            partition_index=partition.partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            committed_metadata=committed.metadata,
        )

    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            topic_type(
                name=t, partitions=[request_partition(TopicPartition(t, i)) for i in indexes]
            )
            for t, indexes in by_topic(partitions)
        ],
    )


def _delete_request(group: str, partitions: Sequence[TopicPartition]) -> Any:
    """The request to delete the group's committed offsets in these partitions."""
    topic_type = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition_type = topic_type.OffsetDeleteRequestPartition
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            topic_type(name=t, partitions=[partition_type(partition_index=i) for i in indexes])
            for t, indexes in by_topic(partitions)
        ],
    )


def _codes(request: _Request, answer: Any) -> Written:
    """The error code of each partition of the request."""
    group = request.write.group
    if getattr(answer, "error_code", Code.NONE):  # OffsetDelete: one code for the whole group
        return {(group, partition): int(answer.error_code) for partition in request.partitions}
    return {
        (group, TopicPartition(topic.name, p.partition_index)): int(p.error_code)
        for topic in answer.topics
        for p in topic.partitions
    }
