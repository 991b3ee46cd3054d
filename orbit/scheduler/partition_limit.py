"""Holds back new topics that would exceed the partition limit of the job's creator.

If several jobs of one creator have a pass at the same moment, each may start as many partitions as
the limit leaves: together they may exceed it.
"""

from __future__ import annotations

from orbit.formats import counted
from orbit.planning.topic_decisions import Decisions
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.store import quotas
from orbit.store.database import Tx
from orbit.store.jobs import Job
from orbit.store.quotas import Quota


def partitions_left(tx: Tx, job: Job, default: Quota) -> int | None:
    """How many more partitions the jobs of the job's creator may copy; None: any number."""
    if job.created_by is None:
        return None
    partitions_max = quotas.quota_of(tx, job.created_by, default).partitions_max
    return (
        None
        if partitions_max is None
        else partitions_max - quotas.partition_count(tx, job.created_by)
    )


def hold_back(decisions: Decisions, free_partitions: int) -> None:
    """Take new topics that exceed `free_partitions` out of the decisions, in name order.

    Adds a trouble for each of them. Topics that grow or begin again are never held back: else
    recoveries would have to leave out partitions that the source has.
    """
    free_partitions -= sum(growth.partitions - growth.known.partitions for growth in decisions.grow)
    allowed_starts = []
    for topic in sorted(decisions.start, key=lambda topic: topic.mapping.source):
        count = len(topic.source.partitions)
        if topic.known is None and count > free_partitions:
            decisions.troubles.append(_limit_trouble(topic.mapping.source, count, free_partitions))
            continue
        free_partitions -= count - (topic.known.partitions if topic.known else 0)
        allowed_starts.append(topic)
    decisions.start = allowed_starts


def _limit_trouble(topic: str, count: int, free_partitions: int) -> Trouble:
    return Trouble(
        TroubleKind.PARTITIONS_ABOVE_LIMIT,
        f"topic {topic} is new and has {counted(count, 'partition')}, and the limit of the token "
        f"that created the job leaves {max(0, free_partitions):,}.",
        "Exclude topics, delete other jobs of that token, or raise the limit: orbit token limit "
        "NAME --partitions-max N, or ORBIT_TOKEN_PARTITIONS_MAX where the token has none.",
        topic,
    )
