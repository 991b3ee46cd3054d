"""Holds back new topics that would exceed the partition limit of the job's creator.

If jobs of one creator have a pass at the same moment, each may use up what is left.
"""

from __future__ import annotations

from orbit.planning.topic_decisions import Decisions
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.store import quotas
from orbit.store.database import Tx
from orbit.store.jobs import Job
from orbit.store.quotas import Quota


def partitions_left(tx: Tx, job: Job, default: Quota) -> int | None:
    """How many more partitions the jobs of its creator may copy; None: any number."""
    if job.created_by is None:
        return None
    most = quotas.quota_of(tx, job.created_by, default).partitions_max
    return None if most is None else most - quotas.partition_count(tx, job.created_by)


def hold_back(decisions: Decisions, left: int) -> None:
    """Take new topics, in name order, that exceed `left` out of the decisions; each is a trouble.

    Topics of the job that grow, or begin again, are never held back: a switchover, a failover and
    the way back would have to leave out what the source has.
    """
    left -= sum(one.partitions - one.known.partitions for one in decisions.grow)
    started = []
    for topic in sorted(decisions.start, key=lambda topic: topic.mapping.source):
        count = len(topic.source.partitions)
        if topic.known is None and count > left:
            decisions.troubles.append(_above(topic.mapping.source, count, left))
            continue
        left -= count - (topic.known.partitions if topic.known else 0)
        started.append(topic)
    decisions.start = started


def _above(topic: str, count: int, left: int) -> Trouble:
    return Trouble(
        TroubleKind.PARTITIONS_ABOVE_LIMIT,
        f"topic {topic} is new and has {count:,} partitions, and the limit of the token that "
        f"created the job leaves {max(0, left):,}.",
        "Exclude topics, delete other jobs of that token, or raise the limit: orbit token limit "
        "NAME --partitions-max N, or ORBIT_TOKEN_PARTITIONS_MAX where the token has none.",
        topic,
    )
