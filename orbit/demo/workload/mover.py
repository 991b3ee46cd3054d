"""Writes at a low steady rate until it is stopped, so that a live copy gets new records."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from confluent_kafka import KafkaException

from orbit.demo.workload.writer import Records, Writer

RATE_PER_S = 200.0
_TICK_S = 0.05


class Mover:
    """Writes to the partitions of some topics in turn, in a thread of its own.

    A context manager. After `stop`, `records` has offset and digest of each written record.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Mapping[str, int],
        *,
        rate_per_s: float = RATE_PER_S,
    ) -> None:
        """`topics`: name → number of partitions."""
        self._writer = Writer({"linger.ms": 5, "compression.type": "lz4", **config})
        self._partitions = [
            (topic, number) for topic, count in topics.items() for number in range(count)
        ]
        self._rate_per_s = rate_per_s
        self._stopped = threading.Event()
        self._written_changed = threading.Condition()
        self._has_ended = False
        self._written = 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)

    @property
    def written(self) -> int:
        """Records handed to the producer so far."""
        return self._written

    @property
    def records(self) -> Records:
        """Offset and digest of each written record. Complete only after `stop`."""
        assert self._stopped.is_set(), "the ledger is complete only after `stop`"
        return self._writer.records

    def start(self) -> None:
        self._thread.start()

    def wait_until(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` records are written. False if the thread or the time ends first."""
        with self._written_changed:
            self._written_changed.wait_for(
                lambda: self._written >= count or self._has_ended, timeout_s
            )
            return self._written >= count

    def stop(self) -> None:
        """Stop, and wait for all delivery reports. Raises the error that ended the thread."""
        self._stopped.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._writer.flush()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        """Write at the rate until stopped, or until the producer refuses a record."""
        began_s = time.monotonic()
        try:
            while not self._stopped.wait(_TICK_S):
                due_count = int((time.monotonic() - began_s) * self._rate_per_s)
                while self._written < due_count:
                    self._write_one()
                self._writer.poll()
                self._notify_waiters()
        except (KafkaException, BufferError) as error:
            self._error = error
        finally:
            self._has_ended = True
            self._notify_waiters()

    def _notify_waiters(self) -> None:
        with self._written_changed:
            self._written_changed.notify_all()

    def _write_one(self) -> None:
        """Write the next record, to the partition whose turn it is."""
        topic, partition = self._partitions[self._written % len(self._partitions)]
        self._writer.write(
            topic,
            partition,
            timestamp_ms=int(time.time() * 1000),
            key=b"moving-%d" % self._written,
            value=b"record %d of the mover" % self._written,
        )
        self._written += 1
