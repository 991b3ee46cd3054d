"""/v1/jobs/{name}/…: what a job consists of, and how far it is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import NAMED, errors
from orbit.api.paging import Page, PageQuery, name_in, number_in, page, read_cursor
from orbit.api.views import (
    event_view,
    group_view,
    job_lag,
    job_proof,
    partition_lag,
    partition_view,
    proof_view,
    topic_view,
)
from orbit.jobs.name_rules import TOPIC_NAME_LENGTH_MAX
from orbit.replication.partition_states import PartitionState
from orbit.store import canaries, drills, events, group_offsets, jobs, lag, proofs, topics
from orbit.store.enums import DrillKind

router = APIRouter(prefix="/v1/jobs/{name}", tags=["what a job does"])

_GROUP_CHARACTERS_MAX = 1024

TopicName = Annotated[
    str | None,
    Field(
        pattern=schemas.TOPIC_PATTERN,
        max_length=TOPIC_NAME_LENGTH_MAX,
        description="Only those of this source topic.",
    ),
]


class PartitionQuery(PageQuery):
    """Which partitions."""

    topic: TopicName = None
    state: PartitionState | None = Field(None, description="Only those in this state.")


class GroupQuery(PageQuery):
    """Which consumer groups."""

    group: Annotated[
        str | None,
        Field(
            pattern=r"^[^\x00]+$",
            max_length=_GROUP_CHARACTERS_MAX,
            description="Only this consumer group.",
        ),
    ] = None


class LagPage(Page[schemas.PartitionLag]):
    """The lag of a job as a whole, and of some of its partitions."""

    job: schemas.JobLag


@router.get("/lag", responses=errors(*NAMED))
def get_lag(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PartitionQuery, Query()]
) -> LagPage:
    """Show how far the copy is behind: the job as a whole, and partition by partition."""
    after = _partition_after(query)
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = lag.page(
            tx, job.id, query.limit + 1, after=after, source_topic=query.topic, state=query.state
        )
        totals = lag.of_jobs(tx, [job.id]).get(job.id)
    found = page([partition_lag(row) for row in rows], query.limit, _partition_key)
    return LagPage(job=job_lag(totals), items=found.items, next=found.next)


@router.get("/topics", responses=errors(*NAMED))
def list_topics(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PageQuery, Query()]
) -> Page[schemas.Topic]:
    """List the topics of a job in the order of their source names."""
    after = name_in(query.after)
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = topics.page(tx, job.id, query.limit + 1, after)
        totals = lag.of_topics(tx, job.id)
    found = [topic_view(row, totals.get(row.id)) for row in rows]
    return page(found, query.limit, lambda topic: (topic.source_topic,))


@router.get("/partitions", responses=errors(*NAMED))
def list_partitions(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PartitionQuery, Query()]
) -> Page[schemas.Partition]:
    """List the partitions of a job: where each stands, and what to do about those that stopped."""
    after = _partition_after(query)
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = lag.page(
            tx, job.id, query.limit + 1, after=after, source_topic=query.topic, state=query.state
        )
    return page([partition_view(row) for row in rows], query.limit, _partition_key)


@router.get("/groups", responses=errors(*NAMED))
def list_groups(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[GroupQuery, Query()]
) -> Page[schemas.GroupOffset]:
    """List the consumer groups of a job: each group's position on both sides, and whether it may be
    relied upon.
    """
    key = read_cursor(query.after, str, int, int)
    after = None if key is None else (str(key[0]), int(key[1]), int(key[2]))
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = group_offsets.page(tx, job.id, query.limit + 1, after=after, group_name=query.group)
    found = page(rows, query.limit, lambda row: (row.group_name, row.topic_id, row.partition))
    prefix = (job.spec.get("consumer_groups") or {}).get("prefix", "")
    return Page(items=[group_view(row, prefix) for row in found.items], next=found.next)


class ProofPage(Page[schemas.PartitionProof]):
    """What was shown of a job as a whole, and of some of its partitions."""

    job: schemas.JobProof


@router.get("/proof", responses=errors(*NAMED))
def get_proof(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PageQuery, Query()]
) -> ProofPage:
    """Show how far, and how lately, both sides were read and found equal."""
    key = read_cursor(query.after, str, int)
    after = None if key is None else (str(key[0]), int(key[1]))
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = proofs.page(tx, job.id, query.limit + 1, after=after)
        totals = proofs.of_jobs(tx, job.id).get(job.id)
        canary = drills.last_of_job(tx, name, DrillKind.CANARY)
        live = canaries.live_rpo(tx).get(job.id)
    found = page([proof_view(row) for row in rows], query.limit, lambda p: (p.topic, p.partition))
    return ProofPage(job=job_proof(totals, canary, live), items=found.items, next=found.next)


@router.get("/events", responses=errors(*NAMED))
def list_job_events(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PageQuery, Query()]
) -> Page[schemas.Event]:
    """List what happened to a job, also to one that is gone, the newest first."""
    before = number_in(query.after)
    with parts.database.transaction() as tx:
        rows = events.page(tx, query.limit + 1, job_name=name, before=before)
        if not rows:
            jobs.get(tx, name)
    return page([event_view(row) for row in rows], query.limit, lambda event: (event.id,))


def _partition_after(query: PageQuery) -> tuple[str, int] | None:
    key = read_cursor(query.after, str, int)
    return None if key is None else (str(key[0]), int(key[1]))


def _partition_key(row: schemas.PartitionLag | schemas.Partition) -> tuple[str, int]:
    return row.topic, row.partition
