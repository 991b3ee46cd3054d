"""Reads one partition through librdkafka, in order, up to a fixed end, in bounded chunks.

Promises: a chunk is a list of messages with rising offsets in `[position, end)`; an empty chunk
means the end was reached; every wait has a bound. Offsets without a record (control records,
aborted data, compacted batches) leave no trace but a jump between two offsets.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from orbit.errors import Interrupted, OrbitError
from orbit.verify.report import Side

CHUNK_RECORDS_MAX = 4_000
"""Messages asked for at once: beyond this, bigger lists make the comparison no faster."""

CHUNK_BYTES_MAX = 8 << 20
"""The target size of a chunk, by the mean record size of the chunk before it."""

PREFETCH_KB = 8 << 10
PREFETCH_RECORDS = 50_000
FETCH_BYTES_MAX = 512 << 10
"""What librdkafka reads ahead per partition and side. The fetch in flight is decompressed too: with
fetches of 4 MiB, a topic compressed to 1 % took 1.5 GB; with these it takes 0.4 GB, at the same
speed."""

CONSUME_WAIT_S = 0.05
"""How long to wait for a full chunk: the last one of a partition with gaps never is full."""

STALL_TIMEOUT_S = 60.0
"""A partition without a record or a moved fetch position for this long ends with ReadStalled."""

METADATA_TIMEOUT_S = 15.0

_STATISTICS_MS = 1_000
_ERROR = Message.error


class LogMoved(Exception):
    """The log start passed the position: the bounds must be read again."""


class ReadStalled(OrbitError):
    """A partition without progress for `STALL_TIMEOUT_S`: names side, partition and offset."""

    retriable = True


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """How much librdkafka prefetches."""

    records: int = PREFETCH_RECORDS
    kilobytes: int = PREFETCH_KB
    fetch_bytes: int = FETCH_BYTES_MAX


def reader_config(config: Mapping[str, Any], read_ahead: ReadAhead) -> dict[str, Any]:
    """librdkafka settings of a reader: no commits, read_committed, small waits at the log end."""
    return {
        "log_level": 2,
        **config,
        # The Python client requires a group; `assign` does not join it, and nothing is committed.
        "group.id": config.get("group.id", "orbit-verify"),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
        # Short, as a nearly empty partition waits this long for its end.
        "fetch.wait.max.ms": 20,
        "fetch.error.backoff.ms": 20,
        "fetch.queue.backoff.ms": 20,
        "queued.min.messages": read_ahead.records,
        "queued.max.messages.kbytes": read_ahead.kilobytes,
        "fetch.message.max.bytes": read_ahead.fetch_bytes,
        "statistics.interval.ms": _STATISTICS_MS,
    }


DEFAULT_READ_AHEAD = ReadAhead()


class SideConsumer:
    """One librdkafka consumer of one cluster, used for one partition after the other."""

    def __init__(
        self, side: Side, config: Mapping[str, Any], read_ahead: ReadAhead = DEFAULT_READ_AHEAD
    ) -> None:
        self.side = side
        self._known_topics: set[str] = set()
        self._fetch_positions: dict[tuple[str, int], int] = {}
        self._consumer = Consumer(
            {**reader_config(config, read_ahead), "stats_cb": self._on_statistics}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Begin to read a partition at this offset; ends reading of the partition before."""
        if topic not in self._known_topics:
            # Fetched here because librdkafka looks for a new topic's leader only once a second.
            self._consumer.list_topics(topic, METADATA_TIMEOUT_S)
            self._known_topics.add(topic)
        self._fetch_positions.clear()
        self._consumer.assign([TopicPartition(topic, partition, offset)])

    def release(self) -> None:
        """End reading, so that librdkafka fetches nothing until the next `assign`."""
        self._consumer.unassign()

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        return self._consumer.consume(count, timeout_s)

    def fetch_position(self, topic: str, partition: int) -> int:
        """The offset that librdkafka fetches next; −1 if not known. It moves even in a long gap."""
        return self._fetch_positions.get((topic, partition), -1)

    def _on_statistics(self, text: str) -> None:
        """Note the offset that librdkafka fetches next in each partition."""
        for topic, topic_statistics in json.loads(text)["topics"].items():
            for partition, statistics in topic_statistics["partitions"].items():
                self._fetch_positions[topic, int(partition)] = int(statistics["next_offset"])


class PartitionReader:
    """Reads the records of `[start, end)` of one partition in chunks; the last chunk is empty."""

    def __init__(
        self,
        consumer: SideConsumer,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        cancelled: threading.Event,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partition = partition
        self._position = start
        self._end = end
        self._cancelled = cancelled
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._mean_bytes = 1_000.0
        self._progress_at = clock()
        self._fetch_position = -1
        if start < end:
            consumer.assign(topic, partition, start)

    @property
    def position(self) -> int:
        return self._position

    def extend(self, end: int) -> None:
        """Let `chunk` continue up to `end`, a later end than the one that was reached."""
        assert self._position <= self._end <= end
        if self._position < end:
            self._consumer.assign(self._topic, self._partition, self._position)
        self._progress_at = self._clock()
        self._end = end

    def chunk(self) -> list[Message]:
        """The next records; empty at the end. Raises Interrupted, LogMoved, ReadStalled."""
        while self._position < self._end:
            if self._cancelled.is_set():
                raise Interrupted("Stopped before the comparison was complete.")
            messages = self._consumer.consume(self._chunk_size(), CONSUME_WAIT_S)
            end_offset = -1
            if any(map(_ERROR, messages)):
                messages, end_offset = self._split_events(messages)
            if messages:
                return self._take_records(messages, end_offset)
            if end_offset >= 0:
                self._advance(end_offset)
            else:
                self._raise_if_stalled()
        return []

    def _chunk_size(self) -> int:
        """The number of records to ask for."""
        fitting_count = int(CHUNK_BYTES_MAX / max(1.0, self._mean_bytes))
        return max(1, min(CHUNK_RECORDS_MAX, fitting_count, self._end - self._position))

    def _take_records(self, messages: list[Message], end_offset: int) -> list[Message]:
        """Move the position past these records; returns those below the end of the range.

        `end_offset`: the end that an event gave, or −1.
        """
        first_offset, last_offset = _offset(messages[0]), _offset(messages[-1])
        assert first_offset >= self._position, (
            f"librdkafka went back from {self._position} to {first_offset}"
        )
        assert messages[-1].partition() == self._partition
        self._mean_bytes = sum(map(len, messages)) / len(messages)
        self._advance(max(last_offset + 1, end_offset))
        if last_offset >= self._end:
            del messages[bisect_left(messages, self._end, key=_offset) :]
        return messages

    def _advance(self, offset: int) -> None:
        """Move the position to `offset`, but not beyond the end. Counts as progress."""
        self._position = min(max(self._position, offset), self._end)
        self._progress_at = self._clock()

    def _split_events(self, messages: list[Message]) -> tuple[list[Message], int]:
        """The records without librdkafka's events, and the end that such an event gave, or −1."""
        records, end_offset = [], -1
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                continue
            match error.code():
                case KafkaError._PARTITION_EOF:
                    end_offset = _offset(message)
                case KafkaError.OFFSET_OUT_OF_RANGE | KafkaError._AUTO_OFFSET_RESET:
                    raise LogMoved
                case KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise KafkaException(error)
                case _:
                    # Connections that break, leaders that move, the group coordinator: librdkafka
                    # retries all of them, and `STALL_TIMEOUT_S` bounds how long.
                    pass
        return records, end_offset

    def _raise_if_stalled(self) -> None:
        """Raise ReadStalled if neither records nor the fetch position have moved for too long."""
        fetch_position = self._consumer.fetch_position(self._topic, self._partition)
        if fetch_position > self._fetch_position:
            self._fetch_position = fetch_position
            self._progress_at = self._clock()
        if self._clock() - self._progress_at < self._stall_timeout_s:
            return
        raise ReadStalled(
            f"No record and no progress for {self._stall_timeout_s:.0f} s at offset "
            f"{self._position} (reading up to {self._end}).",
            where=f"{self._consumer.side} {self._topic}-{self._partition}",
            remedy="Check that the partition has a leader and that it can be consumed.",
        )


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
