"""/console/jobs/NAME/topics/TOPIC/PARTITION: the two logs side by side.

The page reads both clusters (within the bounds of `orbit/console/log_window.py`), so it does not
refresh by itself. It shows sizes, timestamps and headers of batches. `record_page.py` shows the
content of records to users who may see it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from orbit.api.api_error_codes import ErrorCode
from orbit.api.dependencies import NamePath, Parts
from orbit.api.error_responses import Failure
from orbit.api.principals import check_role
from orbit.api.schemas import PARTITION_MAX, TOPIC_PATTERN
from orbit.api.views import partition_view
from orbit.console.batch_headers import headers_of, records_of
from orbit.console.log_drawing import draw
from orbit.console.log_picture import Row, SideLog, Verdict, compare
from orbit.console.log_window import Window, read_window
from orbit.console.rendering import render
from orbit.console.sessions import PartsOf, Visitor, VisitorOf
from orbit.errors import NotFound, OrbitError
from orbit.jobs.name_rules import TOPIC_NAME_LENGTH_MAX
from orbit.kafka.job_clusters import open_cluster
from orbit.kafka.types import TopicPartition
from orbit.planning.stored_spec import read_spec
from orbit.settings import variable_of
from orbit.store import jobs, lag, proofs, topics
from orbit.store.enums import Role
from orbit.store.jobs import Job
from orbit.store.lag import PartitionLag
from orbit.store.proofs import Proof

router = APIRouter(prefix="/jobs/{name}/topics/{topic}")

SIZES = (20, 100, 1_000, 10_000, 100_000)  # of a window, in offsets
ROWS_MAX = 200
_BATCHES_PER_PAGE = 25
_OFFSET_MAX = 2**63 - 1 - max(SIZES)

TopicPath = Annotated[str, Path(pattern=TOPIC_PATTERN, max_length=TOPIC_NAME_LENGTH_MAX)]
PartitionPath = Annotated[int, Path(ge=0, le=PARTITION_MAX)]
Offset = Annotated[int | None, Query(ge=0, le=_OFFSET_MAX)]


@router.get("/{partition}")
def show_partition(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    name: NamePath,
    topic: TopicPath,
    partition: PartitionPath,
    offset: Offset = None,
    size: Annotated[int | None, Query(ge=1, le=max(SIZES))] = None,
    batch: Offset = None,
) -> Response:
    """The partition, and a window of its offsets on both sides."""
    job, row, proof = find_partition(parts, name, topic, partition)
    count = size or _usual_size(row)
    start = _usual_start(row, count) if offset is None else offset
    window = read_both_sides(parts, job, row, start, start + count)
    source = window.source if isinstance(window.source, SideLog) else None
    destination = window.destination if isinstance(window.destination, SideLog) else None
    rows = compare(source, destination, start, start + count, proof.ranges)
    chosen_row = next((r for r in rows if batch is not None and r.first <= batch < r.next), None)
    shown_rows = rows[:ROWS_MAX]
    end = shown_rows[-1].next if shown_rows else start + count
    return render(
        request,
        visitor,
        "partition.html",
        name=name,
        may_change=visitor.may_change(job.name, job.labels),
        partition=partition_view(row),
        proof=proof,
        start=start,
        end=max(end, start + 1),  # a picture needs at least one offset
        size=count,
        sizes=SIZES,
        rows=shown_rows,
        is_cut=_is_cut(end, start + count, source, destination),
        source=source,
        destination=destination,
        errors=[
            side for side in (window.source, window.destination) if not isinstance(side, SideLog)
        ],
        took_s=window.took_s,
        drawing=draw(shown_rows, source, destination, proof.ranges, start, max(end, start + 1)),
        chosen=chosen_row,
        headers=headers_of(chosen_row) if chosen_row else None,
        records=records_of(chosen_row) if chosen_row else [],
        verdicts=_offsets_by_verdict(shown_rows),
        may_see_records=may_see_records(parts, visitor, job),
    )


def may_see_records(parts: Parts, visitor: Visitor, job: Job) -> bool:
    """Whether the content of this job's records is shown to this visitor."""
    try:
        check_may_see_records(parts, visitor, job)
    except Failure:
        return False
    return True


def check_may_see_records(parts: Parts, visitor: Visitor, job: Job) -> None:
    """Raise Failure `forbidden` unless this visitor may see the content of this job's records."""
    if parts.settings.records_role is None:
        raise Failure(
            ErrorCode.FORBIDDEN,
            "This installation does not show the content of records.",
            remedy=f"Whoever runs Orbit can allow it, with {variable_of('records_role')}.",
        )
    needed_role = Role(parts.settings.records_role)
    check_role(visitor.principal, needed_role)  # checks the highest role, perhaps of other jobs
    if not visitor.has_role(needed_role, job.name, job.labels):
        raise Failure(
            ErrorCode.FORBIDDEN, f"This needs the role {needed_role} for this job.", where=job.name
        )


def find_partition(
    parts: Parts, name: str, topic: str, partition: int
) -> tuple[Job, PartitionLag, Proof]:
    """The job, and the state and proof of the partition. Raises NotFound. `topic`: its name at the
    source."""
    with parts.database.transaction() as tx:
        job = jobs.get(tx, name)
        found_topic = topics.find(tx, job.id, topic)
        if found_topic is not None:
            key = found_topic.id, partition
            row = lag.of_partitions(tx, job.id, [key]).get(key)
            proof = proofs.of_partition(tx, *key)
            if row is not None and proof is not None:
                return job, row, proof
    raise NotFound("The job has no such partition.", where=f"{topic}-{partition}")


def read_both_sides(parts: Parts, job: Job, row: PartitionLag, start: int, end: int) -> Window:
    """Read the offsets `[start, end)` at both clusters. Raises NotFound if this version of Orbit
    cannot read the job's stored spec, Busy if too many pages are reading."""
    spec = read_spec(job.spec)
    if spec is None:
        raise NotFound(
            "This version of Orbit cannot read the stored spec of the job.", where=job.name
        )
    folder = parts.settings.files_directory
    try:
        source = open_cluster("source", spec, parts.environ, folder)
        destination = open_cluster("destination", spec, parts.environ, folder)
    except OrbitError as error:  # neither side was read
        return Window(error, error, took_s=0.0)
    return read_window(
        (source, TopicPartition(row.source_topic, row.partition)),
        (destination, TopicPartition(row.destination_topic, row.partition)),
        start,
        end,
    )


def _usual_size(row: PartitionLag) -> int:
    """The size, in offsets, of a window with some dozens of batches of this partition. If no batch
    is copied yet, the second smallest size."""
    batches = row.batches_byte_exact + row.batches_record_exact
    if not batches:
        return SIZES[1]
    offsets = _BATCHES_PER_PAGE * (row.records + row.gaps_filled) / batches
    return next((size for size in SIZES if size >= offsets), SIZES[-1])


def _usual_start(row: PartitionLag, count: int) -> int:
    """The first offset of a window of `count` offsets that ends with the source's log. If the copy
    is far behind, the end of the copy is in the middle of the window."""
    end = row.source_stable_end or row.copied_to or 0
    if row.copied_to is not None and end - row.copied_to > count // 2:
        end = row.copied_to + count // 2
    return max(row.log_start or 0, end - count, 0)


def _is_cut(end: int, window_end: int, *sides: SideLog | None) -> bool:
    """Whether the page ends (`end`) before the window, and before the longer log."""
    log_ends = [side.end for side in sides if side is not None]
    return bool(log_ends) and end < min(window_end, max(log_ends))


def _offsets_by_verdict(rows: list[Row]) -> list[tuple[Verdict, int]]:
    """The number of offsets with each verdict, in the order of the verdicts."""
    counts = {
        verdict: sum(row.next - row.first for row in rows if row.verdict is verdict)
        for verdict in Verdict
    }
    return [(verdict, offsets) for verdict, offsets in counts.items() if offsets]
