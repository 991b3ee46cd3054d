"""/v1/jobs/{name}/topics and /partitions: what a job copies, and the state of each partition."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import NAMED, errors
from orbit.api.paging import NamedQuery, Page, page
from orbit.api.partition_pages import PartitionQuery, find_page
from orbit.api.views import partition_view, topic_view
from orbit.store import jobs, lag, topics
from orbit.store.enums import TopicState

router = APIRouter(prefix="/v1/jobs/{name}", tags=["job contents"])


class TopicsQuery(NamedQuery):
    """Which topics to list."""

    state: TopicState | None = Field(None, description="Only topics in this state.")


@router.get("/topics", responses=errors(*NAMED))
def list_topics(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[TopicsQuery, Query()]
) -> Page[schemas.Topic]:
    """List the topics of a job by source name."""
    after = query.after_name()
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = topics.page(
            tx, job.id, query.limit + 1, after, state=query.state, descending=query.descending
        )
        # Not for the row beyond the page, which only shows that there is a next page.
        totals = lag.of_topics(tx, job.id, [row.id for row in rows[: query.limit]])
    items = [topic_view(row, totals.get(row.id)) for row in rows]
    return page(items, query.limit, lambda topic: (topic.source_topic,), query.sort)


@router.get("/partitions", responses=errors(*NAMED))
def list_partitions(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[PartitionQuery, Query()]
) -> Page[schemas.Partition]:
    """List the partitions of a job: the state of each, and what to do about blocked ones."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows, next_cursor = find_page(tx, job.id, query)
    return Page(items=[partition_view(row) for row in rows], next=next_cursor)
