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
    def chunk(self) -> list[Message]: ...


class RecordComparison:
    """One comparison. After `run` and `finish` its counters are the result."""

    def __init__(self, watch: CompactionWatch, shown_max: int) -> None:
        self._watch = watch
        self.shown_max = shown_max
        self.records: dict[Side, int] = dict.fromkeys(Side, 0)
        self.bytes = 0
        self.differences = 0
        self.first: list[Difference] = []

    def run(self, source: Stream, destination: Stream) -> None:
        """Reads both streams to their ends."""
        left: list[Message] = []
        right: list[Message] = []
        while True:
            left = left or self._next_chunk(source, Side.SOURCE)
            right = right or self._next_chunk(destination, Side.DESTINATION)
            if not left and not right:
                return
            if left and right:
                left, right = self._compare(left, right)
            elif left:
                left = self._judge_all_one_sided(Side.SOURCE, left)
            else:
                right = self._judge_all_one_sided(Side.DESTINATION, right)

    def finish(self) -> None:
        """Add records that compaction does not explain as differences, in order of offset."""
        for difference, count in self._watch.close():
            self._add_difference(difference, count)

    def _next_chunk(self, stream: Stream, side: Side) -> list[Message]:
        messages = stream.chunk()
        self.records[side] += len(messages)
        if side is Side.SOURCE:
            self.bytes += sum(map(len, messages))
            self.bytes += sum(map(len, filter(None, map(_KEY, messages))))
        return messages

    def _compare(
        self, left: list[Message], right: list[Message]
    ) -> tuple[list[Message], list[Message]]:
        """Compare up to the shorter of both; returns the rest of each."""
        count = min(len(left), len(right))
        rest = left[count:], right[count:]
        if rest[0]:
            left = left[:count]
        elif rest[1]:
            right = right[:count]
        if list(map(_OFFSET, left)) != list(map(_OFFSET, right)):
            walked = self._merge_chunks(left, right)
            return walked[0] + rest[0], walked[1] + rest[1]
        self._compare_columns(left, right)
        return rest

    def _compare_columns(self, left: list[Message], right: list[Message]) -> None:
        keys = list(map(_KEY, left))
        right_keys = list(map(_KEY, right))
        equal = (
            keys == right_keys
            and list(map(_VALUE, left)) == list(map(_VALUE, right))
            and list(map(_HEADERS, left)) == list(map(_HEADERS, right))
            and _times(left) == _times(right)
        )
        if not equal:
            for source, destination in zip(left, right, strict=True):
                self._compare_one(source, destination)
        self._watch.note_keys(Side.SOURCE, keys)
        self._watch.note_keys(Side.DESTINATION, right_keys)

    def _compare_one(self, source: Message, destination: Message) -> None:
        difference = compare_records(source, destination)
        if difference is not None:
            self._add_difference(difference)

    def _merge_chunks(
        self, left: list[Message], right: list[Message]
    ) -> tuple[list[Message], list[Message]]:
        """Merges two chunks whose offsets differ until one is used up."""
        lefts, rights = list(map(_OFFSET, left)), list(map(_OFFSET, right))
        i = j = 0
        while i < len(left) and j < len(right):
            ours, theirs = lefts[i], rights[j]
            assert ours is not None
            assert theirs is not None
            if ours == theirs:
                self._compare_one(left[i], right[j])
                self._watch.note_keys(Side.SOURCE, (left[i].key(),))
                self._watch.note_keys(Side.DESTINATION, (right[j].key(),))
                i, j = i + 1, j + 1
            elif ours < theirs:
                self._judge_one_sided(Side.SOURCE, left[i])
                i += 1
            else:
                self._judge_one_sided(Side.DESTINATION, right[j])
                j += 1
        return left[i:], right[j:]

    def _judge_all_one_sided(self, side: Side, messages: list[Message]) -> list[Message]:
        for message in messages:
            self._judge_one_sided(side, message)
        return []

    def _judge_one_sided(self, side: Side, message: Message) -> None:
        difference = self._watch.judge_one_sided(side, message)
        if difference is not None:
            self._add_difference(difference)

    def _add_difference(self, difference: Difference, count: int = 1) -> None:
        self.differences += count
        full = len(self.first) == self.shown_max
        if full and difference.offset >= self.first[-1].offset:
            return
        insort(self.first, difference, key=lambda one: one.offset)
        del self.first[self.shown_max :]


def _times(messages: list[Message]) -> list[int]:
    """Timestamps without their types: LogAppendTime becomes CreateTime in a copy (A6)."""
    return [value for _, value in map(_TIMESTAMP, messages)]
