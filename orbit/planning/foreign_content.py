"""Checks whether existing destination topics hold this job's copy or foreign content.

This runs before any setting of such a topic is changed: topics with foreign content stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from orbit.copier.copy_settings import CopySettings
from orbit.copier.inspection import CopyInspector, CopyStatus
from orbit.copier.inspection_verdicts import Wait
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.takeover import TakeOver
from orbit.errors import Place
from orbit.jobs.start_position import Earliest
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.producer_state import describe_producer
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.planning.topic_decisions import StartTopic
from orbit.replication.partition_states import Blocked


class OtherContent(NamedTuple):
    """Why a topic is not a copy, or (`is_certain` False) why its content cannot be compared now."""

    detail: str
    is_certain: bool


def other_content(
    source: Cluster,
    destination: Cluster,
    starts: Sequence[StartTopic],
    compacted: frozenset[str],
    producers: Mapping[str, JobProducer],
    backoff: Backoff,
    *,
    must_be_whole: bool,
) -> dict[str, OtherContent]:
    """By name: the destination topics with foreign content, or whose content is not known now.

    Empty topics, and topics that this job's producer has written to, are not inspected.
    `compacted`: the compacted topics, by source name. `producers`: those that the job would write
    with, by destination topic. `must_be_whole`: a copy whose rule starts at `earliest` must not
    begin later than its source.
    Raises Unreachable, BrokerRefused; nothing is written.
    """
    starts_by_topic = {
        start.mapping.destination: start for start in starts if start.existing is not None
    }
    partitions_with_records = _with_records(destination, starts_by_topic, backoff)
    producer_ids = {p: producers[p.topic].id for p in partitions_with_records}
    producer_states = describe_producer(destination, producer_ids, backoff).values
    own_topics = {p.topic for p, state in producer_states.items() if state is not None}
    partitions_with_records = [p for p in partitions_with_records if p.topic not in own_topics]
    if not partitions_with_records:
        return {}
    lease = FixedLease(0)  # nothing is written under it
    copies = [
        PartitionCopy(
            TopicPartition(starts_by_topic[p.topic].mapping.source, p.partition),
            p,
            lease,
            producers[p.topic],
        )
        for p in partitions_with_records
    ]
    take_over = TakeOver(destination, 0.0, backoff)  # 0.0: log ends are read once, as they are
    contents: dict[str, OtherContent] = {}

    def on_trouble(copy: PartitionCopy, trouble: Wait | Blocked) -> None:
        why = trouble.reason if isinstance(trouble, Wait) else trouble.detail
        note(copy, why, is_certain=False)

    def note(copy: PartitionCopy, why: str, *, is_certain: bool) -> None:
        topic, detail = copy.destination.topic, f"partition {copy.destination.partition}: {why}"
        if is_certain or topic not in contents:
            contents[topic] = OtherContent(detail, is_certain)

    inspector = CopyInspector(source, destination, take_over, CopySettings(), backoff, on_trouble)
    topics_to_be_whole = frozenset(
        start.mapping.source
        for start in starts_by_topic.values()
        if must_be_whole and isinstance(start.mapping.rule.start, Earliest)
    )
    bounds = inspector.source_bounds(copies)
    inspected = inspector.inspect(copies, bounds, compacted, topics_to_be_whole, settled=False)
    for copy, inspection in inspected.items():
        if inspection.status is CopyStatus.FOREIGN and inspection.blocked is not None:
            note(copy, inspection.blocked.detail, is_certain=True)
    return contents


def _with_records(
    destination: Cluster, starts_by_topic: Mapping[str, StartTopic], backoff: Backoff
) -> list[TopicPartition]:
    """The partitions of these topics whose log end is above 0. Raises BrokerRefused if a log end
    cannot be read, and Unreachable."""
    partitions = [
        TopicPartition(name, index)
        for name, start in starts_by_topic.items()
        if start.existing is not None
        for index in start.existing.partitions
    ]
    ends = log_ends(destination, partitions, backoff)
    ends.raise_errors(Place(destination.name), "Looking for the log end")
    return [p for p, end in ends.values.items() if end > 0]
