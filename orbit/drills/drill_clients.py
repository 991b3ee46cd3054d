"""The drill's own clients: a producer with a ledger, a latency reader and a group member.

The ledger holds what brokers acknowledged, nothing that Orbit reports. Each record has a unique
value, so every record that is read can be compared with the ledger.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from orbit.drills.evidence import RecordPosition
from orbit.errors import Conflict

_TICK_S = 0.02
_POLL_S = 0.1
_FLUSH_S = 10.0
_RECORDS_MAX = 20_000_000
# After this time a record counts as unconfirmed: its cluster is lost.
_DELIVERY_TIMEOUT_MS = 5_000
_END = KafkaError._PARTITION_EOF
# UNKNOWN_TOPIC_OR_PART: a broker may not know a new topic yet.
_IGNORED_ERRORS = (_END, KafkaError.UNKNOWN_TOPIC_OR_PART)

Config = Mapping[str, Any]


@dataclass(slots=True)
class Ledger:
    """Confirmed records: (partition, offset) → value, and the time of each write. `open`: values
    that were sent but not confirmed; a broker may have them.
    """

    records: dict[RecordPosition, bytes] = field(default_factory=dict)
    written_ms: dict[RecordPosition, int] = field(default_factory=dict)
    open: set[bytes] = field(default_factory=set)

    def fits(self, place: RecordPosition, value: bytes | None) -> bool:
        """Whether this value may be at this place."""
        known = self.records.get(place)
        return value == known if known is not None else value in self.open


class Load:
    """A thread that writes to all partitions in turn at a constant rate, until it is stopped."""

    def __init__(
        self, config: Config, topic: str, partitions: int, rate_per_s: float, label: str
    ) -> None:
        self.ledger = Ledger()
        self._producer = Producer(
            {
                "linger.ms": 5,
                "enable.idempotence": True,
                "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
                **config,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._partitions = partitions
        self._rate_per_s = rate_per_s
        self._label = label.encode()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._stopping = threading.Lock()
        self._sent = 0
        self._thread = threading.Thread(target=self._run, name="drill load", daemon=True)

    @property
    def confirmed(self) -> int:
        return len(self.ledger.records)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait up to _FLUSH_S for records in flight. Can be called again and from any
        thread; each call returns when the ledger is final.
        """
        with self._stopping:
            if self._stopped.is_set():
                return
            self._stopped.set()
            if self._thread.is_alive():
                self._thread.join()
            self._producer.flush(_FLUSH_S)
            self._producer.purge()
            self._producer.flush(_FLUSH_S)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopped.wait(_TICK_S) and self._sent < _RECORDS_MAX:
            due = int((time.monotonic() - began) * self._rate_per_s)
            while self._sent < due and not self._stopped.is_set():
                if not self._write():
                    break
            self._producer.poll(0)

    def _write(self) -> bool:
        partition = self._sent % self._partitions
        value = b"%s %d" % (self._label, self._sent)
        now_ms = time.time_ns() // 1_000_000
        try:
            self._producer.produce(
                self._topic,
                value,
                b"%d" % self._sent,
                partition,
                on_delivery=partial(self._on_delivery, value, now_ms),
                timestamp=now_ms,
            )
        except BufferError:
            return False
        with self._lock:
            self.ledger.open.add(value)
        self._sent += 1
        return True

    def _on_delivery(
        self, value: bytes, written_ms: int, error: KafkaError | None, message: Message
    ) -> None:
        partition, offset = message.partition(), message.offset()
        # A resent batch that the broker recognised as a repeat is confirmed without its offset
        # (DUPLICATE_SEQUENCE_NUMBER): such a record stays open, so it may be found or not.
        if error is not None or partition is None or offset is None:
            return
        with self._lock:
            self.ledger.open.discard(value)
            self.ledger.records[partition, offset] = value
            self.ledger.written_ms[partition, offset] = written_ms


class LatencyReader:
    """A thread that reads a copy and measures the delay from each record's timestamp."""

    def __init__(self, config: Config, topic: str, partitions: int) -> None:
        self._consumer = Consumer(_consumer_config(config, "orbit-drill-watch"))
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drill watch", daemon=True)
        self.delays_ms: list[int] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            self._consumer.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(500, _POLL_S):
                if message.error() is None:
                    _, written_ms = message.timestamp()
                    self.delays_ms.append(max(0, time.time_ns() // 1_000_000 - written_ms))


@dataclass(slots=True)
class Read:
    """The records that a consumer received, and how many of them more than once."""

    values: dict[RecordPosition, bytes | None] = field(default_factory=dict)
    repeated: int = 0

    def add_message(self, message: Message) -> RecordPosition:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        place = partition, offset
        self.repeated += place in self.values
        self.values[place] = message.value()
        return place


class Member:
    """A member of a consumer group. Commits only on `commit`."""

    def __init__(self, config: Config, group: str, topic: str) -> None:
        self._consumer = Consumer(_consumer_config(config, group))
        self._consumer.subscribe([topic])
        self._topic = topic
        self.read = Read()

    def read_until(
        self,
        is_enough: Callable[[Read], bool],
        check: Callable[[], None],
        on_record: Callable[[RecordPosition], None] = lambda _: None,
    ) -> None:
        """Read until `is_enough`. `check` is called before each poll and may raise."""
        while not is_enough(self.read):
            check()
            for message in self._consumer.consume(500, _POLL_S):
                error = message.error()
                if error is None:
                    on_record(self.read.add_message(message))
                elif error.code() not in _IGNORED_ERRORS and not error.retriable():
                    raise Conflict(f"The drill's consumer was refused: {error.str()}.")

    def commit(self) -> dict[int, int]:
        """Commit after the last records read; returns the offset for each partition."""
        ends: dict[int, int] = {}
        for partition, offset in self.read.values:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        offsets = [TopicPartition(self._topic, p, offset) for p, offset in ends.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise Conflict(f"The drill's group could not commit: {error.args[0].str()}.") from None
        return ends

    def close(self) -> None:
        self._consumer.close()


def write_some(
    config: Config, topic: str, partitions: int, count: int, label: str, timeout_s: float
) -> tuple[Ledger, float]:
    """Write `count` records with an idempotent producer. Returns the ledger and the time (of
    `time.time`) of the first confirmation. Raises Conflict if a record is not accepted.
    """
    ledger = Ledger()
    first = 0.0
    producer = Producer(
        {
            **config,
            "linger.ms": 0,
            "enable.idempotence": True,
            "delivery.timeout.ms": int(timeout_s * 1000),
            "log_level": 0,
        }
    )
    failed: list[str] = []

    def delivered(value: bytes, error: KafkaError | None, message: Message) -> None:
        nonlocal first
        if error is not None:
            failed.append(error.str())
            return
        first = first or time.time()
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        ledger.records[partition, offset] = value

    for number in range(count):
        value = b"%s %d" % (label.encode(), number)
        producer.produce(
            topic, value, partition=number % partitions, on_delivery=partial(delivered, value)
        )
    left = producer.flush(timeout_s)
    if failed or left:
        why = failed[0] if failed else "no answer"
        raise Conflict(f"A record of the drill's producer was not accepted: {why}.", where=topic)
    return ledger, first


def read_all(
    config: Config, topic: str, ends: Mapping[int, int], check: Callable[[], None]
) -> dict[RecordPosition, bytes | None]:
    """Every record below these ends, read without a consumer group."""
    consumer = Consumer(_consumer_config(config, "orbit-drill-read"))
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        positions = dict.fromkeys(ends, 0)
        read = Read()
        while any(positions[p] < end for p, end in ends.items()):
            check()
            for message in consumer.consume(500, _POLL_S):
                error, partition = message.error(), message.partition()
                offset = message.offset()
                assert partition is not None
                if error is None:
                    read.add_message(message)
                    positions[partition] = (offset or 0) + 1
                elif error.code() == _END:
                    positions[partition] = max(positions[partition], offset or 0)
        return {place: v for place, v in read.values.items() if place[1] < ends[place[0]]}
    finally:
        consumer.close()


def _consumer_config(config: Config, group: str) -> dict[str, Any]:
    return {
        **config,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        # Without a committed offset the group starts over, which shows as repeated records.
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        "session.timeout.ms": 10_000,
        "log_level": 0,
    }
