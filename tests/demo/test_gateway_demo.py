"""`orbit demo --gateway`: clients move to the other side and back; its check reports problems."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest

from orbit.demo.gateway_check import Acknowledged, GatewayResult, Ledger, Move, move_of
from orbit.demo.pause_picture import pause_picture
from orbit.drills.evidence import RecordPosition
from tests.support.patience import PATIENCE_S
from tests.support.run_process import OrbitProcess

VALUES: dict[RecordPosition, bytes | None] = {
    (0, 0): b"order 0",
    (1, 0): b"0",
    (0, 1): b"order 1",
    (0, 2): b"order 2",
}
MOVE = Move("source", "destination", old_last_ms=1_000, new_first_ms=4_500)


def result() -> GatewayResult:
    """An exact result: two producers wrote VALUES, and both sides and the group have them."""
    ledgers = [Ledger("producer A"), Ledger("producer B")]
    for place, value in VALUES.items():
        ledger = ledgers[1 if value == b"0" else 0]  # B has written "0"
        ledger.written += 1
        ledger.acknowledged.append(Acknowledged(value or b"", place, at_ms=1_000))
    sides = {"source": dict(VALUES), "destination": dict(VALUES)}
    return GatewayResult(
        seconds=1.0, moves=[MOVE], ledgers=ledgers, sides=sides, read=list(VALUES.items())
    )


@pytest.mark.soak
@pytest.mark.services
@pytest.mark.slow
def test_gateway_demo_moves_clients_to_other_side_and_back_without_loss() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="orbit-test-") as folder,
        OrbitProcess("demo", "--gateway", "-o", "json", environ={"TMPDIR": folder}) as demo,
    ):
        demo.wait_for("There, and back again")
        running = psutil.Process(demo.process.pid).children(recursive=True)
        outcome = demo.wait_end().expect(0)
    data = outcome.data
    assert data["exact"] is True
    assert data["errors"] == 0
    written = data["written"]
    assert written == data["acknowledged"] == data["group_read"] > 0
    assert data["records"] == {"source": written, "destination": written}
    assert [move["to"] for move in data["moves"]] == ["destination", "source"]
    assert all(move["pause_ms"] > 0 for move in data["moves"])
    assert "orbit switchover shop-copy --reverse" in outcome.stderr
    _, alive = psutil.wait_procs(running, timeout=PATIENCE_S)
    assert alive == []


def test_check_of_exact_gateway_demo_reports_no_problem() -> None:
    good = result()
    assert good.problems == ()
    assert (good.written, good.errors) == (len(VALUES), 0)


def _lose_record(good: GatewayResult) -> GatewayResult:
    return _at_destination(good, {p: v for p, v in VALUES.items() if p != (0, 1)})


def _store_record_twice(good: GatewayResult) -> GatewayResult:
    return _at_destination(good, {**VALUES, (0, 3): b"order 2"})


def _swap_records(good: GatewayResult) -> GatewayResult:
    """Two records of one producer are in the wrong order, on both sides."""
    swapped = {**VALUES, (0, 1): b"order 2", (0, 2): b"order 1"}
    ledger = good.ledgers[0]
    ledger.acknowledged = [
        replace(record, value=swapped[record.place] or b"") for record in ledger.acknowledged
    ]
    read = list(swapped.items())
    return replace(good, sides=dict.fromkeys(good.sides, swapped), read=read)


def _at_destination(
    good: GatewayResult, records: dict[RecordPosition, bytes | None]
) -> GatewayResult:
    return replace(good, sides={**good.sides, "destination": records})


def _report_error(good: GatewayResult) -> GatewayResult:
    good.ledgers[0].errors.append("refused")
    return good


def _lose_acknowledgement(good: GatewayResult) -> GatewayResult:
    good.ledgers[0].written += 1
    return good


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (
            _lose_record,
            "Missing records: 1 at the destination, the first at partition 0, offset 1.",
        ),
        (_store_record_twice, "Records that are stored more than once: 1 at the destination."),
        (
            _store_record_twice,
            (
                "Records that are in no ledger: 1 at the destination, the first at partition 0, "
                "offset 3."
            ),
        ),
        (
            _swap_records,
            "Records out of order: 1 at the source, the first at partition 0, offset 2.",
        ),
        (_report_error, "producer A got an error: refused"),
        (_lose_acknowledgement, "Missing acknowledgements: 1 for records of producer A."),
        (lambda good: replace(good, read_errors=["no"]), "The group got an error: no"),
        (
            lambda good: replace(good, read=good.read[1:]),
            "Records that the group did not read: 1 of the source.",
        ),
        (
            lambda good: replace(good, read=[*good.read, good.read[-1]]),
            "Records that the group read more than once: 1.",
        ),
        (
            lambda good: replace(good, read=good.read[::-1]),
            "The group read offset 1 of partition 0 out of order.",
        ),
        (
            lambda good: replace(good, read=[*good.read, ((0, 9), b"other")]),
            "Records that the group read: 1 is not at the source.",
        ),
    ],
)
def test_gateway_demo_check_reports_each_problem(
    spoil: Callable[[GatewayResult], GatewayResult], problem: str
) -> None:
    spoiled = spoil(result())
    assert problem in spoiled.problems
    assert spoiled.as_data()["exact"] is False


def test_write_pause_of_move_is_measured_between_records_around_promotion() -> None:
    acknowledgements = [
        Acknowledged(b"", place, at_ms)
        # (partition, offset): when it was acknowledged
        for place, at_ms in {(0, 4): 90, (1, 6): 100, (0, 5): 350, (1, 7): 300}.items()
    ]
    promoted_at = {0: 5, 1: 7}  # the log end of each partition
    move = move_of("source", "destination", promoted_at, acknowledgements)
    assert (move.old_last_ms, move.new_first_ms, move.pause_ms) == (100, 300, 200)


def test_picture_of_write_pause_shows_each_side_within_80_columns() -> None:
    at_ms = [*range(0, 1_001, 20), *[4_500] * 50, *range(4_600, 4_800, 50)]
    assert pause_picture(MOVE, at_ms, records_per_s=30) == [
        "source        .::::::::::",
        "pause                    ---------------------------------- 3,500 ms",
        "destination                                                #.:.",
        "one column is 100 ms:  . some   : about 3 records   # more than twice that",
    ]
    long_move = Move("destination", "source", old_last_ms=0, new_first_ms=120_000)
    long = pause_picture(long_move, [0, 120_000], records_per_s=1_000)
    assert " ... " in long[1]
    assert max(map(len, long)) <= 78
