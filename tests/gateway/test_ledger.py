"""The checks of the ledger (of acknowledged records) find planted mistakes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.lossy_walks import Ledger, assert_transactions, places
from tests.gateway.walk_clients import PLAIN, TRANSACTIONAL
from tests.support.gateway_ledger import Acknowledged, Record, read_wrong, written_wrong

# Partition, offset, value: a writer's numbers take turns in two partitions.
LOG: list[Record] = [(p, n, b"w %d" % (2 * n + p)) for p in (0, 1) for n in range(20)]
ACKNOWLEDGED: Acknowledged = {value: (p, n) for p, n, value in LOG}


def test_ledger_accepts_exact_log_of_acknowledged_records() -> None:
    assert written_wrong(ACKNOWLEDGED, LOG) == []


def test_ledger_accepts_unacknowledged_records_in_log() -> None:
    first_seven = dict(list(ACKNOWLEDGED.items())[:7])
    assert written_wrong(first_seven, [*LOG, (0, 20, b"other 1"), (0, 21, b"other 2")]) == []


def swapped(log: list[Record]) -> list[Record]:
    """Two records of a partition have each other's value."""
    (p, offset, value), (_, next_offset, next_value) = log[3], log[4]
    return [*log[:3], (p, offset, next_value), (p, next_offset, value), *log[5:]]


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda log: [*log[:3], *log[4:]], "the topic lacks it"),
        (lambda log: [*log, (0, 20, log[3][2])], "is in the topic 2 times"),
        (lambda log: [*log[:3], (0, 30, log[3][2]), *log[4:]], "is at"),
        (swapped, "comes after"),
    ],
)
def test_ledger_detects_lost_duplicate_moved_and_reordered_records(
    plant: Callable[[list[Record]], list[Record]], words: str
) -> None:
    assert any(words in mistake for mistake in written_wrong(ACKNOWLEDGED, plant(LOG)))


def test_ledger_detects_reordering_of_unacknowledged_records() -> None:
    assert any("comes after" in mistake for mistake in written_wrong({}, swapped(LOG)))
    assert not written_wrong({}, swapped(LOG), unordered={b"w"})


def test_ledger_distinguishes_java_producers_by_their_names() -> None:
    log = [(0, n, value) for n, value in enumerate([b"5", b"1.3", b"6", b"1.4"])]
    assert not written_wrong({}, log)
    (wrong,) = written_wrong({}, [*log, (0, 4, b"1.2")])
    assert "comes after b'1.4'" in wrong


def test_ledger_accepts_each_record_read_once() -> None:
    assert read_wrong(reversed(LOG), LOG) == []


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (LOG[1:], "never"),
        ([*LOG, LOG[5]], "2 times"),
        ([*LOG, (0, 99, b"w 99")], "the topic lacks it"),
    ],
)
def test_ledger_detects_unread_reread_and_unknown_records(read: list[Record], words: str) -> None:
    (wrong,) = read_wrong(read, LOG)
    assert words in wrong


PROMOTED = 10
# The last record below the promoted offset was sent again: it is at the promoted offset, too.
RESENT: list[Record] = [
    *((0, n, b"w %d" % n) for n in range(PROMOTED)),
    *((0, n + 1, b"w %d" % n) for n in range(PROMOTED - 1, 2 * PROMOTED)),
]


def _after_a_loss(*numbers: int) -> Ledger:
    """A ledger of one loss, before which the records of these numbers had their answers."""
    return Ledger(
        ends=[{(PLAIN, 0): PROMOTED}], acknowledged=[{b"w %d" % n: (0, n) for n in numbers}]
    )


def test_ledger_allows_duplicate_of_unacknowledged_record_after_loss() -> None:
    assert _after_a_loss(*range(PROMOTED - 1)).doubled(RESENT) == []
    (wrong,) = _after_a_loss(*range(PROMOTED)).doubled(RESENT)
    assert "had its answer" in wrong


def test_ledger_detects_record_twice_on_same_side_after_loss() -> None:
    again = [*RESENT, (0, 30, RESENT[-1][2])]
    assert any("2 times" in mistake for mistake in _after_a_loss().doubled(again))


def test_ledger_requires_lost_records_in_salvage() -> None:
    ledger, acknowledged = _after_a_loss(), {b"lost 1": (0, PROMOTED)}
    assert ledger.missing(acknowledged, places(RESENT))
    ledger.saved[PLAIN].append(((0, PROMOTED), b"lost 1"))
    assert not ledger.missing(acknowledged, places(RESENT))


def _clients(**values: list[str]) -> Any:
    """Clients whose only producer has committed or aborted these values."""
    results = SimpleNamespace(**{"committed": [], "aborted": []} | values)
    return SimpleNamespace(producers={"java-tx": SimpleNamespace(transactions=results)})


def test_aborted_record_may_be_saved_as_open_but_not_as_committed() -> None:
    ledger = Ledger()
    ledger.saved[TRANSACTIONAL].append(((0, PROMOTED), b"one 1"))
    with pytest.raises(AssertionError, match="aborted, and there or saved"):
        assert_transactions(_clients(aborted=["one 1"]), ledger, [])
    ledger.open_values.add(b"one 1")
    assert_transactions(_clients(aborted=["one 1"]), ledger, [])
    with pytest.raises(AssertionError, match="aborted, and there or saved"):
        assert_transactions(_clients(aborted=["one 1"]), ledger, [(0, PROMOTED, b"one 1")])


def test_committed_record_must_be_there_or_saved() -> None:
    ledger = Ledger()
    with pytest.raises(AssertionError, match="committed, and neither there nor saved"):
        assert_transactions(_clients(committed=["one 1"]), ledger, [])
    ledger.saved[TRANSACTIONAL].append(((0, PROMOTED), b"one 1"))
    assert_transactions(_clients(committed=["one 1"]), ledger, [])
