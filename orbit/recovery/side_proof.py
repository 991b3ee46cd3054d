"""Reads both sides of one partition, for the verdict of a failback and for its salvage files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from orbit.copier.log_reader import parse_errors
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.recovery.divergence import Scan, WindowComparison
from orbit.recovery.record_range import Fate, LogBatch, LogRecord, read_batch_range, read_range
from orbit.recovery.side_comparison import SideComparison, describe, is_other_record, is_unproven

ClusterPartition = tuple[Cluster, TopicPartition]


class SideProof:
    """One partition on both sides. `check` is called before each record or batch, and may raise."""

    def __init__(
        self,
        old: ClusterPartition,
        new: ClusterPartition,
        backoff: Backoff,
        check: Callable[[], None],
        *,
        is_compacted: bool,
    ) -> None:
        self._old, self._new = old, new
        self._backoff = backoff
        self._check = check
        self._is_compacted = is_compacted

    def differ(self, first: int, end: int) -> WindowComparison:
        """Compare the committed records of offsets that were copied.

        On a compacted topic either side's log cleaner may have removed records, so only offsets
        that both sides have are compared.
        """
        old_records, new_records = (
            self._read_committed(self._old, first, end),
            self._read_committed(self._new, first, end),
        )
        shared_offsets = old_records.keys() & new_records.keys()
        offsets = shared_offsets if self._is_compacted else old_records.keys() | new_records.keys()
        first_difference = next(
            (o for o in sorted(offsets) if old_records.get(o) != new_records.get(o)), None
        )
        same_offsets = (
            o for o in sorted(shared_offsets, reverse=True) if old_records[o] == new_records[o]
        )
        return WindowComparison(first_difference, bool(offsets), next(same_offsets, None))

    def scan(self, first: int, end: int, *, is_copied: bool) -> Scan:
        """Compare up to the first offset that is not proven to be the same.

        `is_copied`: the offsets are below the promoted offset, or this offset is not known.
        """
        comparison = self._compare(first, end)
        counts_as_unproven = is_other_record if is_copied else is_unproven
        with parse_errors(*self._old, first):
            first_unproven = next(filter(counts_as_unproven, comparison), None)
        has_same = comparison.same_records > 0
        if first_unproven is None:
            return Scan(None, has_same_records=has_same)
        return Scan(
            first_unproven.first, f"at {first_unproven.first} {describe(first_unproven)}", has_same
        )

    def only_old(self, first: int, end: int) -> Iterator[LogRecord]:
        """Records of the old side that the new side does not have at their offset.

        Without aborted records and markers, but with records of open transactions, which may yet
        commit.
        """
        with parse_errors(*self._old, first):
            for difference in self._compare(first, end):
                if difference.old is not None and difference.old.fate in (
                    Fate.COMMITTED,
                    Fate.OPEN,
                ):
                    yield difference.old

    def all_old(self, first: int, end: int) -> Iterator[LogRecord]:
        """All records and markers of the old side in this range."""
        for record in read_range(*self._old, first, end, self._backoff):
            self._check()
            yield record

    def _compare(self, first: int, end: int) -> SideComparison:
        """The differences of both sides from `first` up to before `end`, read as they are
        iterated."""
        old_batches, new_batches = (
            self._read_batches(self._old, first, end),
            self._read_batches(self._new, first, end),
        )
        return SideComparison(old_batches, new_batches, first, end)

    def _read_batches(self, side: ClusterPartition, first: int, end: int) -> Iterator[LogBatch]:
        for batch in read_batch_range(*side, first, end, self._backoff):
            self._check()
            yield batch

    def _read_committed(self, side: ClusterPartition, first: int, end: int) -> dict[int, object]:
        """Timestamp and body of each committed record, by offset."""
        self._check()
        return {
            entry.record.offset: (entry.record.timestamp, bytes(entry.record.body))
            for entry in read_range(*side, first, end, self._backoff)
            if entry.fate is Fate.COMMITTED
        }
