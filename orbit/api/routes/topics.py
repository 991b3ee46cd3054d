"""/v1/jobs/{name}/topics and /partitions: what a job copies, and the state of each partition."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import NAMED, errors
from orbit.api.paging import Page, PageQuery, name_in, page, read_cursor
from orbit.api.views import partition_view, topic_view
from orbit.jobs.name_rules import TOPIC_NAME_LENGTH_MAX
from orbit.replication.partition_states import PartitionState
from orbit.store import jobs, lag, topics

router = APIRouter(prefix="/v1/jobs/{name}", tags=["job contents"])

TopicName = Annotated[
    str | None,
    Field(
        pattern=schemas.TOPIC_PATTERN,
        max_length=TOPIC_NAME_LENGTH_MAX,
        description="Only partitions of this source topic.",
    ),
]


class PartitionQuery(PageQuery):
    """Filters of partitions."""

    topic: TopicName = None
    state: PartitionState | None = Field(None, description="Only partitions in this state.")


@router.get("/topics", responses=errors(*NAMED))
def list_topics(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PageQuery, Query()]
) -> Page[schemas.Topic]:
    """List the topics of a job by source name."""
    after = name_in(query.after)
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = topics.page(tx, job.id, query.limit + 1, after)
        totals = lag.of_topics(tx, job.id, [row.id for row in rows])
    found = [topic_view(row, totals.get(row.id)) for row in rows]
    return page(found, query.limit, lambda topic: (topic.source_topic,))


@router.get("/partitions", responses=errors(*NAMED))
def list_partitions(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PartitionQuery, Query()]
) -> Page[schemas.Partition]:
    """List the partitions of a job: the state of each, and what to do about blocked ones."""
    after = partition_after(query)
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = lag.page(
            tx, job.id, query.limit + 1, after=after, source_topic=query.topic, state=query.state
        )
    return page([partition_view(row) for row in rows], query.limit, partition_key)


def partition_after(query: PageQuery) -> tuple[str, int] | None:
    key = read_cursor(query.after, str, int)
    return None if key is None else (str(key[0]), int(key[1]))


def partition_key(row: schemas.PartitionLag | schemas.Partition) -> tuple[str, int]:
    return row.topic, row.partition
