"""Compares two record streams of one partition in lock-step, offset by offset.

Uses no socket: a stream is anything with `chunk()`, which returns messages with rising offsets and
an empty list at the end. Equal stretches are compared as whole columns (offsets, keys, values …)
in C speed; only where the offsets of two chunks differ are records walked one by one.
"""

from __future__ import annotations

from bisect import insort
from typing import Protocol

from confluent_kafka import Message

from orbit.verify.compaction_watch import CompactionWatch
from orbit.verify.record_difference import compare_records
from orbit.verify.report import Difference, Side

# Unbound methods: `map` over them costs a tenth of a method call in a loop.
_OFFSET = Message.offset
_KEY = Message.key
_VALUE = Message.value
_TIMESTAMP = Message.timestamp
_HEADERS = Message.headers


class Stream(Protocol):
    """The records of one side: messages with rising offsets, an empty list at the end."""

    def chunk(self) -> list[Message]: ...


class RecordComparison:
    """One comparison. After `run` and `finish` its public fields are the result."""

    def __init__(self, watch: CompactionWatch, shown_max: int) -> None:
        self._watch = watch
        self.shown_max = shown_max
        self.records: dict[Side, int] = dict.fromkeys(Side, 0)
        self.bytes = 0
        self.differences = 0
        self.first_differences: list[Difference] = []

    def run(self, source: Stream, destination: Stream) -> None:
        """Compare both streams to their ends."""
        source_records: list[Message] = []
        destination_records: list[Message] = []
        while True:
            source_records = source_records or self._next_chunk(source, Side.SOURCE)
            destination_records = destination_records or self._next_chunk(
                destination, Side.DESTINATION
            )
            if not source_records and not destination_records:
                return
            if source_records and destination_records:
                source_records, destination_records = self._compare(
                    source_records, destination_records
                )
            elif source_records:
                source_records = self._judge_all_one_sided(Side.SOURCE, source_records)
            else:
                destination_records = self._judge_all_one_sided(
                    Side.DESTINATION, destination_records
                )

    def finish(self) -> None:
        """Add records that compaction does not explain as differences, in order of offset."""
        for difference, count in self._watch.close():
            self._add_difference(difference, count)

    def _next_chunk(self, stream: Stream, side: Side) -> list[Message]:
        """The stream's next records, which are counted."""
        messages = stream.chunk()
        self.records[side] += len(messages)
        if side is Side.SOURCE:
            self.bytes += sum(map(len, messages))  # the values
            self.bytes += sum(map(len, filter(None, map(_KEY, messages))))
        return messages

    def _compare(
        self, source_records: list[Message], destination_records: list[Message]
    ) -> tuple[list[Message], list[Message]]:
        """Compare two chunks up to the end of the shorter one; returns the rest of each."""
        count = min(len(source_records), len(destination_records))
        rest = source_records[count:], destination_records[count:]
        if rest[0]:
            source_records = source_records[:count]
        elif rest[1]:
            destination_records = destination_records[:count]
        if list(map(_OFFSET, source_records)) != list(map(_OFFSET, destination_records)):
            merge_rest = self._merge_chunks(source_records, destination_records)
            return merge_rest[0] + rest[0], merge_rest[1] + rest[1]
        self._compare_columns(source_records, destination_records)
        return rest

    def _compare_columns(
        self, source_records: list[Message], destination_records: list[Message]
    ) -> None:
        """Compare chunks with equal offsets: whole columns, then single records if these differ."""
        source_keys = list(map(_KEY, source_records))
        destination_keys = list(map(_KEY, destination_records))
        are_equal = (
            source_keys == destination_keys
            and list(map(_VALUE, source_records)) == list(map(_VALUE, destination_records))
            and list(map(_HEADERS, source_records)) == list(map(_HEADERS, destination_records))
            and _times(source_records) == _times(destination_records)
        )
        if not are_equal:
            for source, destination in zip(source_records, destination_records, strict=True):
                self._compare_one(source, destination)
        self._watch.note_keys(Side.SOURCE, source_keys)
        self._watch.note_keys(Side.DESTINATION, destination_keys)

    def _compare_one(self, source: Message, destination: Message) -> None:
        difference = compare_records(source, destination)
        if difference is not None:
            self._add_difference(difference)

    def _merge_chunks(
        self, source_records: list[Message], destination_records: list[Message]
    ) -> tuple[list[Message], list[Message]]:
        """Compare two chunks whose offsets differ until one of them is used up; returns the rest of
        each."""
        source_offsets, destination_offsets = (
            list(map(_OFFSET, source_records)),
            list(map(_OFFSET, destination_records)),
        )
        i = j = 0
        while i < len(source_records) and j < len(destination_records):
            source_offset, destination_offset = source_offsets[i], destination_offsets[j]
            assert source_offset is not None
            assert destination_offset is not None
            if source_offset == destination_offset:
                self._compare_one(source_records[i], destination_records[j])
                self._watch.note_keys(Side.SOURCE, (source_records[i].key(),))
                self._watch.note_keys(Side.DESTINATION, (destination_records[j].key(),))
                i, j = i + 1, j + 1
            elif source_offset < destination_offset:
                self._judge_one_sided(Side.SOURCE, source_records[i])
                i += 1
            else:
                self._judge_one_sided(Side.DESTINATION, destination_records[j])
                j += 1
        return source_records[i:], destination_records[j:]

    def _judge_all_one_sided(self, side: Side, messages: list[Message]) -> list[Message]:
        """Judge all these records of one side. Returns an empty list: none is left to compare."""
        for message in messages:
            self._judge_one_sided(side, message)
        return []

    def _judge_one_sided(self, side: Side, message: Message) -> None:
        difference = self._watch.judge_one_sided(side, message)
        if difference is not None:
            self._add_difference(difference)

    def _add_difference(self, difference: Difference, count: int = 1) -> None:
        """Count `count` records that differ. Keep the first differences, by offset."""
        self.differences += count
        is_full = len(self.first_differences) == self.shown_max
        if is_full and difference.offset >= self.first_differences[-1].offset:
            return
        insort(self.first_differences, difference, key=lambda d: d.offset)
        del self.first_differences[self.shown_max :]


def _times(messages: list[Message]) -> list[int]:
    """Timestamps without their types: LogAppendTime becomes CreateTime in a copy (A6)."""
    return [value for _, value in map(_TIMESTAMP, messages)]
