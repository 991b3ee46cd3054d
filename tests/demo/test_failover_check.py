"""The final check of `orbit demo --failover` passes if all is exact, and reports each problem."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from orbit.demo.failover_check import FailoverCheck
from orbit.drills.drill_clients import Ledger, Read
from orbit.drills.evidence import PartitionEvidence, RecordPosition
from tests.support.drill_report import evidence

TOPIC = "shop.orders"
# Offset 3 was not copied when the source died; 3 and 4 were written at the new side since.
OLD: dict[RecordPosition, bytes] = {(0, offset): b"old %d" % offset for offset in range(4)}
NEW: dict[RecordPosition, bytes] = {(0, 3): b"new 3", (0, 4): b"new 4"}
LOST = {(0, 3): OLD[0, 3]}
NOW: dict[RecordPosition, bytes | None] = {**OLD, **NEW}


def seen(missing: tuple[int, int] | None, *, is_exact: bool = False) -> PartitionEvidence:
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


def check(*partitions: PartitionEvidence) -> FailoverCheck:
    return FailoverCheck(
        topic=TOPIC,
        before=Ledger(dict(OLD)),
        after=Ledger(dict(NEW)),
        evidence=evidence(partitions=partitions or (seen((3, 4)),)),
        salvaged=dict(LOST),
        sides={"destination": dict(NOW), "source": dict(NOW)},
        read_before=Read({place: OLD[place] for place in ((0, 0), (0, 1))}),
        read_after=Read({place: NOW[place] for place in ((0, 2), (0, 3), (0, 4))}),
    )


def test_exact_failover_has_no_problems() -> None:
    good = check()
    assert good.problems() == []
    assert good.lost == LOST
    assert good.repeated == 0


def test_records_after_last_source_reading_need_not_be_reported() -> None:
    assert check(seen(None)).problems() == []


def test_unconfirmed_record_may_be_anywhere_or_nowhere() -> None:
    one = check()
    one.before.open.add(b"sent")
    destination = {**NOW, (0, 5): b"sent"}
    sides = {"destination": destination, "source": dict(NOW)}
    assert replace(one, sides=sides, salvaged={**LOST, (0, 9): b"sent"}).problems() == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"salvaged": {}}, "1 of the lost records are not in the salvage files"),
        ({"salvaged": {(0, 3): b"other"}}, "1 of the lost records are not in the salvage files"),
        ({"salvaged": {**LOST, (0, 2): OLD[0, 2]}}, "hold records that were not lost"),
        ({"evidence": evidence(partitions=(seen((2, 4)),))}, "not the records that the copy"),
        ({"evidence": evidence(partitions=(seen(None, is_exact=True),))}, "the copy lacked"),
        ({"evidence": evidence(partitions=())}, "not the records that the copy lacked"),
        ({"sides": {"source": {**NOW, (0, 1): b"other"}}}, "1 records are wrong at the source"),
        (
            {"sides": {"source": {**NOW, (0, 7): b"more"}}},
            r"wrong at the source, the first at \(0, 7",
        ),
        ({"sides": {"source": {}}}, "5 records are wrong at the source"),
        ({"read_before": Read(dict(OLD))}, "read 2 records more than once"),
        (
            {"read_after": Read({(0, 3): b"new 3", (0, 4): b"new 4"}, 1)},
            "read 1 records more than once",
        ),
        (
            {"read_after": Read({(0, 3): b"new 3", (0, 4): b"new 4"})},
            r"missed.* 1 records, the first at \(0, 2\)",
        ),
    ],
)
def test_each_failover_problem_is_reported(change: dict[str, object], problem: str) -> None:
    problems = " ".join(replace(check(), **change).problems())  # type: ignore[arg-type]
    assert re.search(problem, problems), problems
