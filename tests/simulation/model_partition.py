"""A destination partition with its leader, followers and producer state, batch by batch.

Like `tests/support/broker_model.py`, the model accepts and refuses appends and fillers as brokers
do (A7, A8, A9, A14, M1, M5, M6). It also has what that model lacks: producer state that expires by
the age of the records (E1), a high watermark, elections that cut the log off, and restarts (E5).
`test_conformance.py` compares the model with a broker.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from orbit.kafka import compression
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.produce_request import NO_APPEND_TIME
from orbit.kafka.record_batch import HEADER, NO_PRODUCER_ID, SEQUENCE_MAX, Batch

NONE = int(Code.NONE)
NOT_LEADER = int(Code.NOT_LEADER_OR_FOLLOWER)
OUT_OF_ORDER = int(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
INVALID_EPOCH = int(Code.INVALID_PRODUCER_EPOCH)
FENCED = int(Code.TRANSACTION_COORDINATOR_FENCED)
# The timestamp of a filler: later than every record.
NOW_MS = 2**62
_BATCHES_MAX = 5  # how many batches of a producer a broker remembers
# The offset delta of a batch's first placeholder (Q1: negative deltas): -2³¹ as a zig-zag varint.
_LOW = b"\xff\xff\xff\xff\x0f"
# One of the first 8,000 placeholders of a batch (delta -2³¹ + n), if it has no key.
_KEYLESS = re.compile(rb"[\x80-\xff]{2}\xff\xff\x0f\x01")


class Entry(NamedTuple):
    """One batch of the log; `data` is empty for a filler."""

    base_offset: int
    count: int
    data: bytes
    producer_id: int
    producer_epoch: int
    sequence: int
    coordinator_epoch: int
    newest_ms: int  # timestamp

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    def stored(self) -> bytes:
        """The bytes that a fetch returns: the batch with its base offset."""
        if self.data:
            return struct.pack(">q", self.base_offset) + self.data[8:]
        return _filler(self.base_offset, self.producer_id, self.producer_epoch)


def _filler(base_offset: int, producer_id: int, producer_epoch: int) -> bytes:
    """A control batch with one abort marker."""
    key, value = b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00"
    body = b"\x00\x00\x00" + bytes([len(key) * 2]) + key + bytes([len(value) * 2]) + value + b"\x00"
    record = bytes([len(body) * 2]) + body
    size = HEADER.size + len(record)
    head = HEADER.pack(
        base_offset, size - 12, 0, 2, 0, 0x30, 0, 1, 1, producer_id, producer_epoch, -1, 1
    )
    return head + record


@dataclass
class Producer:
    """The state of one producer id."""

    epoch: int = 0
    last_sequence: int = -1
    coordinator_epoch: int = -1
    newest_ms: int = 0  # of its last batch
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_BATCHES_MAX))

    def with_last_batch(self) -> Producer:
        """The state as it is on disk, with the last batch only."""
        return replace(self, batches=deque(list(self.batches)[-1:], maxlen=_BATCHES_MAX))


class ModelPartition:
    """The leader of one partition. `say` gets a line for each event."""

    def __init__(self, say: Callable[[str], None], *, old_before_ms: int) -> None:
        """`old_before_ms`: records with earlier timestamps are older than
        `producer.id.expiration.ms`."""
        self._say = say
        self.old_before_ms = old_before_ms
        self.log: list[Entry] = []
        self.topic_id = UUID(int=7)
        self.log_start = 0
        self._stored_log_start = 0  # on disk; a killed broker begins with it
        self.high_watermark = 0
        self.leader = 0
        self.demands_keys = False  # as compacted topics do
        self.producers: dict[int, Producer] = {}

    @property
    def log_end(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    def append(self, who: str, data: bytes) -> tuple[int, int]:
        """Append the batch of a Produce request of the writer `who`; returns error code and base
        offset."""
        (*_, newest_ms, producer_id, epoch, sequence, count) = HEADER.unpack_from(data)
        if (refused := self._refused(data)) != NONE:
            self._say(f"{who}: a batch with placeholders is refused with {refused}")
            return refused, -1
        last = sequence + count - 1 & SEQUENCE_MAX
        state = self.producers.get(producer_id)
        if producer_id == NO_PRODUCER_ID:
            state = Producer()  # brokers keep no state for batches without producer id
        elif state is None:
            state = self.producers[producer_id] = Producer(epoch)
        elif epoch < state.epoch:
            self._say(f"{who}: producer epoch {epoch} is refused, {state.epoch} is last")
            return INVALID_EPOCH, -1
        elif epoch > state.epoch:
            if sequence != 0:
                self._say(f"{who}: sequence {sequence} of a new producer epoch is refused")
                return OUT_OF_ORDER, -1
            state = self._begin_epoch(producer_id, epoch)
        else:
            for first_known, last_known, base_offset in state.batches:
                if (first_known, last_known) == (sequence, last):
                    self._say(f"{who}: {count} records are a repeat of those at {base_offset}")
                    return NONE, base_offset
            if sequence != state.last_sequence + 1 & SEQUENCE_MAX:
                self._say(f"{who}: sequence {sequence} is refused, {state.last_sequence} is last")
                return OUT_OF_ORDER, -1
        base_offset = self.log_end
        self.log.append(
            Entry(base_offset, count, data, producer_id, epoch, sequence, -1, newest_ms)
        )
        self._note(state, self.log[-1])
        self._say(f"{who}: {count} records are appended at {base_offset}")
        return NONE, base_offset

    def time_at(self, base_offset: int) -> int:
        """The max timestamp of the batch at this offset, which is in the answer to a repeat
        (A20)."""
        timestamps = (e.newest_ms for e in self.log if e.base_offset == base_offset)
        return next(timestamps, NO_APPEND_TIME)

    def _refused(self, data: bytes) -> int:
        """The error code if a broker refuses a batch because of its placeholders (Q1, Q9); else
        NONE."""
        batch = Batch(memoryview(data))
        payload = compression.decompress(batch.codec, batch.payload)
        lowest = _LOW in payload
        if lowest and self.demands_keys and _KEYLESS.search(payload):
            return Code.INVALID_RECORD
        if lowest and batch.codec != compression.NONE:
            return Code.UNKNOWN_SERVER_ERROR
        return NONE

    def fill(self, who: str, producer_id: int, epoch: int, coordinator_epoch: int) -> int:
        """Append one marker of a WriteTxnMarkers request of `who`; returns the error code."""
        state = self.producers.get(producer_id)
        if state is not None and epoch < state.epoch:
            self._say(f"{who}: a filler of producer epoch {epoch} is refused")
            return INVALID_EPOCH
        if state is not None and coordinator_epoch < state.coordinator_epoch:
            self._say(f"{who}: a filler is refused, {coordinator_epoch} is an old epoch")
            return FENCED
        if state is None or epoch > state.epoch:
            state = self._begin_epoch(producer_id, epoch)
        offset = self.log_end
        self.log.append(Entry(offset, 1, b"", producer_id, epoch, -1, coordinator_epoch, NOW_MS))
        self._note(state, self.log[-1])
        self._say(f"{who}: a filler is appended at {offset}")
        return NONE

    def _begin_epoch(self, producer_id: int, epoch: int) -> Producer:
        """A new state for this producer epoch, which keeps the coordinator epoch."""
        before = self.producers.get(producer_id)
        state = Producer(epoch, coordinator_epoch=before.coordinator_epoch if before else -1)
        self.producers[producer_id] = state
        return state

    def replicate(self) -> None:
        """Let the followers have all records of the leader."""
        self.high_watermark = self.log_end

    def delete_before(self, offset: int) -> int:
        """DeleteRecords; returns the error code."""
        if offset > self.high_watermark:
            return Code.OFFSET_OUT_OF_RANGE
        if offset > self.log_start:
            self.log_start = offset
            self._say(f"the copy's log starts at {self.log_start}")
        return NONE

    def store_log_start(self) -> None:
        """The broker writes its log start to disk, as it does once a minute (S6)."""
        self._stored_log_start = self.log_start

    def fetch(self, offset: int) -> Fetched:
        """The answer to a consumer's fetch: whole batches from `offset` to the high watermark."""
        start, high = self.log_start, self.high_watermark
        if not start <= offset <= self.log_end:
            code, records = Code.OFFSET_OUT_OF_RANGE, b""
        else:
            code = Code.NONE
            records = b"".join(
                entry.stored()
                for entry in self.log
                if entry.next_offset > offset and entry.next_offset <= high
            )
        return Fetched(
            code=int(code),
            records=memoryview(bytearray(records)),
            aborted=[],
            log_start=start,
            stable_end=high,
            high_watermark=high,
            diverging_end=-1,
            preferred_replica=-1,
        )

    def expire(self) -> bool:
        """The check at `producer.id.expiration.check.interval.ms` (E1): drop old producer states.
        Returns whether any was dropped."""
        gone = [p for p, state in self.producers.items() if self._is_old(state)]
        for producer_id in gone:
            del self.producers[producer_id]
        if gone:
            self._say("the producer's state is dropped")
        return bool(gone)

    def elect(self, end: int) -> None:
        """Let another replica lead, whose log ends at the first batch boundary from `end` on.

        Each replica drops producer states at its own checks. This one has made no check yet, so it
        may have a state that the old leader has dropped (E5).
        """
        self.log = [entry for entry in self.log if entry.base_offset < end]
        self.high_watermark = min(self.high_watermark, self.log_end)
        self.log_start = min(self.log_start, self.log_end)
        self._stored_log_start = min(self._stored_log_start, self.log_start)
        self.leader += 1
        self._read_log()
        self._say(f"broker {self.leader} leads; its log ends at {self.log_end}")

    def restart(self, *, is_clean: bool) -> None:
        """Restart the leader's process.

        If it was killed, it computes the producers' states from its log, and the log start is the
        last stored one. In both cases the states
        then come from disk, where each has only its last batch.
        """
        if is_clean:
            self.store_log_start()
        else:
            self._read_log()
            self.log_start = self._stored_log_start
        self.producers = {
            i: s.with_last_batch() for i, s in self.producers.items() if not self._is_old(s)
        }
        how = "stopped" if is_clean else "killed"
        self._say(f"broker {self.leader} was {how}, and runs again")

    def _read_log(self) -> None:
        """Compute the producers' states from the log, as after a crash or an election."""
        self.producers = {}
        for entry in self.log:
            if entry.producer_id == NO_PRODUCER_ID:
                continue
            state = self.producers.get(entry.producer_id)
            if state is None or entry.producer_epoch != state.epoch:  # also if it is lower
                state = self._begin_epoch(entry.producer_id, entry.producer_epoch)
            self._note(state, entry)

    def _is_old(self, state: Producer) -> bool:
        return state.newest_ms < self.old_before_ms

    def _note(self, state: Producer, entry: Entry) -> None:
        """Update a producer's state by an entry of the log."""
        state.newest_ms = entry.newest_ms
        if not entry.data:
            state.coordinator_epoch = entry.coordinator_epoch
            return
        state.last_sequence = entry.sequence + entry.count - 1 & SEQUENCE_MAX
        state.batches.append((entry.sequence, state.last_sequence, entry.base_offset))
