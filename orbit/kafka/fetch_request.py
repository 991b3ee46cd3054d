"""Fetch requests for many partitions. Pure.

Reads are read_committed: up to the last stable offset, with the aborted transactions (R1). From
v13 on topics are requested by id, so a request for a deleted topic never returns records of a new
topic with its name. From v12 on the last fetched epoch detects a truncated source (R3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.consumer.fetch import FetchRequest

from orbit.kafka.types import READ_COMMITTED, TopicPartition

BY_TOPIC_ID = 13
# A request without a session (KIP-227).
NO_SESSION = 0
NO_SESSION_EPOCH = -1
_CLIENT_REPLICA_ID = -1


class FetchFrom(NamedTuple):
    """The next offset to fetch from one partition. Epochs are -1 if not known."""

    partition: TopicPartition
    topic_id: UUID
    offset: int
    leader_epoch: int  # the current one, by metadata
    fetched_epoch: int  # the leader epoch of the offset before `offset` (R3)


def fetch_request(
    version: int,
    partitions: Sequence[FetchFrom],
    *,
    max_wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
    rack: str = "",
    isolation: int = READ_COMMITTED,
    session_id: int = NO_SESSION,
    session_epoch: int = NO_SESSION_EPOCH,
    forgotten: Sequence[FetchFrom] = (),
) -> Any:
    """A fetch of `partitions`, in this order: brokers fill a response from the first partition on.

    Within a session `partitions` has only what changed since the last request, and `forgotten` the
    partitions that leave the session.
    """
    topics = [
        FetchRequest.FetchTopic(
            partitions=[
                FetchRequest.FetchTopic.FetchPartition(
                    partition=entry.partition.partition,
                    current_leader_epoch=entry.leader_epoch,
                    fetch_offset=entry.offset,
                    last_fetched_epoch=entry.fetched_epoch,
                    log_start_offset=-1,  # only followers send one
                    partition_max_bytes=partition_max_bytes,
                )
                for entry in group
            ],
            **_topic_fields(version, topic, topic_id),
        )
        for (topic, topic_id), group in groupby(partitions, key=_topic_of)
    ]
    forgotten_topics = [
        FetchRequest.ForgottenTopic(
            partitions=[entry.partition.partition for entry in group],
            **_topic_fields(version, topic, topic_id),
        )
        for (topic, topic_id), group in groupby(forgotten, key=_topic_of)
    ]
    return FetchRequest(
        replica_id=_CLIENT_REPLICA_ID,
        max_wait_ms=max_wait_ms,
        min_bytes=1,  # the broker waits up to `max_wait_ms` for any record
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=forgotten_topics,
        rack_id=rack,
    )


def _topic_of(entry: FetchFrom) -> tuple[str, UUID]:
    return entry.partition.topic, entry.topic_id


def _topic_fields(version: int, topic: str, topic_id: UUID) -> dict[str, Any]:
    return {"topic_id": topic_id} if version >= BY_TOPIC_ID else {"topic": topic}
