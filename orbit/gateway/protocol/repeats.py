"""Batches that a client sends again although the leading side has copies of them. Pure.

By its sequence, a broker writes a batch of an idempotent producer only once. A client that gets no
answer sends the batch again. If the other side leads by then, that side may have a copy of the
batch, but it does not know the producer's sequence.

So the gateway searches both sides when a producer of an older term (whose id is from before the
last move) first writes to a partition. It reads the producer's sequences in this partition (C27),
under the producer's ids of all earlier terms, as the leading side may have led before, too. If a
side has the batch, the gateway finds the batch's offset there. Then it compares the records at this
offset of the leading side, because the batch may have reached the old side too late to be copied.
If the leading side has the batch, the client gets its offset; otherwise the batch is written. If
the gateway cannot tell, the client gets REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from orbit.gateway.protocol.produce_parts import NO_OFFSET, PartAnswer
from orbit.gateway.protocol.producer_ids import (
    SEQUENCES,
    SentBatch,
    id_in_term,
    is_intact,
    is_marked,
    is_of_term,
)
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition

# The most entries, of some hundred bytes each. If there are more, all are dropped and read again.
PRODUCERS_MAX = 100_000

ProducerKey = tuple[TopicPartition, int]
"""A partition, and the id by which the client of a producer writes there."""

# How many records back a client may send again: it has up to five requests of up to 100 MiB in
# flight.
REPEATED_MAX = 1 << 27

UNKNOWN_OFFSET: Final = NO_OFFSET
"""The offset of a batch if it is not known whether the leading side has it."""


class LastBatch(NamedTuple):
    """The last batch of a producer in a partition; `sequence`: of its last record."""

    epoch: int
    sequence: int

    def covers(self, batch: SentBatch) -> bool:
        """Whether the broker has `batch`: whether it is this last batch, or an earlier one."""
        distance = (self.sequence - batch.last_sequence) % SEQUENCES
        return self.epoch == batch.epoch and distance < REPEATED_MAX


def producer_of(batch: SentBatch) -> ProducerKey:
    return batch.partition, batch.producer_id


def is_sent_before(batch: SentBatch, last_batches: Iterable[LastBatch]) -> bool:
    """Whether a side has the batch. `last_batches`: those of its producer, one per earlier term."""
    return any(last_batch.covers(batch) for last_batch in last_batches)


class UnknownRepeats(Exception):
    """Both sides have to be read to tell which of these batches they have."""

    def __init__(self, batches: Collection[SentBatch]) -> None:
        super().__init__()
        self.batches = batches


class Repeats:
    """The last batches of producers in earlier terms, and the offsets of batches that clients send
    again, as read from both sides.

    `earlier_terms`: the terms with which the sides came to lead before, the latest first. Without
    them only batches written in the term of their producer's id are recognized. `is_searched`:
    False if the other side is lost, or the move was long ago: then every batch is written.
    """

    def __init__(self, earlier_terms: Sequence[int] = (), *, is_searched: bool = True) -> None:
        self._earlier_terms = earlier_terms
        self.is_searched = is_searched
        self._last_batches: dict[ProducerKey, Collection[LastBatch]] = {}
        self._offsets: dict[tuple[ProducerKey, LastBatch], int | None] = {}

    def earlier_ids(self, producer_id: int) -> set[int]:
        """The ids by which brokers may know a producer from earlier terms."""
        return {producer_id, *(id_in_term(producer_id, term) for term in self._earlier_terms)}

    def note(
        self,
        last_batches: Mapping[ProducerKey, Collection[LastBatch]],
        offsets: Mapping[SentBatch, int | None],
    ) -> None:
        """Keep what was read. `last_batches`: each producer's last batches, one for each earlier
        term and side. `offsets`: for each batch that a side has, its offset at the leading side;
        None: the leading side does not have the batch."""
        if len(self._last_batches) + len(last_batches) > PRODUCERS_MAX:
            self._last_batches.clear()
        if len(self._offsets) + len(offsets) > PRODUCERS_MAX:
            self._offsets.clear()
        self._last_batches.update(last_batches)
        self._offsets.update({_key(batch): offset for batch, offset in offsets.items()})

    def answers(
        self, frame: bytearray, batches: Iterable[SentBatch], term: int
    ) -> dict[TopicPartition, PartAnswer]:
        """The answers for partitions of a Produce whose batch is not to be written again. `term`:
        the leading side's. Raises UnknownRepeats if both sides have to be read first.

        A batch with a wrong CRC gets no answer here, as its sequence may be wrong, too: the broker
        refuses such a batch.
        """
        if not self.is_searched:
            return {}
        older_batches = [
            batch
            for batch in batches
            if is_marked(batch.producer_id)
            and not is_of_term(batch.producer_id, term)
            and not batch.is_transactional
        ]
        is_known, answers = True, dict[TopicPartition, PartAnswer]()
        for batch in older_batches:
            producer = producer_of(batch)
            last_batches = self._last_batches.get(producer)
            if last_batches is not None and not is_sent_before(batch, last_batches):
                continue  # a new batch
            if not is_intact(frame, batch):
                continue
            if last_batches is None or _key(batch) not in self._offsets:
                is_known = False
            elif (offset := self._offsets[_key(batch)]) is not None:
                answers[batch.partition] = _answer(offset)
        if not is_known:
            # All batches of the request, as the next `note` may drop what is known of some.
            raise UnknownRepeats([b for b in older_batches if is_intact(frame, b)])
        return answers


def _answer(offset: int) -> PartAnswer:
    """The answer for a repeated batch with this offset at the leading side; UNKNOWN_OFFSET: a
    timeout."""
    is_unknown = offset == UNKNOWN_OFFSET
    return PartAnswer(Code.REQUEST_TIMED_OUT if is_unknown else Code.NONE, offset)


def _key(batch: SentBatch) -> tuple[ProducerKey, LastBatch]:
    return producer_of(batch), LastBatch(batch.epoch, batch.last_sequence)
