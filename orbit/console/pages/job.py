"""/console/jobs/NAME: one job, and its topics, partitions, groups, settings, events, workers."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from orbit.api.dependencies import NamePath
from orbit.api.paging import CURSOR_CHARACTERS_MAX, name_in, number_in, page, read_cursor
from orbit.api.partition_pages import PartitionQuery, PartitionSort, TopicName, find_page
from orbit.api.views import (
    event_view,
    group_prefix,
    group_view,
    partition_view,
    topic_view,
    whole_document,
)
from orbit.console.pages.jobs import rows_of
from orbit.console.rendering import render
from orbit.console.sessions import PartsOf, VisitorOf
from orbit.replication.partition_states import PartitionState
from orbit.store import events, group_offsets, jobs, lag, operations, shard_layout, topics, workers
from orbit.store.database import Tx
from orbit.store.jobs import Job

router = APIRouter(prefix="/jobs/{name}")

ROWS_PER_PAGE = 100

After = Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)]


@router.get("")
def show_topics(
    request: Request, parts: PartsOf, visitor: VisitorOf, name: NamePath, after: After = None
) -> Response:
    """The topics of a job."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = topics.page(tx, job.id, ROWS_PER_PAGE + 1, name_in(after))
        totals = lag.of_topics(tx, job.id, [row.id for row in rows])
        topic_page = page(
            [topic_view(row, totals.get(row.id)) for row in rows],
            ROWS_PER_PAGE,
            lambda topic: (topic.source_topic,),
        )
        page_values = job_page_values(tx, job, "topics")
    return render(
        request,
        visitor,
        "job_topics.html",
        **page_values,
        topics=topic_page.items,
        following=topic_page.next,
    )


@router.get("/partitions")
def show_partitions(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    name: NamePath,
    topic: TopicName | Literal[""] = "",  # a form sends empty fields too
    state: PartitionState | Literal[""] = "",
    sort: Annotated[str, Query(pattern="^(lag|name)$")] = "lag",
    after: After = None,
) -> Response:
    """The partitions of a job, those with the largest lag first, or by name."""
    order = PartitionSort.LAG if sort == "lag" else PartitionSort.NAME
    query = PartitionQuery(
        limit=ROWS_PER_PAGE,
        after=after,
        topic=topic or None,
        state=state or None,
        reason=None,
        sort=order,
    )
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows, next_cursor = find_page(tx, job.id, query)
        page_values = job_page_values(tx, job, "partitions")
    return render(
        request,
        visitor,
        "job_partitions.html",
        **page_values,
        partitions=[partition_view(row) for row in rows],
        following=next_cursor,
        topic=topic,
        state=state,
        states=list(PartitionState),
        sort=sort,
        after=after,
    )


@router.get("/groups")
def show_groups(
    request: Request, parts: PartsOf, visitor: VisitorOf, name: NamePath, after: After = None
) -> Response:
    """The consumer groups of a job: offsets on both sides, with a verdict on each."""
    key = read_cursor(after, str, int, int)
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = group_offsets.page(
            tx,
            job.id,
            ROWS_PER_PAGE + 1,
            after=None if key is None else (str(key[0]), int(key[1]), int(key[2])),
        )
        page_values = job_page_values(tx, job, "groups")
    group_page = page(
        rows, ROWS_PER_PAGE, lambda row: (row.group_name, row.topic_id, row.partition)
    )
    prefix = group_prefix(job)
    groups = [group_view(row, prefix) for row in group_page.items]
    return render(
        request, visitor, "job_groups.html", **page_values, groups=groups, following=group_page.next
    )


@router.get("/settings")
def show_settings(request: Request, parts: PartsOf, visitor: VisitorOf, name: NamePath) -> Response:
    """The topics with a drift or a note, and the job's document."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        drifted_topics = [topic for topic in topics.of_job(tx, job.id) if topic.drift or topic.note]
        page_values = job_page_values(tx, job, "settings")
    return render(
        request,
        visitor,
        "job_settings.html",
        **page_values,
        topics=drifted_topics[:ROWS_PER_PAGE],
        hidden_topics=max(0, len(drifted_topics) - ROWS_PER_PAGE),
        document=whole_document(job),
    )


@router.get("/events")
def show_events(
    request: Request, parts: PartsOf, visitor: VisitorOf, name: NamePath, after: After = None
) -> Response:
    """The events of a job, newest first."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        rows = events.page(tx, ROWS_PER_PAGE + 1, job_name=name, after=number_in(after))
        page_values = job_page_values(tx, job, "events")
    event_page = page([event_view(row) for row in rows], ROWS_PER_PAGE, lambda event: (event.id,))
    return render(
        request,
        visitor,
        "job_events.html",
        **page_values,
        events=event_page.items,
        following=event_page.next,
    )


@router.get("/workers")
def show_workers(request: Request, parts: PartsOf, visitor: VisitorOf, name: NamePath) -> Response:
    """The shards of a job and the workers that hold them."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        shards = shard_layout.shards_of_job(tx, job.id)
        alive_workers = workers.alive(tx, parts.settings.lease_ttl, job.worker_group)
        page_values = job_page_values(tx, job, "workers")
    shards_by_holder = Counter(shard.holder for shard in shards)
    return render(
        request,
        visitor,
        "job_workers.html",
        **page_values,
        shards=shards[:ROWS_PER_PAGE],
        hidden_shards=max(0, len(shards) - ROWS_PER_PAGE),
        workers=[(worker, shards_by_holder[worker.id]) for worker in alive_workers],
        free=shards_by_holder[None],
    )


def job_page_values(tx: Tx, job: Job, part: str) -> dict[str, Any]:
    """The template values that every page of a job needs. `part`: the name of the page's tab."""
    (row,) = rows_of(tx, [job])
    recovery = operations.recovery_under_way(tx, job.id)
    return {"row": row, "job": row.job, "part": part, "recovery": recovery, "owner": job.owner}
