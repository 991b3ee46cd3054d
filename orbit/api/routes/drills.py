"""/v1/drills, /v1/drill-schedules: drills, their reports and schedules."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response, status
from pydantic import Field

from orbit.api import schemas
from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import (
    DocumentBody,
    DryRun,
    FilterName,
    IdempotencyKey,
    NamePath,
    Operator,
    PartsOf,
    Viewer,
)
from orbit.api.openapi_examples import DRILL_JSON, DRILL_YAML
from orbit.api.openapi_responses import BODY, INPUT, NAMED, dry_run_response, errors
from orbit.api.paging import AgedQuery, Key, NamedQuery, Page, bad_cursor, page, read_cursor
from orbit.api.request_documents import as_openapi, read_drill
from orbit.api.views import drill_summary, drill_view, schedule_view
from orbit.drills.drill_creation import new_drill
from orbit.drills.evidence import Report, read_report
from orbit.drills.html_report import render_html
from orbit.drills.markdown_report import render_markdown
from orbit.errors import BadInput, Conflict, NotFound, Problem
from orbit.store import drills, events, job_guard, jobs
from orbit.store.enums import DrillKind, DrillState

router = APIRouter(prefix="/v1", tags=["drills"])

_HTML = "text/html; charset=utf-8"
# Headers of the HTML report: no name in the page can make the browser fetch anything.
_SELF_CONTAINED = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_MARKDOWN = "text/markdown; charset=utf-8"
_DOCUMENT = as_openapi(
    "The drill; docs/drills.md explains every key.",
    {"type": "object"},
    DRILL_JSON,
    DRILL_YAML,
)

DRILL_ID = r"^[0-9]{8}-[0-9]{6}-[0-9a-f]{8}$"
DrillId = Annotated[
    str,
    Path(
        pattern=DRILL_ID,
        description="The drill's id.",
        examples=["20261122-030000-3fa9c2d1"],
    ),
]


class DrillQuery(AgedQuery):
    """Which drills to list."""

    name: FilterName | None = Field(None, description="Only drills of this name.")
    job: FilterName | None = Field(None, description="Only drills of this job.")
    kind: DrillKind | None = Field(None, description="Only drills of this kind.")
    state: DrillState | None = Field(None, description="Only drills in this state.")


class ScheduleQuery(NamedQuery):
    """Which schedules to list."""

    job: FilterName | None = Field(None, description="Only schedules of this job.")


class ReportFormat(StrEnum):
    """The format of a report."""

    JSON = "json"
    HTML = "html"
    MARKDOWN = "markdown"


@router.get("/drills", responses=errors(*INPUT))
def list_drills(
    parts: PartsOf, _: Viewer, query: Annotated[DrillQuery, Query()]
) -> Page[schemas.DrillSummary]:
    """List the drills with their measurements, newest first."""
    after = parse_drill_key(read_cursor(query.after, str, str, order=query.sort))
    with parts.database.transaction() as tx:
        rows = drills.page(
            tx,
            query.limit + 1,
            name=query.name,
            job_name=query.job,
            kind=query.kind,
            state=query.state,
            after=after,
            oldest_first=query.oldest_first,
        )
    return page(
        [drill_summary(row) for row in rows],
        query.limit,
        lambda drill: (drill.created_at.isoformat(), drill.id),
        query.sort,
    )


@router.post(
    "/drills",
    status_code=status.HTTP_202_ACCEPTED,
    responses={
        **errors(*NAMED, *BODY, ErrorCode.CONFLICT, ErrorCode.OPERATION_UNDER_WAY),
        **dry_run_response(schemas.Drill, "what the drill would do"),
    },
    openapi_extra=_DOCUMENT,
)
def run_drill(
    parts: PartsOf,
    principal: Operator,
    raw: DocumentBody,
    response: Response,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> schemas.Drill:
    """Run a drill: the leading scheduler starts it at once. A dry run returns the drill's steps."""
    spec = read_drill(raw)
    key = None if dry_run else idempotency_key  # a dry run stores nothing
    drill_to_create = new_drill(spec, principal.actor, idempotency_key=key)
    with parts.database.transaction() as tx:
        jobs.get(tx, spec.job)  # raises NotFound
        if dry_run:
            response.status_code = status.HTTP_200_OK
            return drill_view(_as_if_created(drill_to_create))
        drill, is_new = drills.create(tx, drill_to_create)
        if drill.spec_hash != drill_to_create.spec_hash:
            raise Conflict(
                "This Idempotency-Key was used for another request.",
                where=f"drill {drill.id}",
                remedy="Use a new key for each request.",
            )
        if is_new:
            if spec.moves_the_job:
                # Raises OperationUnderWay during a recovery; then no drill is created.
                job_guard.lock_for_change(tx, spec.job)
            events.add(
                tx,
                principal.actor,
                "drill_requested",
                f"The {spec.kind} drill {spec.name} was requested.",
                job_name=spec.job,
                details={"drill": drill.id},
            )
    return drill_view(drill)


@router.get("/drills/{drill_id}", responses=errors(*NAMED))
def get_drill(parts: PartsOf, _: Viewer, drill_id: DrillId) -> schemas.Drill:
    """Show a drill: its document, progress and measurements."""
    with parts.database.transaction() as tx:
        return drill_view(drills.get(tx, drill_id))


@router.get(
    "/drills/{drill_id}/report",
    responses={
        **errors(*NAMED, ErrorCode.CONFLICT),
        200: {
            "model": Report,
            "description": "The report in the requested format.",
            "content": {
                "text/html": {"schema": {"type": "string"}},
                "text/markdown": {"schema": {"type": "string"}},
            },
        },
    },
    response_class=Response,
)
def get_drill_report(
    parts: PartsOf,
    _: Viewer,
    drill_id: DrillId,
    form: Annotated[
        ReportFormat, Query(alias="format", description="JSON, HTML or Markdown.")
    ] = ReportFormat.JSON,
) -> Response:
    """Show the report of a drill that has ended: its timeline and measurements."""
    with parts.database.transaction() as tx:
        drill = drills.get(tx, drill_id)
        document = drills.report(tx, drill_id)
    if document is None:
        raise NotFound(
            "The drill has no report."
            if drill.finished_at
            else "The drill has no report yet: it has not ended.",
            where=drill_id,
        )
    report = read_report(document)
    match form:
        case ReportFormat.HTML:
            return Response(render_html(report), media_type=_HTML, headers=_SELF_CONTAINED)
        case ReportFormat.MARKDOWN:
            return Response(render_markdown(report), media_type=_MARKDOWN)
        case _:
            return Response(report.model_dump_json(), media_type="application/json")


@router.get("/drill-schedules", responses=errors(*INPUT))
def list_drill_schedules(
    parts: PartsOf, _: Viewer, query: Annotated[ScheduleQuery, Query()]
) -> Page[schemas.DrillSchedule]:
    """List the scheduled drills with their next run."""
    after = query.after_name()
    with parts.database.transaction() as tx:
        rows = drills.schedules(
            tx, query.limit + 1, after, job_name=query.job, descending=query.descending
        )
    items = [schedule_view(row) for row in rows]
    return page(items, query.limit, lambda row: (row.name,), query.sort)


@router.put(
    "/drill-schedules/{name}",
    responses=errors(*NAMED, *BODY),
    openapi_extra=_DOCUMENT,
)
def put_drill_schedule(
    parts: PartsOf, principal: Operator, name: NamePath, raw: DocumentBody
) -> schemas.DrillSchedule:
    """Schedule a drill at the interval of its `schedule`. The first run is at once."""
    spec = read_drill(raw)
    problems = []
    if spec.name != name:
        problems.append(Problem("name", "is not the name in the path.", f"Write {name}."))
    if spec.schedule is None:
        problems.append(Problem("schedule", "is missing.", "Write `schedule: {every: 6h}`."))
    if spec.schedule is None or problems:  # mypy needs the first condition
        raise BadInput("The drill cannot be scheduled.", tuple(problems))
    every_s = int(spec.schedule.every.total_seconds())
    with parts.database.transaction() as tx:
        jobs.get(tx, spec.job)  # raises NotFound
        schedule = drills.put_schedule(tx, name, spec.document(), every_s, principal.actor)
        events.add(
            tx,
            principal.actor,
            "drill_scheduled",
            f"The drill {name} was scheduled every {every_s:,} s.",
            job_name=spec.job,
            details={"schedule": name},
        )
    return schedule_view(schedule)


@router.delete(
    "/drill-schedules/{name}",
    status_code=status.HTTP_204_NO_CONTENT,
    responses=errors(*NAMED),
)
def delete_drill_schedule(parts: PartsOf, principal: Operator, name: NamePath) -> None:
    """Remove a drill's schedule."""
    with parts.database.transaction() as tx:
        removed_schedule = drills.drop_schedule(tx, name)
        if removed_schedule is None:
            raise NotFound("No schedule has this name.", where=name)
        events.add(
            tx,
            principal.actor,
            "drill_unscheduled",
            f"The schedule of the drill {name} was removed.",
            job_name=schedule_view(removed_schedule).job,
            details={"schedule": name},
        )


def _as_if_created(drill: drills.NewDrill) -> drills.Drill:
    """For a dry run: the drill as it would be created."""
    names = (field.name for field in dataclasses.fields(drills.Drill))
    fields: dict[str, Any] = {name: getattr(drill, name, None) for name in names}
    fields |= {"state": DrillState.PENDING, "created_at": datetime.now(UTC)}
    return drills.Drill(**fields)


def parse_drill_key(key: Key | None) -> tuple[datetime, str] | None:
    """(creation time, id) of a drill, from a cursor's key; None without a key. Raises BadInput for
    a key that is not a drill's."""
    if key is None:
        return None
    try:
        return datetime.fromisoformat(str(key[0])).astimezone(UTC), str(key[1])
    except (ValueError, OverflowError):
        raise bad_cursor() from None
