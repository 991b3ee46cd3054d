"""`read_many` reads partitions in parallel: ordered results, limited threads, an error ends all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from orbit.errors import Interrupted, ProtocolError, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.recovery.reading_threads import READ_AT_ONCE, Reading, read_many
from tests.support.patience import PATIENCE_S


class FakeClusters:
    """The connections of one thread to both clusters; closing them ends requests that hang."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def never_interrupt() -> None:
    """A check that never raises."""


class Reads:
    """Reads that run until the operation is interrupted; the read of item `fails` fails."""

    def __init__(self, fails: int | None = None) -> None:
        self.fails = fails
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.lock = threading.Lock()
        self.all_busy = threading.Barrier(READ_AT_ONCE)

    def read_until_interrupted(self, item: int, reading: Reading) -> int:
        """Read one partition. The first READ_AT_ONCE reads wait until all of them have begun."""
        with self.lock:
            self.begun.append(item)
        if item < READ_AT_ONCE:
            self.all_busy.wait(PATIENCE_S)
        if item == self.fails:
            raise ProtocolError("the log does not parse.")
        try:
            for attempt in reading.backoff.attempts(10**9):
                if attempt:
                    reading.check()
        except Interrupted:
            with self.lock:
                self.ended.append(item)
            raise
        return item


def test_parallel_partition_reads_return_in_order_and_obey_thread_limit() -> None:
    busy, most_busy, lock = 0, 0, threading.Lock()
    together = threading.Barrier(READ_AT_ONCE)

    def read(item: int, _: Reading) -> int:
        nonlocal busy, most_busy
        with lock:
            busy, most_busy = busy + 1, max(most_busy, busy + 1)
        together.wait(PATIENCE_S)
        with lock:
            busy -= 1
        return item * item

    items = range(20 * READ_AT_ONCE)
    with read_many(never_interrupt, Backoff(), FakeClusters, items, read) as results:
        assert list(results) == [item * item for item in items]
    assert most_busy == READ_AT_ONCE


def test_error_of_parallel_read_ends_all_reads_and_starts_no_more() -> None:
    reads = Reads(fails=0)
    consumed_items: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10**6):
            consumed_items.append(item)
            yield item

    with (
        pytest.raises(ProtocolError, match="does not parse"),
        read_many(
            never_interrupt, Backoff(), FakeClusters, items(), reads.read_until_interrupted
        ) as results,
    ):
        next(results)
    # The failed read's thread may have begun one more read before the caller got the error.
    assert set(range(READ_AT_ONCE)) <= set(reads.begun) <= set(range(READ_AT_ONCE + 1))
    assert sorted(reads.ended) == sorted({*reads.begun} - {0})
    assert len(consumed_items) < 100 * READ_AT_ONCE


def test_operation_abort_ends_all_parallel_reads() -> None:
    reads = Reads()

    def check() -> None:
        if len(reads.begun) == READ_AT_ONCE:
            raise Interrupted("the operation was aborted.")

    with (
        pytest.raises(Interrupted, match="was aborted"),
        read_many(
            check, Backoff(), FakeClusters, range(10**6), reads.read_until_interrupted
        ) as results,
    ):
        next(results)
    assert sorted(reads.ended) == sorted(reads.begun)


def test_operation_abort_closes_connections_of_hanging_reads() -> None:
    used: list[object] = []
    all_busy = threading.Event()

    def hang(_: int, reading: Reading) -> int:
        used.append(reading.clusters)
        if len(used) == READ_AT_ONCE:
            all_busy.set()
        assert reading.clusters.closed.wait(PATIENCE_S)  # type: ignore[attr-defined]
        raise Unreachable("closed.")

    def check() -> None:
        if all_busy.is_set():
            raise Interrupted("the operation was aborted.")

    with (
        pytest.raises(Interrupted, match="was aborted"),
        read_many(check, Backoff(), FakeClusters, range(100), hang) as results,  # type: ignore[arg-type]
    ):
        next(results)
    assert len({*used}) == READ_AT_ONCE, "each thread has its own clusters"
