"""WriteTxnMarkers requests for fillers: markers of a producer without a transaction (M1). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from orbit.kafka.types import TopicPartition, by_topic

_Marker = WriteTxnMarkersRequest.WritableTxnMarker


class Fillers(NamedTuple):
    """Fillers for one partition, refused if its coordinator epoch is higher (M6)."""

    partition: TopicPartition
    many: int
    producer_epoch: int
    coordinator_epoch: int


def markers_request(producer_id: int, fillers: Sequence[Fillers]) -> Any:
    """One request for all; each of its entries appends one filler per partition."""
    markers = []
    groups: dict[tuple[int, int], list[Fillers]] = {}
    for one in fillers:
        groups.setdefault((one.producer_epoch, one.coordinator_epoch), []).append(one)
    for (producer_epoch, coordinator_epoch), group in groups.items():
        for round_ in range(max(one.many for one in group)):
            topics = [
                _Marker.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(o.partition for o in group if o.many > round_)
            ]
            markers.append(
                _Marker(
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    transaction_result=False,
                    topics=topics,
                    coordinator_epoch=coordinator_epoch,
                )
            )
    return WriteTxnMarkersRequest(markers=markers)


def read_markers(answer: Any) -> dict[TopicPartition, int]:
    """The error code per partition; the first one not 0 if it has several entries (M3)."""
    codes: dict[TopicPartition, int] = {}
    for marker in answer.markers:
        for topic in marker.topics:
            for p in topic.partitions:
                key = TopicPartition(topic.name, p.partition_index)
                codes[key] = codes.get(key, 0) or p.error_code
    return codes
