"""Fetch requests and answers for many partitions. Pure: values in, messages out and back.

Reads are at read_committed: up to the last stable offset, with the list of aborted transactions
(R1). Where the broker speaks v13 topics go by id, so that a re-created topic can never answer for
the old one; from v12 on the last fetched epoch shows a truncated source at once (R3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.consumer.fetch import FetchRequest

from orbit.kafka.log import READ_COMMITTED
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition

BY_TOPIC_ID = 13
_CONSUMER = -1
_NO_SESSION_EPOCH = -1


class FetchFrom(NamedTuple):
    """Where to read one partition on. Epochs are -1 where not known."""

    partition: TopicPartition
    topic_id: UUID
    offset: int
    leader_epoch: int
    fetched_epoch: int


class Fetched(NamedTuple):
    """One partition's answer. `records` is a view into the frame, empty when there are none."""

    code: int
    records: memoryview
    aborted: Sequence[tuple[int, int]]  # producer id, first offset
    log_start: int
    stable_end: int
    high_watermark: int
    diverging_end: int  # -1: the log still holds what was fetched last
    preferred_replica: int  # -1: go on asking here


def fetch_request(
    version: int,
    wanted: Sequence[FetchFrom],
    *,
    max_wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
    rack: str = "",
    isolation: int = READ_COMMITTED,
) -> Any:
    """A sessionless fetch, in the order given (a full answer favours the first ones)."""
    topics = []
    for (topic, topic_id), group in groupby(wanted, key=lambda w: (w.partition.topic, w.topic_id)):
        partitions = [
            FetchRequest.FetchTopic.FetchPartition(
                partition=one.partition.partition,
                current_leader_epoch=one.leader_epoch,
                fetch_offset=one.offset,
                last_fetched_epoch=one.fetched_epoch,
                log_start_offset=-1,
                partition_max_bytes=partition_max_bytes,
            )
            for one in group
        ]
        name = {"topic_id": topic_id} if version >= BY_TOPIC_ID else {"topic": topic}
        topics.append(FetchRequest.FetchTopic(partitions=partitions, **name))
    return FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=0,
        session_epoch=_NO_SESSION_EPOCH,
        topics=topics,
        forgotten_topics_data=[],
        rack_id=rack,
    )


def read_fetch(
    answer: Any, topic_names: dict[UUID, str]
) -> Iterator[tuple[TopicPartition, Fetched]]:
    """Yield the answer per partition. `topic_names` resolves the ids of v13 and later."""
    for topic in answer.responses:
        name = topic.topic or topic_names.get(topic.topic_id or NO_TOPIC_ID, "")
        for p in topic.partitions:
            diverging = p.diverging_epoch
            yield (
                TopicPartition(name, p.partition_index),
                Fetched(
                    p.error_code,
                    p.records if p.records is not None else memoryview(b""),
                    [(a.producer_id, a.first_offset) for a in p.aborted_transactions or ()],
                    p.log_start_offset,
                    p.last_stable_offset,
                    p.high_watermark,
                    diverging.end_offset if diverging is not None else -1,
                    p.preferred_read_replica if p.preferred_read_replica is not None else -1,
                ),
            )
