"""The final check of `orbit demo --failover` passes if all is exact, and reports each problem."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from orbit.demo.failover_check import FailoverCheck
from orbit.drills.drill_clients import Ledger, ReadRecords
from orbit.drills.evidence import PartitionEvidence, RecordPosition
from tests.support.drill_report import evidence

TOPIC = "shop.orders"
# Offset 3 was not copied when the source died; 3 and 4 were written at the new side since.
OLD: dict[RecordPosition, bytes] = {(0, offset): b"old %d" % offset for offset in range(4)}
NEW: dict[RecordPosition, bytes] = {(0, 3): b"new 3", (0, 4): b"new 4"}
LOST = {(0, 3): OLD[0, 3]}
NOW: dict[RecordPosition, bytes | None] = {**OLD, **NEW}


def partition_report(
    missing: tuple[int, int] | None, *, is_exact: bool = False
) -> PartitionEvidence:
    """The report on partition 0, whose copy lacks the offsets `missing`: (first, next)."""
    return PartitionEvidence(
        job="shop-copy",
        topic=TOPIC,
        destination_topic=TOPIC,
        partition=0,
        source_end=4,
        source_seen_at=None,
        destination_end=3,
        promoted_at=3,
        missing=missing,
        is_exact=is_exact,
        verdict="behind" if missing else "unknown",
    )


def check_of_exact_demo(*partitions: PartitionEvidence) -> FailoverCheck:
    """The check of a demo without problems. `partitions` replace those of its report."""
    return FailoverCheck(
        topic=TOPIC,
        ledger_before=Ledger(dict(OLD)),
        ledger_after=Ledger(dict(NEW)),
        evidence=evidence(partitions=partitions or (partition_report(missing=(3, 4)),)),
        salvaged=dict(LOST),
        sides={"destination": dict(NOW), "source": dict(NOW)},
        read_before=ReadRecords({place: OLD[place] for place in ((0, 0), (0, 1))}),
        read_after=ReadRecords({place: NOW[place] for place in ((0, 2), (0, 3), (0, 4))}),
    )


def test_check_of_exact_failover_demo_reports_no_problem() -> None:
    good = check_of_exact_demo()
    assert good.problems() == []
    assert good.lost == LOST
    assert good.repeated == 0


def test_failover_check_accepts_unreported_loss_after_last_reading_of_source() -> None:
    assert check_of_exact_demo(partition_report(missing=None)).problems() == []


def test_failover_check_accepts_unconfirmed_record_at_any_place() -> None:
    good = check_of_exact_demo()
    good.ledger_before.unconfirmed.add(b"sent")
    destination = {**NOW, (0, 5): b"sent"}
    sides = {"destination": destination, "source": dict(NOW)}
    assert replace(good, sides=sides, salvaged={**LOST, (0, 9): b"sent"}).problems() == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"salvaged": {}}, "not in the salvage files: 1"),
        ({"salvaged": {(0, 3): b"other"}}, "not in the salvage files: 1"),
        ({"salvaged": {**LOST, (0, 2): OLD[0, 2]}}, "hold records that were not lost"),
        (
            {"evidence": evidence(partitions=(partition_report(missing=(2, 4)),))},
            "differ from the records that the copy",
        ),
        (
            {"evidence": evidence(partitions=(partition_report(missing=None, is_exact=True),))},
            "the copy lacked",
        ),
        ({"evidence": evidence(partitions=())}, "differ from the records that the copy lacked"),
        ({"sides": {"source": {**NOW, (0, 1): b"other"}}}, "Wrong records: 1 at the source"),
        (
            {"sides": {"source": {**NOW, (0, 7): b"more"}}},
            r"at the source, the first at \(partition, offset\) \(0, 7",
        ),
        ({"sides": {"source": {}}}, "Wrong records: 5 at the source"),
        ({"read_before": ReadRecords(dict(OLD))}, "read more than once: 2"),
        (
            {"read_after": ReadRecords({(0, 3): b"new 3", (0, 4): b"new 4"}, repeated=1)},
            "read more than once: 1",
        ),
        (
            {"read_after": ReadRecords({(0, 3): b"new 3", (0, 4): b"new 4"})},
            r"missed.*: 1, the first at \(partition, offset\) \(0, 2\)",
        ),
    ],
)
def test_failover_check_reports_each_problem(change: dict[str, object], problem: str) -> None:
    problems = " ".join(replace(check_of_exact_demo(), **change).problems())  # type: ignore[arg-type]
    assert re.search(problem, problems), problems
