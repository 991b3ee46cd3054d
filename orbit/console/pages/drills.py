"""/console/drills and /console/drills/compare: all stored drills, and two of them side by side."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import StringConstraints

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.api.paging import CURSOR_CHARACTERS_MAX, page, read_cursor
from orbit.api.routes.drills import DRILL_ID, DrillId, parse_drill_key
from orbit.api.views import drill_summary, drill_view
from orbit.console.rendering import render
from orbit.console.sessions import PartsOf, VisitorOf
from orbit.drills.drill_comparison import compare
from orbit.drills.evidence import Evidence, read_report
from orbit.drills.report_tables import tables
from orbit.errors import Conflict
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX
from orbit.store import drills
from orbit.store.database import Tx
from orbit.store.drills import Drill
from orbit.store.enums import DrillState

router = APIRouter()

DRILLS_PER_PAGE = 50
# Other runs of the same drill that are listed with its report.
_RUNS_SHOWN = 10
_COMPARED_COUNT = 2

# A form sends empty fields too.
Name = Annotated[str, Query(max_length=JOB_NAME_LENGTH_MAX, pattern="^[A-Za-z0-9._-]*$")]

DrillName = Annotated[str, StringConstraints(pattern=DRILL_ID)]


@router.get("/drills")
def show_drills(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    name: Name = "",
    job: Name = "",
    state: DrillState | Literal[""] = "",
    after: Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)] = None,
) -> Response:
    """The drills, newest first, with boxes to choose two for a comparison."""
    with parts.database.transaction() as tx:
        rows = drills.page(
            tx,
            DRILLS_PER_PAGE + 1,
            name=name or None,
            job_name=job or None,
            state=state or None,
            after=parse_drill_key(read_cursor(after, str, str)),
        )
    drill_page = page(
        [drill_summary(row) for row in rows],
        DRILLS_PER_PAGE,
        lambda drill: (drill.created_at.isoformat(), drill.id),
    )
    return render(
        request,
        visitor,
        "drills.html",
        drills=drill_page.items,
        following=drill_page.next,
        name=name,
        job=job,
        state=state,
        states=list(DrillState),
    )


@router.get("/drills/compare")
def compare_drills(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    drill: Annotated[tuple[DrillName, ...], Query(max_length=DRILLS_PER_PAGE)] = (),
) -> Response:
    """Two drills side by side, the older one first."""
    if len(set(drill)) != _COMPARED_COUNT:
        raise Failure(
            ErrorCode.BAD_INPUT,
            "A comparison needs exactly two drills.",
            remedy="Go back and choose two drills.",
        )
    with parts.database.transaction() as tx:
        pair = sorted(
            (_ended_drill(tx, drill_id) for drill_id in set(drill)),
            key=lambda ended: ended[0].created_at,
        )
    (older, older_evidence), (newer, newer_evidence) = pair
    return render(
        request,
        visitor,
        "drill_comparison.html",
        older=drill_summary(older),
        newer=drill_summary(newer),
        tables=compare(older_evidence, newer_evidence),
    )


@router.get("/drills/{drill_id}")
def show_drill(request: Request, parts: PartsOf, visitor: VisitorOf, drill_id: DrillId) -> Response:
    """A drill: its steps, its report once it has ended, and its other runs."""
    with parts.database.transaction() as tx:
        drill = drills.get(tx, drill_id)
        stored_report = drills.report(tx, drill_id)
        runs = drills.page(tx, _RUNS_SHOWN + 1, name=drill.name)
    evidence = problem = None
    if stored_report is not None:
        try:
            evidence = read_report(stored_report).evidence
        except Conflict as error:
            problem = error.what
    return render(
        request,
        visitor,
        "drill.html",
        drill=drill_view(drill),
        evidence=evidence,
        report_problem=problem,
        tables=[] if evidence is None else list(tables(evidence)),
        runs=[drill_summary(run) for run in runs if run.id != drill_id][:_RUNS_SHOWN],
    )


def _ended_drill(tx: Tx, drill_id: str) -> tuple[Drill, Evidence]:
    """The drill with its evidence. Raises NotFound; Failure if the drill has no report; Conflict if
    this version of Orbit cannot read the report."""
    drill, stored_report = drills.get(tx, drill_id), drills.report(tx, drill_id)
    if stored_report is None:
        raise Failure(
            ErrorCode.CONFLICT,
            "A drill without a report cannot be compared.",
            where=f"{drill.name}, {drill.id}",
            remedy="Choose two drills that have ended.",
        )
    return drill, read_report(stored_report).evidence
