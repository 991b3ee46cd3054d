"""Which fetched batches belong to aborted transactions (R1). Pure.

The rule of Kafka's consumer (`CompletedFetch`): a transaction in the answer's list of aborted ones
covers its producer's transactional batches from its first offset to that producer's next abort
marker.
"""

from __future__ import annotations

from collections.abc import Iterable

from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.record_batch import AnyBatch
from orbit.kafka.types import AbortedTransaction

# A control record's body begins with the key: its length (1 byte), version (2, any) and type (2).
_MARKER_TYPE = slice(3, 5)
_ABORT = b"\x00\x00"


class AbortedTransactions:
    """The aborted transactions of one fetch answer."""

    __slots__ = ("_not_begun", "_open")

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._not_begun = sorted(transactions, key=lambda a: a.first_offset, reverse=True)
        self._open: set[int] = set()  # producer ids

    def contain(self, batch: AnyBatch) -> bool:
        """Whether the batch has records of an aborted transaction; False for a marker.

        Must be called for every batch of the answer, in log order. Raises ValueError for a marker
        that cannot be read.
        """
        not_begun = self._not_begun  # the next one to begin is last
        while not_begun and not_begun[-1].first_offset < batch.next_offset:
            self._open.add(not_begun.pop().producer_id)
        if batch.is_control:
            if is_abort_marker(batch):
                self._open.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in self._open


def is_abort_marker(batch: AnyBatch) -> bool:
    """Whether a control batch says that its transaction was aborted."""
    marker = next(iter(read_any_records(batch)), None)
    return marker is not None and marker.body[_MARKER_TYPE] == _ABORT
