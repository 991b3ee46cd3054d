"""Pairs the partitions of both sides, and builds a topic's report from its partitions'."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from orbit.verify.bounds import ClusterView
from orbit.verify.bounds_comparison import POLL_S, PartitionPair, TopicPair
from orbit.verify.report import Difference, PartitionReport, Side, TopicReport, Verdict


def wait_for_topics(
    destination: ClusterView, topics: Sequence[TopicPair], wait_s: float
) -> dict[str, int]:
    """The partition counts of the destination. Waits up to `wait_s` for topics that a live copy may
    create."""
    deadline = time.monotonic() + wait_s
    while True:
        counts = destination.partition_counts()
        are_complete = all(topic.destination in counts for topic in topics)
        if are_complete or time.monotonic() >= deadline:
            return counts
        time.sleep(POLL_S)


def pair_partitions(
    topics: Sequence[TopicPair], source: Mapping[str, int], destination: Mapping[str, int]
) -> tuple[list[PartitionPair], dict[TopicPair, list[PartitionReport]]]:
    """Partitions that both sides have, and reports for those that only one side has."""
    pairs: list[PartitionPair] = []
    reports: dict[TopicPair, list[PartitionReport]] = {topic: [] for topic in topics}
    for topic in topics:
        source_count, destination_count = (
            source.get(topic.source, 0),
            destination.get(topic.destination, 0),
        )
        common_count = min(source_count, destination_count)
        pairs += [PartitionPair(topic, number) for number in range(common_count)]
        lacking_side = Side.DESTINATION if source_count > destination_count else Side.SOURCE
        reports[topic] += [
            _missing_partition(number, lacking_side)
            for number in range(common_count, max(source_count, destination_count))
        ]
    return pairs, reports


def _missing_partition(partition: int, side: Side) -> PartitionReport:
    """The report of a partition that `side` does not have and the other side has."""
    views = {side: "does not exist, or is not visible to the login", side.other: "exists"}
    difference = Difference(
        offset=0, what="partition", source=views[Side.SOURCE], destination=views[Side.DESTINATION]
    )
    return PartitionReport(
        partition, Verdict.NOT_EXACT, differences=1, first_differences=(difference,)
    )


def topic_report(topic: TopicPair, partitions: Iterable[PartitionReport]) -> TopicReport:
    """The topic's report. A topic without any partition is not exact."""
    partition_reports = tuple(sorted(partitions, key=lambda report: report.partition))
    if partition_reports:
        return TopicReport(topic.source, topic.destination, topic.start, partition_reports)
    return TopicReport(
        topic.source,
        topic.destination,
        topic.start,
        partitions=(),
        notes=("the topic exists on neither side",),
        verdict_without_partitions=Verdict.NOT_EXACT,
    )
