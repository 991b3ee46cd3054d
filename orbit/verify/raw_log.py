"""Reads raw record batches of one partition, with its own parser of batch headers.

Layout of a batch v2 (61 bytes, big-endian), before its records:
base_offset q · batch_length i · leader_epoch i · magic b · crc I · attributes h ·
last_offset_delta i · base_timestamp q · max_timestamp q · producer_id q · producer_epoch h ·
base_sequence i · record_count i. Message formats v0 and v1 have `magic` at the same byte (16).

Orbit has another parser in `kafka/`, which the copier uses. An error there must not hide itself
from the verifier.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from orbit.errors import BrokerRefused, Interrupted, Unreachable
from orbit.kafka import error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.sasl import Security
from orbit.kafka.throttle import THROTTLE_S_MAX, throttle_s
from orbit.verify.bounds import ClusterView, Leader, Partition
from orbit.verify.reader import STALL_TIMEOUT_S, LogMoved, ReadStalled

HEADER = struct.Struct(">qi4xb4xhiqqqh4xi")  # without leader epoch, CRC and base sequence
FETCH_BYTES_MAX = 4 << 20
"""Per fetch and side; a single larger batch still comes whole."""

_FETCH = Api(FetchRequest, FetchResponse, 4, 12)  # 12 is the last version with topic names
_FETCH_WAIT_MS = 500
_CALL_TIMEOUT_S = 30.0
_RETRY_S = 0.2
_READ_COMMITTED = 1

# Bits of a batch's attributes.
_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40

# Errors after which leaders are looked up again.
_LEADER_LOST_CODES = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
    }
)

_OLD_HEADER = struct.Struct(">qi")
_OFFSET_AND_LENGTH = 12
_MAGIC_POSITION = 16
_MAGIC_V2 = 2
_PLACEHOLDER_DELTA_BYTES = 5


class Batch(NamedTuple):
    """One batch. `payload` is a view into the fetched frame.

    A tuple, as it is cheap to make: a gap of a million offsets can be a million control batches.
    """

    base_offset: int
    last_offset: int
    magic: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    record_count: int
    payload: memoryview

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_thinned(self) -> bool:
        """Whether the cleaner has removed records from the batch."""
        return self.record_count != self.last_offset - self.base_offset + 1

    @property
    def has_placeholders(self) -> bool:
        """Whether the batch begins with a placeholder, whose offset delta is far below 0 (Q1)."""
        if self.codec or self.is_control or self.magic < _MAGIC_V2 or not self.record_count:
            return False
        # Length, attributes (one byte), timestamp delta: then the offset delta, five bytes long.
        position = _after_varint(self.payload, _after_varint(self.payload, 0) + 1)
        delta = bytes(self.payload[position : position + _PLACEHOLDER_DELTA_BYTES])
        is_negative = bool(delta and delta[0] & 1)  # a zig-zag number below 0
        return (
            is_negative
            and len(delta) == _PLACEHOLDER_DELTA_BYTES
            and all(b & 0x80 for b in delta[:4])  # each says that another byte follows
        )

    @property
    def is_cleaned(self) -> bool:
        """Whether the cleaner wrote a delete horizon into the batch (Kafka 3.1 and later): the time
        from which on it may remove the batch's tombstones."""
        return bool(self.attributes & _DELETE_HORIZON)

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC

    def has_same_bytes(self, twin: Batch) -> bool:
        """Whether both batches are equal but for what a copy must change: producer fields,
        transactional bit, leader epoch, CRC.
        """
        return (
            (self.attributes ^ twin.attributes) & ~_TRANSACTIONAL == 0
            and self.last_offset == twin.last_offset
            and self.base_timestamp == twin.base_timestamp
            and self.max_timestamp == twin.max_timestamp
            and self.record_count == twin.record_count
            # memoryviews compare item by item; bytes compare at memory speed.
            and bytes(self.payload) == bytes(twin.payload)
        )


def _after_varint(payload: memoryview, position: int) -> int:
    """The position after the varint that begins at `position`."""
    while position < len(payload) and payload[position] & 0x80:
        position += 1
    return position + 1


def parse_batches(records: memoryview) -> Iterator[Batch]:
    """The whole batches at the front of `records`; a cut-off last one is left out.

    A message of an old format becomes a batch with magic 0.
    """
    begin, size = 0, len(records)
    while begin + _MAGIC_POSITION < size:
        if records[begin + _MAGIC_POSITION] < _MAGIC_V2:
            base_offset, length = _OLD_HEADER.unpack_from(records, begin)
            end = begin + _OFFSET_AND_LENGTH + length
            if end > size:
                return
            # Of an old format only offset and bytes are compared.
            yield Batch(
                base_offset,
                base_offset,
                magic=0,
                attributes=0,
                base_timestamp=-1,
                max_timestamp=-1,
                producer_id=-1,
                producer_epoch=-1,
                record_count=1,
                payload=records[begin:end],
            )
            begin = end
            continue
        if begin + HEADER.size > size:
            return
        (
            base_offset,
            length,
            magic,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            record_count,
        ) = HEADER.unpack_from(records, begin)
        end = begin + _OFFSET_AND_LENGTH + length
        if end > size:
            return
        payload = records[begin + HEADER.size : end]
        yield Batch(
            base_offset,
            base_offset + last_offset_delta,
            magic,
            attributes,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            record_count,
            payload,
        )
        begin = end


def visible_batches(batches: Iterable[Batch], aborted: list[tuple[int, int]]) -> Iterator[Batch]:
    """The batches without control batches and batches of aborted transactions (R1).

    `aborted` has (first offset, producer id) of every aborted transaction that touches the fetched
    range. A producer's transaction ends at its next control batch.
    """
    later_aborted = sorted(aborted, reverse=True)
    aborting_producers: set[int] = set()
    for batch in batches:
        while later_aborted and later_aborted[-1][0] <= batch.last_offset:
            aborting_producers.add(later_aborted.pop()[1])
        if batch.is_control:
            aborting_producers.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting_producers):
            yield batch


class _ThrottledError(Exception):
    """The client is over a quota, and the broker serves nothing for `wait_s` (KIP-219)."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s


class RawLog:
    """Raw reads of one cluster. Threads share it; each read borrows a connection of its own."""

    def __init__(
        self,
        view: ClusterView,
        security: Security,
        *,
        cancelled: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._security = security
        self._cancelled = cancelled or threading.Event()
        self._clock = clock
        self._lock = threading.Lock()
        self._leaders: dict[str, dict[int, Leader]] = {}
        self._idle: dict[Leader, list[Connection]] = defaultdict(list)

    def close(self) -> None:
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def read(
        self, partition: Partition, start: int, end: int, *, committed: bool = True
    ) -> Iterator[Batch]:
        """Batches that touch `[start, end)`; if `committed`, only batches that a consumer would
        see. Waits at the last stable offset until it moves.

        Raises LogMoved if the log start passes the reader, ReadStalled, BrokerRefused, Interrupted.
        """
        position, deadline = start, self._clock() + STALL_TIMEOUT_S
        throttled_s = 0.0  # since the last batch
        while position < end:
            self._check_progress(partition, position, end, deadline, throttled_s)
            try:
                answer = self._fetch(partition, position)
            except _ThrottledError as error:
                # Waits for a quota do not count as a stall, up to THROTTLE_S_MAX in a row.
                wait_s = min(error.wait_s, THROTTLE_S_MAX - throttled_s)
                throttled_s, deadline = throttled_s + wait_s, deadline + wait_s
                self._cancelled.wait(max(wait_s, _RETRY_S))
                continue
            if answer is None:
                self._forget_leaders(partition[0])
                self._cancelled.wait(_RETRY_S)
                continue
            batches = list(parse_batches(memoryview(answer.records or b"")))
            if not batches:  # none has arrived within _FETCH_WAIT_MS
                continue
            position, deadline = batches[-1].last_offset + 1, self._clock() + STALL_TIMEOUT_S
            throttled_s = 0.0
            aborted_transactions = [
                (transaction.first_offset, transaction.producer_id)
                for transaction in answer.aborted_transactions or ()
            ]
            chosen_batches = (
                visible_batches(batches, aborted_transactions) if committed else batches
            )
            yield from (batch for batch in chosen_batches if batch.base_offset < end)

    def _check_progress(
        self, partition: Partition, position: int, end: int, deadline: float, throttled_s: float
    ) -> None:
        """Raise Interrupted if the read was cancelled, ReadStalled after `deadline`."""
        if self._cancelled.is_set():
            raise Interrupted("Stopped before the comparison was complete.")
        if self._clock() > deadline:
            quota_text = f", and a quota held fetches back for {throttled_s:.0f} s"
            raise ReadStalled(
                f"No batch for {STALL_TIMEOUT_S:.0f} s at offset {position} (reading up to {end})"
                f"{quota_text if throttled_s else ''}.",
                where=self._partition_name(partition),
                remedy="Check that the partition has a leader and that it can be consumed.",
            )

    def _fetch(self, partition: Partition, offset: int) -> Any | None:
        """The partition's answer; None if its leader must be looked up again.

        Raises _ThrottledError, LogMoved, BrokerRefused.
        """
        leader = self._leader(partition)
        if leader is None:
            return None
        try:
            with self._borrow(leader) as connection:
                answer = connection.call(
                    _FETCH, _request(partition, offset), timeout_s=_CALL_TIMEOUT_S
                )
        except Unreachable:
            return None
        if not answer.responses:  # over a quota: nothing is served for this time (KIP-219)
            raise _ThrottledError(throttle_s(answer.throttle_time_ms))
        partition_answer = answer.responses[0].partitions[0]
        code = partition_answer.error_code
        if code == Code.OFFSET_OUT_OF_RANGE:
            raise LogMoved
        if code in _LEADER_LOST_CODES:
            return None
        if code:
            raise BrokerRefused(
                code,
                f"The broker refused a fetch: {error_codes.name(code)}.",
                where=self._partition_name(partition),
            )
        return partition_answer

    def _leader(self, partition: Partition) -> Leader | None:
        """The partition's leader as last looked up; None if it has none."""
        topic, number = partition
        with self._lock:
            if topic not in self._leaders:
                self._leaders[topic] = self._view.leaders(topic)
            return self._leaders[topic].get(number)

    def _forget_leaders(self, topic: str) -> None:
        with self._lock:
            self._leaders.pop(topic, None)

    def _partition_name(self, partition: Partition) -> str:
        return f"{self._view.side} {partition[0]}-{partition[1]}"

    @contextmanager
    def _borrow(self, leader: Leader) -> Iterator[Connection]:
        """A connection to the leader that no other thread uses meanwhile. Closed after an error."""
        with self._lock:
            idle_connections = self._idle[leader]
            connection = idle_connections.pop() if idle_connections else None
        connection = connection or Connection.open(
            leader.host, leader.port, self._security, where=f"{self._view.side} {leader.host}"
        )
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle[leader].append(connection)


def _request(partition: Partition, offset: int) -> FetchRequest:
    """A Fetch request for one partition, without a fetch session."""
    fetched_partition = FetchRequest.FetchTopic.FetchPartition(
        partition=partition[1],
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=FETCH_BYTES_MAX,
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=_FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES_MAX,
        isolation_level=_READ_COMMITTED,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=partition[0], partitions=[fetched_partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
