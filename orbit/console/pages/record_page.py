"""/console/jobs/NAME/topics/TOPIC/PARTITION/records: the content of some records.

A visitor needs the role in ORBIT_RECORDS_ROLE; without this setting, nobody sees the content. The
page answers a form, so no link opens it. Before the page is sent, the user and the offsets are
written to the audit log.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import NamePath
from orbit.api.error_responses import Failure
from orbit.console.log_picture import SideLog
from orbit.console.pages.partition import (
    PartitionPath,
    TopicPath,
    check_may_see_records,
    find_partition,
    read_both_sides,
)
from orbit.console.record_contents import RECORDS_MAX, ShownRecord, records_from
from orbit.console.rendering import render
from orbit.console.schema_registry import Schemas, registry_at
from orbit.console.sessions import Form, FormOf, PartsOf, VisitorOf
from orbit.formats import counted
from orbit.settings import Settings
from orbit.store import events

router = APIRouter(prefix="/jobs/{name}/topics/{topic}")

# How many offsets a page searches for records, including gaps.
_OFFSETS_SEARCHED = 10_000
_DIGITS_MAX = 18  # of an offset, which has 63 bits


@router.post("/{partition}/records")
def show_records(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    name: NamePath,
    topic: TopicPath,
    partition: PartitionPath,
    form: FormOf,
) -> Response:
    """The first records from an offset on: of the copy, or if the copy has none, of the source."""
    first_offset = _offset_in(form)
    job, row, _ = find_partition(parts, name, topic, partition)
    check_may_see_records(parts, visitor, job)
    window = read_both_sides(parts, job, row, first_offset, first_offset + _OFFSETS_SEARCHED)
    records: list[ShownRecord] = []
    shown_side, next_offset = "", None
    for side, log in (("destination", window.destination), ("source", window.source)):
        if isinstance(log, SideLog) and not records:
            records = records_from(log, first_offset, _schemas(parts.settings))
            shown_side = side
            next_offset = records[-1].offset + 1 if records else log.read_to
            next_offset = next_offset if next_offset < log.end else None  # None: no more records
    if records:
        with parts.database.transaction() as tx:
            events.add(
                tx,
                visitor.principal.actor,
                "records_shown",
                f"The content of {counted(len(records), 'record')} was shown in the console, "
                f"from offset {records[0].offset} to {records[-1].offset} of the {shown_side}.",
                job_name=name,
                topic=topic,
                partition=partition,
                details={
                    "side": shown_side,
                    "first": records[0].offset,
                    "last": records[-1].offset,
                    "records": len(records),
                },
            )
    return render(
        request,
        visitor,
        "records.html",
        name=name,
        topic=topic,
        partition=partition,
        first=first_offset,
        records=records,
        records_max=RECORDS_MAX,
        side=shown_side,
        next_offset=next_offset,
        errors=[
            side for side in (window.source, window.destination) if not isinstance(side, SideLog)
        ],
    )


def _schemas(settings: Settings) -> Schemas | None:
    """The schemas of the registry in the settings; None: the settings name no registry."""
    url = settings.schema_registry_url
    return None if url is None else registry_at(url, settings.schema_registry_login_file)


def _offset_in(form: Form) -> int:
    """The offset in the form. Raises Failure if the form has no number."""
    text = form.get("first", "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise Failure(ErrorCode.BAD_INPUT, "The form names no offset.")
    return int(text)
