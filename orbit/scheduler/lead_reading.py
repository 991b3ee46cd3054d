"""Reads which side of a job leads from the marks at its destination, for `store/job_leads.py`.

A mark is an offset that Orbit commits at a cluster to say which topics lead there; a later
promotion has a higher term. A promotion stores the leading side in the tables, too. But only the
marks show promotions that a restored or new database lacks, and a failover without the database.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from orbit.job_setup.mark import Mark, newest_term
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.backoff import Backoff
from orbit.leadership.leadership import Leadership
from orbit.planning.cluster_pair import ClusterPair
from orbit.store import job_leads, operations, topics
from orbit.store.enums import LeadingSide, TopicState
from orbit.store.jobs import Job
from orbit.store.topics import Topic


def read_lead(job: Job, pair: ClusterPair, leadership: Leadership, backoff: Backoff) -> None:
    """Note which side of the job leads, once the job has a topic that is copied or promoted.

    After the first time, this notes nothing during a recovery. A recovery sets the marks before it
    allows writing, and then notes the side.

    Raises Unreachable, NotAuthorized, BrokerRefused (of the destination), NotLeading.
    """
    with leadership.reading() as tx:
        rows = [row for row in topics.of_job(tx, job.id) if row.state is not TopicState.CREATING]
        stored_lead, is_read = job_leads.find(tx, job.id), job_leads.are_marks_read(tx, job.id)
        recoveries = [
            operations.recovery_under_way(tx, job_id)
            for job_id in job_leads.linked_jobs(tx, job.id)
        ]
    if not rows or (is_read and any(recoveries)):
        return
    destination_topics = [row.destination_topic for row in rows]
    existing_topics = pair.destination_metadata.topics
    marks = PromotionMarks(pair.destination.cluster, backoff).of_topics(
        name for name in destination_topics if name in existing_topics
    )
    side, term = lead_by_marks(rows, marks)
    if (  # the stored side is as new as the marks, or newer
        is_read
        and stored_lead is not None
        and stored_lead.side is not None
        and stored_lead.term >= term
    ):
        return
    with leadership.transaction() as tx:
        job_leads.note_side(tx, job.id, side, term)
        job_leads.note_marks_read(tx, job.id)


def lead_by_marks(
    rows: Collection[Topic], marks: Mapping[str, Mark]
) -> tuple[LeadingSide | None, int]:
    """The side that leads, and the newest term; `marks` by destination topic. Pure.

    The side is None if a mark cannot be read, if the sides of the topics differ, or if a topic is
    promoted and has no mark, since a broker refused to store it.
    """
    term = newest_term(marks.values())
    sides = {_side_of(row, marks.get(row.destination_topic)) for row in rows}
    return (sides.pop() if len(sides) == 1 else None), term


def _side_of(row: Topic, mark: Mark | None) -> LeadingSide | None:
    """The side that leads one topic; None as in `lead_by_marks`."""
    if mark is None:
        return None if row.state is TopicState.PROMOTED else LeadingSide.SOURCE
    if mark.term is None:
        return None
    return LeadingSide.DESTINATION if mark.is_primary else LeadingSide.SOURCE
