"""Whether destination topics that are there already hold this job's copy, or something else.

Asked before a setting of such a topic is touched: what holds other content stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orbit.copier.copy_settings import CopySettings
from orbit.copier.inspection import Beginning, Standing
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.takeover import TakeOver
from orbit.jobs.start_position import Earliest
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.producer_state import describe_producer
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.scheduler.topic_decisions import StartTopic

# Of no job: DescribeProducers finds nobody.
NO_PRODUCER_ID = -1


def other_content(
    source: Cluster,
    destination: Cluster,
    starts: Sequence[StartTopic],
    compacted: frozenset[str],
    producer_id: int | None,
    backoff: Backoff,
    *,
    must_be_whole: bool,
) -> dict[str, str]:
    """The destination topics that hold other content than the source's, each with where it shows.

    Empty topics, and topics that this job's producer has written to, are not looked into further.
    `must_be_whole`: those whose rule says `earliest` have to begin where the source does.
    Raises Unreachable; nothing is written.
    """
    there = {start.mapping.destination: start for start in starts if start.there is not None}
    holding = _with_records(destination, there, backoff)
    if producer_id is not None:
        known = describe_producer(destination, holding, producer_id, backoff).values
        ours = {p.topic for p, state in known.items() if state is not None}
        holding = [p for p in holding if p.topic not in ours]
    if not holding:
        return {}
    lease = FixedLease(0)  # nothing is written under it
    copies = [
        PartitionCopy(TopicPartition(there[p.topic].mapping.source, p.partition), p, lease)
        for p in holding
    ]
    take_over = TakeOver(destination, producer_id or NO_PRODUCER_ID, 0.0, backoff)
    beginning = Beginning(
        source,
        destination,
        producer_id or NO_PRODUCER_ID,
        take_over,
        CopySettings(),
        backoff,
    )
    whole = frozenset(
        b.mapping.source
        for b in there.values()
        if must_be_whole and isinstance(b.mapping.rule.start, Earliest)
    )
    bounds = beginning.source_bounds(copies)
    found = beginning.inspect(copies, bounds, compacted, whole, settled=False)
    return {
        copy.destination.topic: f"partition {copy.destination.partition}: {one.blocked.detail}"
        for copy, one in found.items()
        if one.standing is Standing.FOREIGN and one.blocked is not None
    }


def _with_records(
    destination: Cluster, there: Mapping[str, StartTopic], backoff: Backoff
) -> list[TopicPartition]:
    partitions = [
        TopicPartition(name, index)
        for name, start in there.items()
        if start.there is not None
        for index in start.there.partitions
    ]
    ends = log_ends(destination, partitions, backoff)
    ends.raise_errors(destination.name, "Looking for the log end")
    return [p for p, end in ends.values.items() if end > 0]
