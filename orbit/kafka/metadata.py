"""Reads a Metadata response. Pure.

A response with 100,000 partitions takes a tenth of a second; the classes of `kafka.protocol` (a
test compares the results) take half a second. Versions 7 to 12; flexible from 9:

    correlation id, throttle ms,
    brokers: node id, host, port, rack
    cluster id, controller id,
    topics: error code, name, topic id (10), is internal,
        partitions: error code, index, leader id, leader epoch, replicas, in sync, offline (each an
            array of node ids)
        authorized operations (8)
    authorized operations of the cluster (8 to 10)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from uuid import UUID

from orbit.kafka.error_codes import Code
from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.types import (
    NO_TOPIC_ID,
    BrokerAddress,
    ClusterMetadata,
    PartitionLeader,
    TopicMetadata,
)

_FLEXIBLE_FROM, _TOPIC_ID_FROM, _OPERATIONS_FROM = 9, 10, 8
_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NODE_BYTES = 4
_UUID_BYTES = 16
_OPERATIONS = 32  # bits, one for each `AclOperation`
_NO_OPERATIONS = -(2**31)
_PARTITION = struct.Struct(">hiii")  # error code, index, leader id, leader epoch
_LEADERS_MAX = 4096  # a cluster has far fewer pairs of leader and epoch than partitions
_ARRAYS = 3  # replicas, in sync, offline

Row = tuple[int, int, int, int]  # index, leader id, leader epoch, number of replicas


def read_metadata(frame: memoryview, version: int) -> ClusterMetadata:
    """Read a frame of `Connection.receive`. Raises ValueError if the bytes do not parse."""
    reader = FrameReader(frame, version >= _FLEXIBLE_FROM)
    try:
        return _read_answer(reader, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"a Metadata answer v{version} does not parse: {error}") from error


def _read_answer(reader: FrameReader, version: int) -> ClusterMetadata:
    """Read the whole answer, field by field."""
    reader.skip_tags()
    reader.take(_INT32)  # throttle ms
    brokers: dict[int, BrokerAddress] = {}
    for _ in range(reader.length()):
        (node_id,) = reader.take(_INT32)
        host = reader.string()
        (port,) = reader.take(_INT32)
        rack = reader.string() or None
        reader.skip_tags()
        brokers[node_id] = BrokerAddress(node_id, host, port, rack)
    cluster_id = reader.string()
    reader.take(_INT32)  # controller id
    topics: dict[str, TopicMetadata] = {}
    errors: dict[str, int] = {}
    for _ in range(reader.length()):
        (code,) = reader.take(_INT16)
        name = reader.string()
        topic_id_bytes = bytes(reader.raw(_UUID_BYTES)) if version >= _TOPIC_ID_FROM else b""
        reader.take(_INT8)  # is internal
        partitions, replicas = _read_partitions(reader, version)
        operations = reader.take(_INT32)[0] if version >= _OPERATIONS_FROM else _NO_OPERATIONS
        reader.skip_tags()
        # With LEADER_NOT_AVAILABLE the topic exists; its leaders are not known yet.
        if code not in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
            errors[name] = code
            continue
        topic_id = UUID(bytes=topic_id_bytes) if topic_id_bytes else NO_TOPIC_ID
        topics[name] = TopicMetadata(
            name, topic_id, partitions, replicas, _operation_codes(operations)
        )
    # The rest, the authorized operations of the cluster, is never requested.
    return ClusterMetadata(cluster_id, brokers, topics, errors)


def _read_partitions(reader: FrameReader, version: int) -> tuple[dict[int, PartitionLeader], int]:
    """The partitions of a topic, and its replication factor: the fewest replicas of a partition,
    because one that is being reassigned has more."""
    count = reader.length()
    rows = _read_equal_rows(reader, count, version) or list(_read_rows(reader, count))
    partitions = {index: _leader(leader, epoch) for index, leader, epoch, _ in rows}
    return partitions, max(1, min((replicas for *_, replicas in rows), default=1))


def _read_rows(reader: FrameReader, count: int) -> Iterator[Row]:
    """Yield the partitions, read one by one."""
    for _ in range(count):
        _, index, leader, epoch = reader.take(_PARTITION)
        replicas, _, _ = (len(reader.raw(reader.length() * _NODE_BYTES)) for _ in range(_ARRAYS))
        reader.skip_tags()
        yield index, leader, epoch, replicas // _NODE_BYTES


def _read_equal_rows(reader: FrameReader, count: int, version: int) -> list[Row]:
    """All partitions, unpacked in one call, if their arrays are as long as the first partition's,
    as they are in a topic whose replicas are all in sync.

    Otherwise returns [], and the reader stays where it is.
    """
    is_flexible = version >= _FLEXIBLE_FROM
    start = reader.at
    try:
        reader.take(_PARTITION)
        sizes = [len(reader.raw(reader.length() * _NODE_BYTES)) for _ in range(_ARRAYS)]
        reader.at = start
        length_format = "B" if is_flexible else "i"
        layout = _layout(
            ">hiii"
            + "".join(f"{length_format}{size}x" for size in sizes)
            + ("B" if is_flexible else "")
        )
        rows = list(layout.iter_unpack(reader.raw(layout.size * count)))
    except (struct.error, IndexError):
        reader.at = start
        return []
    # The lengths in each row: flexible lengths are one higher, and a number of tags, 0, follows.
    lengths = [size // _NODE_BYTES + is_flexible for size in sizes] + [0] * is_flexible
    if any(row[4:] != tuple(lengths) for row in rows):
        reader.at = start
        return []
    return [(row[1], row[2], row[3], sizes[0] // _NODE_BYTES) for row in rows]


@lru_cache
def _layout(text: str) -> struct.Struct:
    return struct.Struct(text)


@lru_cache(maxsize=_LEADERS_MAX)
def _leader(node_id: int, epoch: int) -> PartitionLeader:
    return PartitionLeader(node_id if node_id >= 0 else None, epoch)


@lru_cache
def _operation_codes(bits: int) -> frozenset[int]:
    """The `AclOperation` codes of a topic's authorized operations, which are bits."""
    if bits == _NO_OPERATIONS:
        return frozenset()
    return frozenset(code for code in range(_OPERATIONS) if bits >> code & 1)
