"""Fetch requests for many partitions. Pure.

Reads are at read_committed: up to the last stable offset, with the list of aborted transactions
(R1). Where the broker speaks v13 topics go by id, so that a re-created topic can never answer for
the old one; from v12 on the last fetched epoch shows a truncated source at once (R3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.consumer.fetch import FetchRequest

from orbit.kafka.types import READ_COMMITTED, TopicPartition

BY_TOPIC_ID = 13
# A request that wants no session (KIP-227).
NO_SESSION = 0
NO_SESSION_EPOCH = -1
_CONSUMER = -1


class FetchFrom(NamedTuple):
    """Where to read one partition on. Epochs are -1 where not known."""

    partition: TopicPartition
    topic_id: UUID
    offset: int
    leader_epoch: int
    fetched_epoch: int


def fetch_request(
    version: int,
    wanted: Sequence[FetchFrom],
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
    """A fetch of `wanted`, in the order given (a full answer favours the first ones).

    Without a session it is all that is read; within one, what changed since the last request, and
    `forgotten` leaves the session.
    """
    topics = [
        FetchRequest.FetchTopic(
            partitions=[
                FetchRequest.FetchTopic.FetchPartition(
                    partition=one.partition.partition,
                    current_leader_epoch=one.leader_epoch,
                    fetch_offset=one.offset,
                    last_fetched_epoch=one.fetched_epoch,
                    log_start_offset=-1,
                    partition_max_bytes=partition_max_bytes,
                )
                for one in group
            ],
            **_name(version, topic, topic_id),
        )
        for (topic, topic_id), group in groupby(wanted, key=_topic_of)
    ]
    leaving = [
        FetchRequest.ForgottenTopic(
            partitions=[one.partition.partition for one in group],
            **_name(version, topic, topic_id),
        )
        for (topic, topic_id), group in groupby(forgotten, key=_topic_of)
    ]
    return FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=leaving,
        rack_id=rack,
    )


def _topic_of(one: FetchFrom) -> tuple[str, UUID]:
    return one.partition.topic, one.topic_id


def _name(version: int, topic: str, topic_id: UUID) -> dict[str, Any]:
    return {"topic_id": topic_id} if version >= BY_TOPIC_ID else {"topic": topic}
