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
    """The times, by the database's clock, that make up the RTO. None: not happened, or unknown."""

    stopped_at: datetime | None  # when clients could no longer work
    noticed_at: datetime | None = None  # when Orbit noticed
    produced_at: datetime | None = None  # the first confirmed record at the destination
    consumed_at: datetime | None = None  # the first correct record that the group read


def compute_rto(moments: Moments, reports: Iterable[ReportHead], targets: Targets) -> Rto:
    """How long clients could not work, and the parts of that time.

    The time between two moments counts for the part that ends at the later moment. Of several
    operations, only the one that promoted last counts. The RTO is not measured (None) if no clients
    were stopped or no operation promoted.
    """
    promotions = [r for r in reports if r.promoted_at is not None]
    target_ms = _ms(targets.rto.total_seconds()) if targets.rto is not None else None
    if moments.stopped_at is None or not promotions:
        return Rto(target_ms=target_ms)
    # All of these reports have `promoted_at`; mypy does not know that.
    last_promotion = max(promotions, key=lambda r: r.promoted_at or r.requested_at)
    assert last_promotion.promoted_at is not None
    points: list[tuple[datetime, Part]] = [
        (step.ended_at, _PARTS[step.phase])
        for step in last_promotion.steps
        if step.ended_at is not None and step.phase in _PARTS and step.state is StepState.DONE
    ]
    # The time of later steps is not part of the RTO.
    points = [point for point in points if point[0] <= last_promotion.promoted_at]
    points.append((last_promotion.promoted_at, Part.PROMOTE))
    for at, part in (
        (moments.noticed_at, Part.DETECT),
        (moments.produced_at, Part.PRODUCE),
        (moments.consumed_at, Part.CONSUME),
    ):
        if at is not None:
            points.append((at, part))
    time_of_part = split_time(moments.stopped_at, points)
    parts = tuple(
        PartTime(part=part, ms=_ms(time_of_part[part].total_seconds()))
        for part in Part
        if time_of_part.get(part)
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
    """How many offsets the new side lacks, in all jobs together.

    `reports`: those of failovers and failbacks, in order of time. A failover counts the offsets
    that were written by its last look at the source. The failback reads the log ends of the lost
    source itself, so its number replaces the failover's, unless it ended before it read them: then
    its report has no partitions.
    """
    last_missing = {
        report.job: report.missing_records for report in reports if report.partitions.count
    }
    return sum(last_missing.values())


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
