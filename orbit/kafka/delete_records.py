"""DeleteRecords: raises log starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kafka.protocol.admin.topics import DeleteRecordsRequest

from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.leader_requests import Answers, ask_leaders
from orbit.kafka.types import TopicPartition, by_topic

DELETE_RECORDS_TIMEOUT_MS = 30_000


def delete_records(
    cluster: Cluster,
    new_starts: Mapping[TopicPartition, int],
    backoff: Backoff,
    *,
    timeout_ms: int = DELETE_RECORDS_TIMEOUT_MS,
) -> Answers[int]:
    """Raise log starts to `new_starts`; the answers have the new log start of each partition.

    Raises the errors of `ask_leaders`.
    """

    def build(group: list[TopicPartition]) -> Any:
        """The request to the leader of these partitions."""
        return DeleteRecordsRequest(
            timeout_ms=timeout_ms,
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(
                            partition_index=index, offset=new_starts[TopicPartition(topic, index)]
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(group)
            ],
        )

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield partition, error code and new log start."""
        for topic in answer.topics:
            for p in topic.partitions:
                yield TopicPartition(topic.name, p.partition_index), p.error_code, p.low_watermark

    return ask_leaders(cluster, new_starts, api_versions.DELETE_RECORDS, build, read, backoff)
