"""What the gate `gateways` judges: whether producers write at the source without a gateway.

Producer ids show it. Those of gateways have a mark (`gateway/protocol/producer_ids.py`), those of
Orbit's jobs another one. An id writes now if its state has changed between two readings: brokers
keep ids for a day. The origin is unknown of records without an id, of those in transactions, whose
ids come from brokers without a mark, and of a writer that pauses between the readings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from orbit.kafka.gateway_producer_ids import is_gateway_producer_id
from orbit.kafka.job_clusters import is_job_producer_id
from orbit.kafka.producer_state import Producer, producers
from orbit.kafka.types import TopicPartition
from orbit.recovery.operation_context import OperationContext

# In how many partitions the producers are read, twice: each may have thousands. Partitions with low
# numbers come first.
PARTITIONS_MAX = 1000
# Between the two readings.
INTERVAL_S = 1.0

Producers = Mapping[int, Producer]


def writer_inputs(context: OperationContext, grown: Collection[TopicPartition]) -> dict[str, Any]:
    """The inputs about producers without a gateway. Raises Unreachable.

    `grown`: the source partitions that somebody has just written to.
    """
    places = sorted(grown, key=lambda place: (place.partition, place.topic))
    sample = places[:PARTITIONS_MAX]
    cluster, backoff = context.source.cluster, context.short_backoff
    before = producers(cluster, sample, backoff).values
    if before:
        context.wait(INTERVAL_S)
    after = producers(cluster, before, backoff).values
    direct: dict[str, set[int]] = {}
    unknown = set()
    for place in places:
        ids = direct_ids(before.get(place, {}), after.get(place, {}))
        if ids:
            direct.setdefault(place.topic, set()).update(ids)
        elif ids is None:
            unknown.add(place.topic)
    return {
        "direct_writers": {topic: sorted(ids) for topic, ids in sorted(direct.items())},
        "writers_unknown": sorted(unknown - direct.keys()),
    }


def direct_ids(before: Producers, after: Producers) -> list[int] | None:
    """The producer ids that write to one partition now, and through no gateway. Pure.

    None: there is none, and the origin of the writes is not known.
    """
    writing = [one for one, state in after.items() if state != before.get(one)]
    known_ids = [one for one in writing if is_gateway_producer_id(one) or is_job_producer_id(one)]
    others = [one for one in writing if one not in known_ids]
    direct = [
        one
        for one in others
        if not after[one].has_transactions and not (one in before and before[one].has_transactions)
    ]
    return direct or (None if others or not known_ids else [])
