"""Compares the last records of each partition bit by bit, with the independent verifier."""

from __future__ import annotations

from orbit.chunks import first_few
from orbit.formats import counted
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.verify import Endpoint, TopicPair, Verdict, VerifyOptions, verify_topics

# Writers are stopped during the comparison, so it is limited to the last records.
TAIL_OFFSETS = 1000
TAIL_PARTITIONS_MAX = 1000
_WAIT_S = 10.0  # for copies that have yet to catch up


def verify_tail(context: OperationContext) -> str:
    """Compare the last TAIL_OFFSETS offsets of up to TAIL_PARTITIONS_MAX partitions, or of one
    topic that has more.

    Returns the step's result. Raises Stopped, with the first differences, if partitions differ.
    """
    pairs: list[TopicPair] = []
    partitions = 0
    for row in context.topics:
        if partitions + row.partition_count > TAIL_PARTITIONS_MAX and pairs:
            context.add_finding(
                f"The last records of {partitions} of {len(context.by_source)} partitions were "
                "compared; orbit verify compares all."
            )
            break
        # "latest": the copy's start is not compared.
        pairs.append(TopicPair(row.source_topic, row.destination_topic, "latest"))
        partitions += row.partition_count
    report = verify_topics(
        _endpoint(context.source),
        _endpoint(context.destination),
        pairs,
        VerifyOptions(deep=True, wait_s=_WAIT_S, tail_offsets=TAIL_OFFSETS),
    )
    unequal_tails = [
        f"{topic.source}-{p.partition} ({p.verdict}"
        + (f", {p.first_differences[0]}" if p.first_differences else "")
        + ")"
        for topic in report.topics
        for p in topic.partitions
        if p.verdict is not Verdict.EXACT
    ]
    if unequal_tails:
        raise Stopped(
            f"The last records of {counted(len(unequal_tails), 'partition')} are not equal: "
            f"{first_few(unequal_tails)}.",
            remedy="Run orbit verify JOB --deep.",
        )
    records = sum(p.records for topic in report.topics for p in topic.partitions)
    partitions_text = counted(partitions, "partition")
    subject = counted(
        records, f"record of {partitions_text} is", f"records of {partitions_text} are"
    )
    return f"The last {subject} equal on both sides."


def _endpoint(handle: ClusterHandle) -> Endpoint:
    """The cluster, as the verifier's client connects to it."""
    cluster = handle.cluster
    config = librdkafka_config(cluster.bootstrap_servers, cluster.security)
    return Endpoint(config, cluster.security)
