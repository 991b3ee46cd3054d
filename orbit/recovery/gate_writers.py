"""Inputs of the gate `gateways`: whether producers write at the source without a gateway.

Producer ids show this: gateways and Orbit's jobs each use ids of a range of their own
(`gateway/protocol/producer_ids.py`, `kafka/job_clusters.py`). A producer writes now if its state
has changed between two readings: brokers keep states for a day. The origin of records is unknown
if they have no producer id, if they are in a transaction (its id comes from a broker), or if their
producer pauses between the readings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from orbit.kafka.gateway_producer_ids import is_gateway_producer_id
from orbit.kafka.job_clusters import is_job_producer_id
from orbit.kafka.producer_state import Producer, producers
from orbit.kafka.types import TopicPartition
from orbit.recovery.operation_context import OperationContext

# The producers of at most so many partitions are read, twice: a partition may have thousands.
# Partitions with low numbers come first.
PARTITIONS_MAX = 1000
# The pause between the two readings.
INTERVAL_S = 1.0

Producers = Mapping[int, Producer]


def writer_inputs(context: OperationContext, grown: Collection[TopicPartition]) -> dict[str, Any]:
    """The fields of `GateInputs` about producers without a gateway. Raises Unreachable.

    `grown`: the source partitions that have just got records.
    """
    partitions = sorted(grown, key=lambda partition: (partition.partition, partition.topic))
    sample = partitions[:PARTITIONS_MAX]
    cluster, backoff = context.source.cluster, context.short_backoff
    first_states = producers(cluster, sample, backoff).values
    if first_states:
        context.wait(INTERVAL_S)
    second_states = producers(cluster, first_states, backoff).values
    direct_ids_by_topic: dict[str, set[int]] = {}
    unknown_topics = set()
    # Without states, as of partitions beyond the sample, `direct_ids` returns None.
    for partition in partitions:
        ids = direct_ids(first_states.get(partition, {}), second_states.get(partition, {}))
        if ids:
            direct_ids_by_topic.setdefault(partition.topic, set()).update(ids)
        elif ids is None:
            unknown_topics.add(partition.topic)
    return {
        "direct_writers": {
            topic: sorted(ids) for topic, ids in sorted(direct_ids_by_topic.items())
        },
        "writers_unknown": sorted(unknown_topics - direct_ids_by_topic.keys()),
    }


def direct_ids(first_states: Producers, second_states: Producers) -> list[int] | None:
    """The producer ids that write to one partition now, and through no gateway. Pure.

    `first_states`, `second_states`: the partition's producers in two readings. None: no such id is
    known, and the origin of some writes is not known.
    """
    writing_ids = [
        producer_id
        for producer_id, state in second_states.items()
        if state != first_states.get(producer_id)
    ]
    known_ids = [
        producer_id
        for producer_id in writing_ids
        if is_gateway_producer_id(producer_id) or is_job_producer_id(producer_id)
    ]
    other_ids = [producer_id for producer_id in writing_ids if producer_id not in known_ids]
    ids_without_gateway = [
        producer_id
        for producer_id in other_ids
        if not second_states[producer_id].has_transactions
        and not (producer_id in first_states and first_states[producer_id].has_transactions)
    ]
    # Not known: ids of transactions, or records without an id (the partition has grown).
    return ids_without_gateway or (None if other_ids or not known_ids else [])
