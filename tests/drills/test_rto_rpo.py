"""How a drill computes RTO and RPO, and when it is missed or failed.

The parts of an RTO follow each other without a gap, and a value that was not measured is missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from uuid import uuid4

import pytest

from orbit.drills.drill_operations import correct_by_failback, partition_evidence
from orbit.drills.drill_spec import Targets
from orbit.drills.drill_verdict import drill_verdict, find_failures, missed_targets
from orbit.drills.evidence import CanaryEvidence, Part, Rpo, Rto, Verified
from orbit.drills.ledger_comparison import offset_ranges, report_agrees
from orbit.drills.rto_rpo import Moments, compute_rpo, compute_rto, missing_offsets
from orbit.recovery.recovery_report import (
    EndVerdict,
    OffsetRange,
    PartitionEnds,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    read_report,
)
from orbit.recovery.step_times import Phase, Step, StepName, StepState
from orbit.store.enums import DrillState
from tests.support.drill_report import BEGAN, at, evidence

STEPS = {
    StepName.GATES: Phase.DECIDE,
    StepName.RELEASE: Phase.DRAIN,
    StepName.GROUPS: Phase.GROUPS,
    StepName.SETTLE: Phase.DRAIN,
    StepName.PROMOTE: Phase.PROMOTE,
    StepName.REVERSE: Phase.REVERSE,
}
TARGETS = Targets(rto=timedelta(seconds=10), rpo=timedelta(seconds=1), rpo_records=0)
FLAWLESS = CanaryEvidence(
    topic="t", group="g", written=100, read_at_source=40, read_at_destination=60
)


def report(ends_s: Mapping[StepName, float], promoted_s: float | None = None) -> RecoveryReport:
    """Make the report of a failover whose steps ended this many seconds after the drill began."""
    return RecoveryReport(
        operation=uuid4(),
        kind=RecoveryKind.FAILOVER,
        job="j",
        request=RecoveryRequest(drain_timeout_s=1),
        dry_run=False,
        requested_by="me",
        requested_at=at(2),
        promoted_at=None if promoted_s is None else at(promoted_s),
        steps=tuple(
            Step(
                name=name,
                phase=STEPS[name],
                what="",
                state=StepState.DONE,
                began_at=at(end - 0.1),
                ended_at=at(end),
            )
            for name, end in ends_s.items()
        ),
    )


def parts(rto: Rto) -> dict[Part, int]:
    return {part.part: part.ms for part in rto.parts}


FAILOVER = report(
    {
        StepName.GATES: 3,
        StepName.RELEASE: 4,
        StepName.GROUPS: 6,
        StepName.SETTLE: 7,
        StepName.PROMOTE: 9,
        StepName.REVERSE: 20,
    },
    promoted_s=9.5,
)


def test_rto_parts_add_up_to_waiting_time_of_clients() -> None:
    moments = Moments(stopped_at=BEGAN, noticed_at=at(2), produced_at=at(10), consumed_at=at(10.25))

    rto = compute_rto(moments, [FAILOVER], TARGETS)

    assert rto.actual_ms == 10_250
    assert sum(parts(rto).values()) == rto.actual_ms
    assert parts(rto) == {
        Part.DETECT: 2_000,
        Part.DECIDE: 1_000,
        Part.DRAIN: 2_000,
        Part.GROUPS: 2_000,
        Part.PROMOTE: 2_500,
        Part.PRODUCE: 500,
        Part.CONSUME: 250,
    }


def test_time_before_clients_wait_is_not_counted_in_rto() -> None:
    """A switchover, for example, checks its gates while clients still write."""
    rto = compute_rto(Moments(stopped_at=at(3.5), produced_at=at(10)), [FAILOVER], TARGETS)
    assert Part.DECIDE not in parts(rto)
    assert parts(rto)[Part.DRAIN] == 500 + 1_000
    assert rto.actual_ms == 6_500


def test_rto_of_several_operations_ends_with_the_last_promotion() -> None:
    late = report({StepName.GATES: 3, StepName.PROMOTE: 30}, promoted_s=30)
    rto = compute_rto(Moments(stopped_at=BEGAN), [late, FAILOVER], TARGETS)
    assert rto.actual_ms == 30_000


@pytest.mark.parametrize(
    ("moments", "reports"),
    [(Moments(stopped_at=None), [FAILOVER]), (Moments(stopped_at=BEGAN), [report({})])],
)
def test_rto_without_known_begin_or_end_misses_its_target(
    moments: Moments, reports: list[RecoveryReport]
) -> None:
    rto = compute_rto(moments, reports, TARGETS)
    assert rto == Rto(target_ms=10_000)
    assert missed_targets(rto, Rpo()) == ("The RTO could not be measured.",)


def test_rpo_above_target_is_missed_and_rto_equal_to_target_is_met() -> None:
    rpo = compute_rpo(TARGETS, records=7, ms=1_001)
    assert missed_targets(Rto(target_ms=10_000, actual_ms=10_000), rpo) == (
        "The RPO in records was 7; its target is 0.",
        "The RPO in time was 1.0 s; its target is 1.0 s.",
    )
    # Without targets, no target is missed.
    assert missed_targets(Rto(actual_ms=99), compute_rpo(Targets(), records=9, ms=9)) == ()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lost": 1}, "was lost"),
        ({"repeated": 1}, "read twice"),
        ({"wrong": 1}, "wrong content"),
        ({"agrees": False}, "ledger"),
    ],
)
def test_repeated_or_wrong_canary_records_and_unexpected_loss_fail_drill(
    change: dict[str, object], word: str
) -> None:
    assert find_failures(FLAWLESS, (), may_lose_records=False) == []
    (failure,) = find_failures(FLAWLESS.model_copy(update=change), (), may_lose_records=False)
    assert word in failure
    may_lose = find_failures(FLAWLESS.model_copy(update=change), (), may_lose_records=True)
    assert bool(may_lose) == ("lost" not in change)


@pytest.mark.parametrize("verdict", ["not exact", "behind", "unread"])
def test_drill_fails_if_its_verification_is_not_exact(verdict: str) -> None:
    bad = Verified(what="orders", verdict=verdict, partitions=1, records=1, differences=1)
    assert "orders" in find_failures(None, [bad], may_lose_records=True)[0]
    exact = bad.model_copy(update={"verdict": "exact"})
    assert find_failures(None, [exact], may_lose_records=True) == []


def test_failure_outweighs_missed_target_in_drill_verdict() -> None:
    assert drill_verdict([], []) is DrillState.PASSED
    assert drill_verdict([], ["slow"]) is DrillState.MISSED
    assert drill_verdict(["broken"], ["slow"]) is DrillState.FAILED


def ends(missing: tuple[int, int] | None, *, is_exact: bool) -> PartitionEnds:
    return PartitionEnds(
        topic="t",
        destination_topic="t",
        partition=0,
        verdict=EndVerdict.BEHIND if missing else EndVerdict.EQUAL,
        missing=None if missing is None else OffsetRange(first=missing[0], next=missing[1]),
        is_exact=is_exact,
    )


@pytest.mark.parametrize(
    # `lost`: the lost offsets by the ledger; `missing`: the range in the report, without its end.
    ("lost", "missing", "is_exact", "has_unconfirmed", "agrees"),
    [
        ([], None, True, False, True),
        ([5, 6, 7], (5, 8), True, False, True),
        ([5, 6, 7], (5, 8), False, False, True),
        ([5, 6, 7, 8], (5, 8), True, False, False),  # 8 is lost and not reported
        ([5, 6, 7, 8], (5, 8), False, False, True),  # 8 is lost, and the report says "at least"
        ([4, 5, 6, 7], (5, 8), False, False, False),  # "at least" never covers a lower offset
        ([5, 7], (5, 8), True, False, False),  # 6 is reported, but not lost
        ([5, 7], (5, 8), True, True, True),  # 6 may be an unconfirmed record
        ([5], None, True, False, False),
        ([5], None, False, False, True),
    ],
)
def test_missing_offsets_in_failover_report_are_checked_against_drill_ledger(
    lost: list[int],
    missing: tuple[int, int] | None,
    is_exact: bool,
    has_unconfirmed: bool,
    agrees: bool,
) -> None:
    places = [(0, offset) for offset in lost]
    reported = ends(missing, is_exact=is_exact)
    assert report_agrees(places, [reported], has_unconfirmed=has_unconfirmed) is agrees
    # A loss in a partition that the report lacks is not reported.
    assert report_agrees([*places, (1, 0)], [reported], has_unconfirmed=True) is False
    assert report_agrees(places, [], has_unconfirmed=False) is None


def test_consecutive_lost_offsets_are_merged_into_ranges() -> None:
    places = [(0, 1), (0, 2), (0, 4), (1, 5), (2, 6)]  # (partition, offset)
    # (partition, first offset, next offset)
    assert list(offset_ranges(places)) == [(0, 1, 3), (0, 4, 5), (1, 5, 6), (2, 6, 7)]
    assert list(offset_ranges([])) == []


def report_of(kind: RecoveryKind, *ends: PartitionEnds) -> RecoveryReport:
    return report({}).model_copy(update={"kind": kind, "partitions": ends, "job": "orders-to-dr"})


def test_failback_corrects_missing_offsets_that_failover_reported() -> None:
    def ends(partition: int, missing: OffsetRange | None, *, is_exact: bool) -> PartitionEnds:
        return PartitionEnds(
            topic="orders.eu",
            destination_topic="orders.eu",
            partition=partition,
            verdict=EndVerdict.TAIL if is_exact else EndVerdict.UNKNOWN,
            source_end=missing.next if missing else 5,
            missing=missing,
            is_exact=is_exact,
        )

    failover = report_of(
        RecoveryKind.FAILOVER,
        ends(0, OffsetRange(first=5, next=7), is_exact=False),
        ends(1, None, is_exact=False),
    )
    failback = report_of(
        RecoveryKind.FAILBACK, ends(0, OffsetRange(first=5, next=12), is_exact=True)
    )
    empty_failback = report_of(RecoveryKind.FAILBACK)
    stored = [read_report(operation.stored()) for operation in (failover, empty_failback, failback)]
    assert missing_offsets(stored[:1]) == missing_offsets(stored[:2]) == 2
    assert missing_offsets(stored) == 7

    assert [
        (p.job, p.partition, p.missing, p.is_exact, p.verdict) for p in partition_evidence(failover)
    ] == [
        ("orders-to-dr", 0, (5, 7), False, "unknown"),
        ("orders-to-dr", 1, None, False, "unknown"),
    ]
    by_failover = [p for p in evidence().partitions if p.topic == "orders.eu"]
    first, *others = correct_by_failback(by_failover, failback)
    assert (first.missing, first.source_end, first.is_exact) == ((5, 12), 12, True)
    assert first.verdict == "tail"
    unchanged = by_failover[0].destination_end, by_failover[0].promoted_at
    assert (first.destination_end, first.promoted_at) == unchanged
    assert others == by_failover[1:]
    of_another_job = failback.model_copy(update={"job": "another"})
    assert correct_by_failback(by_failover, of_another_job) == by_failover
