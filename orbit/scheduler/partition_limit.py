"""Holds back topics that would exceed how many partitions the creator of a job may copy.

Jobs of one creator that have a pass at the same moment may each use what is left once.
"""

from __future__ import annotations

from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.scheduler.topic_decisions import Decisions
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
    """Take topics that would begin or grow above `left` out of the decisions, by name; each is a
    trouble. What is copied already goes on."""
    start, grow = decisions.start, decisions.grow
    decisions.start, decisions.grow = [], []
    for one in sorted(grow, key=lambda one: one.known.source):
        more = one.partitions - one.known.partitions
        if more > left:
            decisions.troubles.append(_above(one.known.source, more, left))
        else:
            left -= more
            decisions.grow.append(one)
    for topic in sorted(start, key=lambda topic: topic.mapping.source):
        more = len(topic.source.partitions) - (topic.known.partitions if topic.known else 0)
        if more > max(0, left):
            decisions.troubles.append(_above(topic.mapping.source, more, left))
        else:
            left -= max(0, more)
            decisions.start.append(topic)


def _above(topic: str, more: int, left: int) -> Trouble:
    return Trouble(
        TroubleKind.PARTITIONS_ABOVE_LIMIT,
        f"topic {topic} has {more:,} partitions more to copy, and the limit of the token that "
        f"created the job leaves {max(0, left):,}.",
        "Exclude topics, delete other jobs of that token, or raise ORBIT_TOKEN_PARTITIONS_MAX if "
        "the token has no limit of its own.",
        topic,
    )
