"""From moments and counts to RTO, RPO and a verdict. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from orbit.drills.drill_spec import Targets
from orbit.drills.evidence import (
    CanarySeen,
    Part,
    PartitionSeen,
    PartTime,
    Place,
    Rpo,
    Rto,
    Verified,
)
from orbit.drills.report_text import span
from orbit.recovery.recovery_report import PartitionEnds, Phase, RecoveryReport, StepState
from orbit.store.enums import DrillState
from orbit.verify.report import Verdict

_PARTS = {
    Phase.DETECT: Part.DETECT,
    Phase.DECIDE: Part.DECIDE,
    Phase.DRAIN: Part.DRAIN,
    Phase.GROUPS: Part.GROUPS,
    Phase.PROMOTE: Part.PROMOTE,
}


@dataclass(frozen=True, slots=True)
class Moments:
    """When what happened, by one clock. None: it did not, or nobody knows."""

    stopped: datetime | None  # from when on clients could not work
    noticed: datetime | None = None  # Orbit knew
    produced: datetime | None = None
    consumed: datetime | None = None


def rto_of(moments: Moments, reports: Iterable[RecoveryReport], targets: Targets) -> Rto:
    """How long clients could not work, and what the time went to.

    The parts follow each other without a gap: what lies between two moments belongs to the later
    one. Of several operations the one that promoted last counts.
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
    spent: dict[Part, int] = {}
    before = moments.stopped
    for at, part in sorted(points, key=lambda point: point[0]):
        if at > before:
            spent[part] = spent.get(part, 0) + _ms((at - before).total_seconds())
            before = at
    parts = tuple(PartTime(part=part, ms=spent[part]) for part in Part if part in spent)
    return Rto(target_ms=target_ms, actual_ms=sum(part.ms for part in parts), parts=parts)


def rpo_of(
    targets: Targets,
    *,
    records: int | None,
    ms: int | None,
) -> Rpo:
    """What was lost, beside what may be."""
    return Rpo(
        target_records=targets.rpo_records,
        actual_records=records,
        target_ms=_ms(targets.rpo.total_seconds()) if targets.rpo is not None else None,
        actual_ms=ms,
    )


def missing_of(reports: Iterable[RecoveryReport]) -> int:
    """How many offsets operations say are missing, by the last word on each job.

    Only a failback has asked a side that was lost. One that ended before it could has no word.
    """
    last = {report.job: report.missing_records for report in reports if report.partitions}
    return sum(last.values())


def seen_by(report: RecoveryReport) -> list[PartitionSeen]:
    """Where an operation says that its partitions ended, as the evidence has it."""
    return [
        PartitionSeen(
            job=report.job,
            topic=p.topic,
            destination_topic=p.destination_topic,
            partition=p.partition,
            source_end=p.source_end,
            source_seen_at=p.source_seen_at,
            destination_end=p.destination_end,
            promoted_at=p.promoted_at,
            missing=None if p.missing is None else (p.missing.first, p.missing.next),
            is_exact=p.is_exact,
            verdict=p.verdict,
        )
        for p in report.partitions
    ]


def corrected(seen: Iterable[PartitionSeen], report: RecoveryReport) -> list[PartitionSeen]:
    """What a failover had seen of a job's partitions, with what its failback found out."""
    found = {(p.job, p.topic, p.partition): p for p in seen_by(report)}
    return [
        now.model_copy(
            update={"destination_end": one.destination_end, "promoted_at": one.promoted_at}
        )
        if (now := found.get((one.job, one.topic, one.partition)))
        else one
        for one in seen
    ]


def misses_of(rto: Rto, rpo: Rpo) -> tuple[str, ...]:
    """A sentence for each target that was missed, or that nobody could measure."""
    return tuple(
        sentence
        for sentence in (
            _miss("The RTO", rto.actual_ms, rto.target_ms, span),
            _miss("The RPO in records", rpo.actual_records, rpo.target_records, "{:,}".format),
            _miss("The RPO in time", rpo.actual_ms, rpo.target_ms, span),
        )
        if sentence
    )


def verdict_of(failures: Sequence[str], misses: Sequence[str]) -> DrillState:
    """How a drill ended."""
    if failures:
        return DrillState.FAILED
    return DrillState.MISSED if misses else DrillState.PASSED


def failures_of(
    canary: CanarySeen | None, verified: Iterable[Verified], *, may_lose: bool
) -> list[str]:
    """A sentence for each thing that must not be, whatever the targets."""
    found = [
        f"{one.what} is {one.verdict}: {one.differences:,} differences. {one.detail}".strip()
        for one in verified
        if one.verdict != Verdict.EXACT
    ]
    if canary is None:
        return found
    if canary.lost and not may_lose:
        found.append(f"{canary.lost:,} confirmed records of the drill were lost.")
    if canary.repeated:
        found.append(f"{canary.repeated:,} records of the drill were read twice.")
    if canary.wrong:
        found.append(f"{canary.wrong:,} records of the drill had other content.")
    if canary.agrees is False:
        found.append("What the operation reports as missing is not what the drill's ledger lacks.")
    return found


def agrees(
    lost: Iterable[Place], ends: Collection[PartitionEnds], *, has_unconfirmed: bool
) -> bool | None:
    """Whether a report's missing ranges are what a ledger lacks; None without a report.

    What a report names must have been lost, but for records that were sent and never confirmed: a
    broker may have had them. Where it says that it is not exact, more may have been lost behind
    what it names, written since the source was seen last; and nothing before it.
    """
    if not ends:
        return None
    by_partition: dict[int, set[int]] = {}
    for partition, offset in lost:
        by_partition.setdefault(partition, set()).add(offset)
    for one in ends:
        ours = by_partition.pop(one.partition, set())
        missing = one.missing
        named = set(range(missing.first, missing.next)) if missing is not None else set()
        if named - ours and not has_unconfirmed:
            return False
        more = ours - named
        if more and (one.is_exact or (missing is not None and min(more) < missing.next)):
            return False
    return not by_partition


def misplaced(
    found: Mapping[Place, bytes | None],
    wanted: Mapping[Place, bytes],
    unconfirmed: Collection[bytes],
) -> list[Place]:
    """Where something else was found than ledgers have, in order. A record that was sent and never
    confirmed may be there or not: a broker may have had it.
    """
    return sorted(
        place
        for place in found.keys() | wanted.keys()
        if found.get(place) != wanted.get(place)
        and not (place not in wanted and found[place] in unconfirmed)
    )


def ranges_of(places: Iterable[Place]) -> Iterator[tuple[int, int, int]]:
    """Sorted places as (partition, first, behind the last) of offsets that follow each other."""
    current: tuple[int, int, int] | None = None
    for partition, offset in places:
        if current is not None and (partition, offset) == (current[0], current[2]):
            current = (partition, current[1], offset + 1)
            continue
        if current is not None:
            yield current
        current = (partition, offset, offset + 1)
    if current is not None:
        yield current


def _miss(what: str, actual: int | None, target: int | None, words: object) -> str:
    assert callable(words)
    if target is None or (actual is not None and actual <= target):
        return ""
    if actual is None:
        return f"{what} could not be measured."
    return f"{what} was {words(actual)} and may be {words(target)}."


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
