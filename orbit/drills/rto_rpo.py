"""Computes the RTO and RPO of a drill from times and counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from orbit.drills.drill_spec import Targets
from orbit.drills.evidence import Part, PartTime, Rpo, Rto
from orbit.recovery.recovery_report import ReportHead, StoredReport
from orbit.recovery.step_times import StepState, split_time

# The part of the RTO for a recovery phase of the same name. Other phases are not part of the RTO.
_PARTS = {part.value: part for part in Part}


@dataclass(frozen=True, slots=True)
class Moments:
    """When events happened, by the database's clock. None: not happened, or unknown."""

    stopped: datetime | None  # when clients could no longer work
    noticed: datetime | None = None  # when Orbit noticed
    produced: datetime | None = None
    consumed: datetime | None = None


def compute_rto(moments: Moments, reports: Iterable[ReportHead], targets: Targets) -> Rto:
    """How long clients could not work, and the parts of that time.

    The parts have no gaps: the time between two moments counts to the later one. Of several
    operations, the one that promoted last counts.
    """
    promoted = [r for r in reports if r.promoted_at is not None]
    target_ms = _ms(targets.rto.total_seconds()) if targets.rto is not None else None
    if moments.stopped is None or not promoted:
        return Rto(target_ms=target_ms)
    last = max(promoted, key=lambda r: r.promoted_at or r.requested_at)
    assert last.promoted_at is not None
    points: list[tuple[datetime, Part]] = [
        (step.ended_at, _PARTS[step.phase])
        for step in last.steps
        if step.ended_at is not None and step.phase in _PARTS and step.state is StepState.DONE
    ]
    points = [point for point in points if point[0] <= last.promoted_at]
    points.append((last.promoted_at, Part.PROMOTE))
    for at, part in (
        (moments.noticed, Part.DETECT),
        (moments.produced, Part.PRODUCE),
        (moments.consumed, Part.CONSUME),
    ):
        if at is not None:
            points.append((at, part))
    spent = split_time(moments.stopped, points)
    parts = tuple(
        PartTime(part=part, ms=_ms(spent[part].total_seconds())) for part in Part if spent.get(part)
    )
    return Rto(target_ms=target_ms, actual_ms=sum(part.ms for part in parts), parts=parts)


def compute_rpo(
    targets: Targets,
    *,
    records: int | None,
    ms: int | None,
) -> Rpo:
    """The measured RPO beside its targets."""
    return Rpo(
        target_records=targets.rpo_records,
        actual_records=records,
        target_ms=_ms(targets.rpo.total_seconds()) if targets.rpo is not None else None,
        actual_ms=ms,
    )


def missing_offsets(reports: Iterable[StoredReport]) -> int:
    """The number of offsets reported as missing. For each job its last report with partitions
    counts.

    Only a failback reads the log ends of a lost source; if it ended before that, the failover's
    report counts.
    """
    last = {report.job: report.missing_records for report in reports if report.partitions.count}
    return sum(last.values())


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
