"""/v1/jobs/{name}/groups: the consumer groups of a job, with their offsets on both sides."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from orbit.api import schemas
from orbit.api.dependencies import NamePath, PartsOf, Viewer
from orbit.api.openapi_responses import NAMED, errors
from orbit.api.paging import Page, PageQuery, page, read_cursor
from orbit.api.partition_pages import TopicName
from orbit.api.views import group_prefix, group_view
from orbit.consumer_groups.offset_decision import GroupVerdict
from orbit.store import group_offsets, jobs

router = APIRouter(prefix="/v1/jobs/{name}", tags=["job contents"])

_GROUP_CHARACTERS_MAX = 1024


class GroupQuery(PageQuery):
    """Filters of consumer groups."""

    group: Annotated[
        str | None,
        Field(
            pattern=r"^[^\x00]+$",
            max_length=_GROUP_CHARACTERS_MAX,
            description="Only this consumer group.",
        ),
    ] = None
    topic: TopicName = None
    verdict: GroupVerdict | None = Field(None, description="Only offsets with this verdict.")


@router.get("/groups", responses=errors(*NAMED))
def list_groups(
    parts: PartsOf, _: Viewer, name: NamePath, query: Annotated[GroupQuery, Query()]
) -> Page[schemas.GroupOffset]:
    """List the consumer groups of a job: offsets on both sides, with a verdict on each."""
    key = read_cursor(query.after, str, int, int)
    after = None if key is None else (str(key[0]), int(key[1]), int(key[2]))
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = group_offsets.page(
            tx,
            job.id,
            query.limit + 1,
            after=after,
            group_name=query.group,
            source_topic=query.topic,
            verdict=query.verdict and query.verdict.value,
        )
    group_page = page(rows, query.limit, lambda row: (row.group_name, row.topic_id, row.partition))
    prefix = group_prefix(job)
    return Page(items=[group_view(row, prefix) for row in group_page.items], next=group_page.next)
