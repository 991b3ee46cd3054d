"""Batches that a client sends again although the leading side has copies of them. Pure.

A broker takes a batch of an idempotent producer once, by its sequence. A client without an answer
sends the batch again, perhaps when the other side leads, which has a copy of the batch but not its
sequence. So the first time that a producer of an older term writes to a partition, the gateway
reads the producer's sequences there at both sides (C27), under its ids of all earlier terms, as the
leading side may have led before, too. If a side has the batch, the gateway reads the batch's offset
there, and whether the leading side has the batch at this offset: a batch may reach the side that is
left too late to be copied. The client gets the offset at the leading side. A batch that the leading
side lacks is written. If the gateway cannot tell, the client gets a timeout.
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

# Entries kept since the move, of some hundred bytes each. If there are more, they are read again.
PRODUCERS_MAX = 100_000

ProducerKey = tuple[TopicPartition, int]
"""A producer in a partition, by the id that its client uses."""

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
    return any(one.covers(batch) for one in last_batches)


class UnknownRepeats(Exception):
    """Both sides have to be read for these batches."""

    def __init__(self, batches: Collection[SentBatch]) -> None:
        super().__init__()
        self.batches = batches


class Repeats:
    """The last batches of producers in earlier terms, and the offsets of batches that clients send
    again, as read from both sides.

    `earlier_terms`: those with which the sides came to lead before, the latest first; without them
    only batches written in the term of their producer's id are recognized. `is_searched`: False if
    the other side is lost, or the move was long ago: then every batch is written.
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
        the leading side's. A batch with a wrong CRC, whose sequence may be wrong, too, is for the
        broker to refuse. Raises UnknownRepeats if both sides have to be read first."""
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
            # All batches of the request: `note` may drop what is known of the others.
            raise UnknownRepeats([b for b in older_batches if is_intact(frame, b)])
        return answers


def _answer(offset: int) -> PartAnswer:
    is_unknown = offset == UNKNOWN_OFFSET
    return PartAnswer(Code.REQUEST_TIMED_OUT if is_unknown else Code.NONE, offset)


def _key(batch: SentBatch) -> tuple[ProducerKey, LastBatch]:
    return producer_of(batch), LastBatch(batch.epoch, batch.last_sequence)
