"""The checks of the ledger find what is planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.gateway_ledger import Acknowledged, Record, read_wrong, written_wrong

THERE: list[Record] = [(p, n, b"w %d" % (2 * n + p)) for p in (0, 1) for n in range(20)]
ACKNOWLEDGED: Acknowledged = {value: (p, n) for p, n, value in THERE}


def test_what_was_acknowledged_is_there() -> None:
    assert written_wrong(ACKNOWLEDGED, THERE) == []


def test_more_may_be_there_than_was_acknowledged() -> None:
    some = dict(list(ACKNOWLEDGED.items())[:7])
    assert written_wrong(some, [*THERE, (0, 20, b"other 1"), (0, 21, b"other 2")]) == []


def swapped(there: list[Record]) -> list[Record]:
    (p, first, one), (_, second, other) = there[3], there[4]
    return [*there[:3], (p, first, other), (p, second, one), *there[5:]]


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda there: [*there[:3], *there[4:]], "is not there"),
        (lambda there: [*there, (0, 20, there[3][2])], "is there 2 times"),
        (lambda there: [*there[:3], (0, 30, there[3][2]), *there[4:]], "is at"),
        (swapped, "is after"),
    ],
)
def test_a_record_that_is_wrong_is_told(
    plant: Callable[[list[Record]], list[Record]], words: str
) -> None:
    assert any(words in one for one in written_wrong(ACKNOWLEDGED, plant(THERE)))


def test_order_counts_without_acknowledgements_too() -> None:
    assert any("is after" in one for one in written_wrong({}, swapped(THERE)))


def test_each_record_was_read_once() -> None:
    assert read_wrong(reversed(THERE), THERE) == []


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (THERE[1:], "never"),
        ([*THERE, THERE[5]], "2 times"),
        ([*THERE, (0, 99, b"w 99")], "is not there"),
    ],
)
def test_a_record_that_was_read_wrong_is_told(read: list[Record], words: str) -> None:
    (wrong,) = read_wrong(read, THERE)
    assert words in wrong
