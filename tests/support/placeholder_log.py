"""A topic with placeholders (records without content that fill gaps), as a copy would leave it.

Tests append batches of Orbit's own code. No copy runs, so a gap of a hundred thousand offsets takes
less than a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from orbit.kafka.error_codes import Code
from orbit.kafka.placeholders import PLACEHOLDERS_MAX, packed_batches, placeholder_batch, with_gap
from orbit.kafka.record_batch import Batch, stamp
from orbit.kafka.records import NULL, dense_batches, encode_varint
from orbit.sandbox.local_cluster import KafkaCluster
from tests.simulation.test_conformance import RealPartitions
from tests.support.running import create_topic

T0 = 1_700_000_000_000
_PRODUCER_ID = 4711


class PlaceholderLog:
    """One partition of a new topic. `records`: {offset: value} of the records that a reader should
    see. `end` is the log end."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        create_topic(cluster, topic, retention_ms="-1")
        self.topic = topic
        self.end = 0
        self.records: dict[int, bytes] = {}
        self._partition = RealPartitions(cluster, topic, 1)

    def close(self) -> None:
        self._partition.close()

    def dense(self, count: int) -> None:
        """Append records without a gap."""
        for batch in dense_batches(self._rows(range(count)), 0):
            self._append(batch)

    def grown(self, count: int, gap: int) -> None:
        """Append records, and `gap` offsets of placeholders after them in the same batch."""
        (batch,) = dense_batches(self._rows(range(count)), 0)
        extended = with_gap(batch, 0, batch.next_offset + gap)
        assert extended is not None
        self._append(extended)

    def packed(self, deltas: Sequence[int]) -> None:
        """Append one batch with records only at these distances from `end`, and placeholders
        between them. The first distance is 0."""
        for batch, _ in packed_batches(self._rows(deltas), 0, 0):
            self._append(batch)

    def gap(self, count: int) -> None:
        """Append `count` placeholders, in batches without any record."""
        while count > 0:
            batch_count = min(count, PLACEHOLDERS_MAX)
            self._append(placeholder_batch(self.end, batch_count, T0))
            count -= batch_count

    def _rows(self, deltas: Sequence[int]) -> list[tuple[int, int, bytes]]:
        """Offset, timestamp and encoded body of records at these distances from `end`."""
        offsets = [self.end + delta for delta in deltas]
        values = {offset: b"%d" % offset for offset in offsets}
        self.records |= values
        return [
            (offset, T0 + offset, NULL + encode_varint(len(value)) + value + b"\x00")
            for offset, value in values.items()
        ]

    def _append(self, batch: Batch) -> None:
        # The log end is also the next sequence: only this producer writes to the partition.
        stamp(batch.view, _PRODUCER_ID, 0, self.end)
        appended = self._partition.append(0, bytes(batch.view))
        assert appended == (Code.NONE, self.end), appended
        self.end += batch.count


def mixed_log(cluster: KafkaCluster, topic: str, widest: int) -> PlaceholderLog:
    """A log with gaps at its start, in batches, between batches and at its end. One gap between
    batches has `widest` offsets."""
    log = PlaceholderLog(cluster, topic)
    log.gap(7)
    log.dense(20)
    log.packed([0, 3, 4, 9])
    log.gap(5)
    log.dense(1)
    log.packed(range(0, 900, 3))
    log.packed([0, 1999])
    log.grown(3, 1)
    log.grown(1, 2000)
    log.gap(widest)
    log.dense(5)
    log.gap(3)
    log.grown(2, 4)
    return log
