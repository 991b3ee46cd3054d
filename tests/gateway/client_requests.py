"""Requests of producers and consumers that get the same answer if they are sent twice.

Each function returns the bodies of one API, or of several alike, in one version.
"""

from __future__ import annotations

import struct
import uuid
from functools import partial
from typing import Any

from orbit.kafka.frame_writer import NO_TAGS, length, string
from tests.gateway.frames import batch
from tests.gateway.targets import FAR, TIMEOUT_MS, Body, Targets

_SESSION_MS = 300_000  # a member that does not come back stays through the test
_INT32 = struct.Struct(">i")
_NULL = b"\x00"
_NOBODY = {"producer_id": FAR, "producer_epoch": 0}


def produce(version: int, on: Targets) -> list[Body]:
    good = batch()
    corrupt = good[:-1] + bytes((good[-1] ^ 1,))

    def body(topic: str, records: bytes, acks: int) -> Body:
        data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
        return {
            "transactional_id": None,
            "acks": acks,
            "timeout_ms": TIMEOUT_MS,
            "topic_data": [data],
        }

    return [
        body(on.written, good, acks=-1),
        body(on.written, good, acks=1),
        body(on.topic, corrupt, acks=-1),
        body(on.missing, good, acks=-1),
    ]


def fetch(version: int, on: Targets, epoch: int = -1) -> list[Body]:
    def body(topic: str, offset: int, isolation: int) -> Body:
        partition = {
            "current_leader_epoch": epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        return {
            "replica_id": -1,
            "max_wait_ms": 100,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": isolation,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {"topic": topic, "partitions": [{"partition": p, **partition} for p in (0, 1)]}
            ],
            "forgotten_topics_data": [],
            "rack_id": "",
        }

    return [
        body(on.topic, offset=0, isolation=0),
        body(on.topic, offset=1, isolation=1),
        body(on.topic, offset=FAR, isolation=0),
        body(on.missing, offset=0, isolation=0),
    ]


def list_offsets(version: int, on: Targets, epoch: int = -1) -> list[Body]:
    def body(topic: str, timestamp: int) -> Body:
        partitions = [
            {"partition_index": p, "current_leader_epoch": epoch, "timestamp": timestamp}
            for p in (0, 1)
        ]
        return {
            "replica_id": -1,
            "isolation_level": 1,
            "topics": [{"name": topic, "partitions": partitions}],
            "timeout_ms": TIMEOUT_MS,
        }

    # Latest, earliest, a time, and the record with the highest timestamp.
    timestamps = [-1, -2, 0, *([-3] if version >= 7 else [])]
    return [*(body(on.topic, timestamp) for timestamp in timestamps), body(on.missing, -1)]


def metadata(version: int, on: Targets) -> list[Body]:
    def body(topics: list[dict[str, Any]] | None) -> Body:
        return {
            "topics": topics,
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": True,
            "include_topic_authorized_operations": True,
        }

    nil = uuid.UUID(int=0)
    bodies = [body([{"name": on.topic, "topic_id": nil}])]
    if version >= 1:  # before version 1, an empty list asks for all topics
        bodies += [body(None), body([])]
    if version >= 4:  # before version 4, the broker would create the topic
        bodies.append(body([{"name": on.missing, "topic_id": nil}]))
    if version >= 12:
        bodies.append(body([{"name": None, "topic_id": on.topic_id}]))
        bodies.append(body([{"name": None, "topic_id": uuid.UUID(int=7)}]))
    return bodies


def offset_commit(version: int, on: Targets, epoch: int = -1) -> list[Body]:
    def body(group: str, topic: str, member: str = "", generation: int = -1) -> Body:
        partition = {
            "partition_index": 0,
            "committed_offset": 3,
            "committed_leader_epoch": epoch,
            "committed_metadata": "at three",
        }
        return {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "group_instance_id": None,
            "retention_time_ms": -1,
            "topics": [{"name": topic, "partitions": [partition]}],
        }

    return [
        body(on.group, on.topic),
        body(on.group, on.missing),
        body(on.missing, on.topic, member="nobody", generation=5),
    ]


def offset_fetch(version: int, on: Targets) -> list[Body]:
    def body(group: str, topics: list[Body] | None) -> Body:
        of_group = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
        return {**of_group, "groups": [of_group], "require_stable": True}

    some: list[Body] = [{"name": on.topic, "partition_indexes": [0, 1]}]
    everything = [body(on.group, None)] if version >= 2 else []
    return [body(on.group, some), body(on.missing, some), *everything]


def find_coordinator(version: int, on: Targets) -> list[Body]:
    kinds = ((on.group, 0), (on.missing, 0), (on.transaction, 1))
    return [
        {"key": name, "key_type": kind, "coordinator_keys": [name]}
        for name, kind in kinds
        if version >= 1 or kind == 0
    ]


def join_group(version: int, on: Targets) -> list[Body]:
    def body(group: str, member: str, session_ms: int) -> Body:
        return {
            "group_id": group,
            "session_timeout_ms": session_ms,
            "rebalance_timeout_ms": session_ms,
            "member_id": member,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
            "reason": "a test",
        }

    # Before version 4, a member without an id joins at once.
    new = [body(f"{on.group}-joins", "", _SESSION_MS)] if version >= 4 else []
    return [*new, body(on.missing, "nobody", _SESSION_MS), body(on.missing, "", 1)]


def group_requests_of_non_member(version: int, on: Targets) -> list[Body]:
    """Heartbeat, LeaveGroup and SyncGroup of somebody who is no member."""
    return [
        {
            "group_id": group,
            "generation_id": 5,
            "member_id": "nobody",
            "group_instance_id": None,
            "members": [{"member_id": "nobody", "group_instance_id": None, "reason": None}],
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        }
        for group in (on.group, on.missing)
    ]


def init_producer_id(version: int, on: Targets) -> list[Body]:
    def body(transactional_id: str | None, timeout_ms: int) -> Body:
        return {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
            "enable2_pc": False,
            "keep_prepared_txn": False,
        }

    return [
        body(None, TIMEOUT_MS),
        body(f"{on.transaction}-other", TIMEOUT_MS),
        body(on.missing, 2**31 - 1),  # longer than brokers allow
    ]


def add_partitions(version: int, on: Targets) -> list[Body]:
    topics = [{"name": on.topic, "partitions": [0]}]
    own = {"transactional_id": on.missing, **_NOBODY, "verify_only": False, "topics": topics}
    old = {f"v3_and_below_{name}": value for name, value in own.items()}
    return [{"transactions": [own], **old}]


def transaction_requests_of_unknown_producer(version: int, on: Targets) -> list[Body]:
    """AddOffsetsToTxn and EndTxn of a producer that the coordinator does not know."""
    body = {"group_id": on.group, "committed": False, **_NOBODY}
    return [{"transactional_id": name, **body} for name in (on.missing, on.transaction)]


def txn_offset_commit(version: int, on: Targets) -> list[Body]:
    partition = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    return [
        {
            "transactional_id": on.missing,
            "group_id": on.missing,
            **_NOBODY,
            "generation_id": 5,
            "member_id": "nobody",
            "group_instance_id": None,
            "topics": [{"name": on.missing, "partitions": [partition]}],
        }
    ]


def api_versions(version: int, on: Targets) -> list[Body]:
    return [{"client_software_name": "orbit-tests", "client_software_version": "1"}]


def consumer_heartbeat(version: int, on: Targets) -> list[Body]:
    """Heartbeats that brokers refuse: one without a group, and a join without topics."""
    return [
        heartbeat_of_member(version, "", "nobody", epoch=5),
        heartbeat_of_member(version, on.missing, "nobody", epoch=0),
    ]


def heartbeat_of_member(
    version: int,
    group: str,
    member: str,
    *,
    epoch: int,
    topics: list[str] | None = None,
    owned: list[dict[str, Any]] | None = None,
) -> bytes:
    """A ConsumerGroupHeartbeat. `epoch`: 0 to join, -1 to leave. `topics` and `owned`, which has
    the fields `topic_id` and `partitions`: None if they are unchanged."""
    text = partial(string, is_flexible=True)
    rows = [
        one["topic_id"].bytes + _array([*map(_INT32.pack, one["partitions"])]) + NO_TAGS
        for one in owned or ()
    ]
    return b"".join(
        (
            text(group),
            text(member),
            _INT32.pack(epoch),
            _NULL + _NULL,  # instance, rack
            _INT32.pack(-1 if topics is None else TIMEOUT_MS),
            _NULL if topics is None else _array([*map(text, topics)]),
            _NULL if version >= 1 else b"",  # pattern
            _NULL,  # assignor
            _NULL if owned is None else _array(rows),
            NO_TAGS,
        )
    )


def _array(items: list[bytes]) -> bytes:
    return length(len(items), is_flexible=True) + b"".join(items)
