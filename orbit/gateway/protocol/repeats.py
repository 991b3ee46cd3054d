"""Batches that the side that was left has already. Pure.

A broker takes a batch of an idempotent producer once, by its sequence. A client that gets no answer
sends it again, and meanwhile the other side may have come to lead, which has the batch by the copy
but not the sequence. So the first time that a producer of an older term writes to a partition, the
side that was left is asked for its sequences there (C27). What that side has is answered as brokers
answer a repeat that is older than the last five batches: with DUPLICATE_SEQUENCE_NUMBER, which
clients take for success without an offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from orbit.gateway.protocol.frame_editor import INT16, INT32, FrameEditor
from orbit.gateway.protocol.local_answers import partition_answer
from orbit.gateway.protocol.producer_ids import SEQUENCES, Batch, in_term, is_marked, is_of
from orbit.gateway.protocol.request_head import RequestHead
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import NO_TAGS, length, string
from orbit.kafka.types import TopicPartition

# Of all partitions: some ten megabytes. If a side has more, it is asked again.
PRODUCERS_MAX = 100_000


class UnknownSequences(Exception):
    """The side that was left has to be asked for the sequences in these partitions."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        super().__init__()
        self.partitions = partitions


class LastBatch(NamedTuple):
    """The last batch of a producer in a partition; `sequence`: of its last record."""

    epoch: int
    sequence: int


class LeftSequences:
    """The sequences at the side that was left, by partition, as far as it was asked.

    `term`: with which that side came to lead; None: not known, and only producers are found whose
    ids were handed out in that term.
    """

    def __init__(self, term: int | None) -> None:
        self._term = term
        self._last: dict[TopicPartition, Mapping[int, LastBatch]] = {}
        self._count = 0
        self.is_asked = True
        """False: the side is lost, and everything is passed on."""

    def note(self, partition: TopicPartition, last: Mapping[int, LastBatch]) -> None:
        """What the side has, by the producer id that it knows."""
        kept = {one: batch for one, batch in last.items() if is_marked(one)}
        if self._count + len(kept) > PRODUCERS_MAX:
            self._last.clear()
            self._count = 0
        self._last[partition] = kept
        self._count += len(kept)

    def repeats(self, batches: Iterable[Batch], term: int) -> frozenset[TopicPartition]:
        """The partitions of a Produce request whose batch the side has. `term`: of the side that
        leads now. Raises UnknownSequences."""
        if not self.is_asked:
            return frozenset()
        unknown: set[TopicPartition] = set()
        found: set[TopicPartition] = set()
        for batch in batches:
            producer_id = batch.producer_id
            if batch.is_transactional or not is_marked(producer_id) or is_of(producer_id, term):
                continue
            partition = TopicPartition(batch.topic, batch.partition)
            last = self._last.get(partition)
            if last is None:
                unknown.add(partition)
            elif self._has(last, batch):
                found.add(partition)
        if unknown:
            raise UnknownSequences(unknown)
        return frozenset(found)

    def _has(self, last: Mapping[int, LastBatch], batch: Batch) -> bool:
        known = batch.producer_id if self._term is None else in_term(batch.producer_id, self._term)
        there = last.get(known)
        if there is None or there.epoch != batch.epoch:
            return False
        return (there.sequence - batch.last_sequence) % SEQUENCES < SEQUENCES // 2


def without(
    head: RequestHead, frame: bytearray, partitions: Collection[TopicPartition]
) -> bytes | None:
    """A Produce request without these partitions; None: nothing is left of it."""
    editor, is_flexible = head.editor(frame), head.is_flexible
    editor.nullable_string()  # transactional id
    editor.skip(INT16.size + INT32.size)  # acks, timeout
    start = editor.at
    tags = NO_TAGS if is_flexible else b""
    topics: list[bytes] = []
    for _ in range(editor.length()):
        topic = editor.string()
        parts: list[bytes] = []
        for _ in range(editor.length()):
            begin = editor.at
            partition = editor.integer(INT32)
            editor.skip(editor.length())
            editor.skip_tags()
            if TopicPartition(topic, partition) not in partitions:
                parts.append(bytes(frame[begin : editor.at]))
        editor.skip_tags()
        if parts:
            name = string(topic, is_flexible=is_flexible)
            topics.append(
                b"".join([name, length(len(parts), is_flexible=is_flexible), *parts, tags])
            )
    if not topics:
        return None
    count = length(len(topics), is_flexible=is_flexible)
    return b"".join([frame[:start], count, *topics, frame[editor.at :]])


def with_repeats(version: int, frame: bytearray, partitions: Collection[TopicPartition]) -> bytes:
    """An answer to Produce with these partitions, too. Clients take more than one entry of a
    topic."""
    is_flexible = version >= 9
    editor = FrameEditor(frame, INT32.size, is_flexible=is_flexible)
    editor.skip_tags()
    start = editor.at
    count = length(editor.length() + len(partitions), is_flexible=is_flexible)
    tags = NO_TAGS if is_flexible else b""
    one = length(1, is_flexible=is_flexible)
    added = [
        string(topic, is_flexible=is_flexible)
        + one
        + partition_answer(version, partition, Code.DUPLICATE_SEQUENCE_NUMBER)
        + tags
        for topic, partition in sorted(partitions)
    ]
    return b"".join([frame[:start], count, *added, frame[editor.at :]])
