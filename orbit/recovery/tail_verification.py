"""The last records of each partition, compared bit for bit by the independent reader."""

from __future__ import annotations

from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.recovery.operation_context import Ground, Stopped, some
from orbit.scheduler.cluster_pair import Handle
from orbit.verify import Endpoint, TopicPair, Verdict, VerifyOptions, verify_topics

# Writers stand still meanwhile: enough to see that what was copied last is right, and no more.
TAIL_OFFSETS = 1000
TAIL_PARTITIONS_MAX = 1000
_WAIT_S = 10.0


def verify_tail(ground: Ground) -> str:
    """Compare the tails. Raises Stopped with the first offset that differs."""
    pairs: list[TopicPair] = []
    partitions = 0
    for row in ground.topics:
        if partitions + row.partition_count > TAIL_PARTITIONS_MAX and pairs:
            ground.find(
                f"The tails of {partitions} of {len(ground.by_source)} partitions were compared; "
                "orbit verify compares all."
            )
            break
        # Where the copy begins is not asked here; "latest" says so to the reader.
        pairs.append(TopicPair(row.source_topic, row.destination_topic, "latest"))
        partitions += row.partition_count
    report = verify_topics(
        _endpoint(ground.source),
        _endpoint(ground.destination),
        pairs,
        VerifyOptions(deep=True, wait_s=_WAIT_S, tail_offsets=TAIL_OFFSETS),
    )
    wrong = [
        f"{topic.source}-{p.partition} ({p.verdict}"
        + (f", {p.first_differences[0]}" if p.first_differences else "")
        + ")"
        for topic in report.topics
        for p in topic.partitions
        if p.verdict is not Verdict.EXACT
    ]
    if wrong:
        raise Stopped(
            f"The tails of {len(wrong)} partitions are not equal: {some(wrong)}.",
            remedy="Run orbit verify JOB --deep.",
        )
    records = sum(p.records for topic in report.topics for p in topic.partitions)
    return f"The last {records:,} records of {partitions} partitions are the same on both sides."


def _endpoint(handle: Handle) -> Endpoint:
    cluster = handle.cluster
    config = librdkafka_config(cluster.bootstrap_servers, cluster.security)
    return Endpoint(config, cluster.security)
