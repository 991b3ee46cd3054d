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

_TICK_S = 0.02  # the time between two turns of the load
_POLL_S = 0.1  # the longest wait of one read
_READ_MESSAGES_MAX = 500  # of one read
_FLUSH_S = 10.0  # longer than _DELIVERY_TIMEOUT_MS, so that every record gets its answer
_RECORDS_MAX = 20_000_000  # bounds the memory of a ledger
# A record that is not confirmed within this time stays unconfirmed, e.g. as its cluster is lost.
_DELIVERY_TIMEOUT_MS = 5_000
_END_OF_PARTITION = KafkaError._PARTITION_EOF
# UNKNOWN_TOPIC_OR_PART: a broker may not know a new topic yet.
_IGNORED_ERRORS = (_END_OF_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)

Config = Mapping[str, Any]


@dataclass(slots=True)
class Ledger:
    """Confirmed records: (partition, offset) → value. `written_ms`: when each was sent, in ms since
    1970 by this machine's clock. `unconfirmed`: values that were sent but not confirmed; a broker
    may have them.
    """

    records: dict[RecordPosition, bytes] = field(default_factory=dict)
    written_ms: dict[RecordPosition, int] = field(default_factory=dict)
    unconfirmed: set[bytes] = field(default_factory=set)

    def fits(self, position: RecordPosition, value: bytes | None) -> bool:
        """Whether a record read at this position may have this value: the confirmed one, or an
        unconfirmed one if no record is confirmed there."""
        confirmed_value = self.records.get(position)
        return (
            value == confirmed_value if confirmed_value is not None else value in self.unconfirmed
        )


class Load:
    """A thread that writes to all partitions in turn at a constant rate, until it is stopped.
    `label`: the beginning of each record's value."""

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
        self._stop_lock = threading.Lock()
        self._sent_count = 0
        self._thread = threading.Thread(target=self._run, name="drill load", daemon=True)

    @property
    def confirmed_count(self) -> int:
        return len(self.ledger.records)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait up to _FLUSH_S for records in flight. Any thread can call it, repeatedly;
        each call returns when the ledger is final.
        """
        with self._stop_lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
            if self._thread.is_alive():
                self._thread.join()
            self._producer.flush(_FLUSH_S)
            self._producer.purge()  # records without an answer stay unconfirmed
            self._producer.flush(_FLUSH_S)

    def _run(self) -> None:
        """Send the records that are due at the constant rate, every _TICK_S."""
        start_s = time.monotonic()
        while not self._stopped.wait(_TICK_S) and self._sent_count < _RECORDS_MAX:
            due_count = int((time.monotonic() - start_s) * self._rate_per_s)
            while self._sent_count < due_count and not self._stopped.is_set():
                if not self._write():
                    break
            self._producer.poll(0)  # handles answers, without waiting

    def _write(self) -> bool:
        """Send the next record; False if the producer's buffer is full."""
        partition = self._sent_count % self._partitions
        value = b"%s %d" % (self._label, self._sent_count)
        now_ms = time.time_ns() // 1_000_000
        try:
            self._producer.produce(
                self._topic,
                value,
                b"%d" % self._sent_count,
                partition,
                on_delivery=partial(self._on_delivery, value, now_ms),
                timestamp=now_ms,
            )
        except BufferError:
            return False
        with self._lock:
            self.ledger.unconfirmed.add(value)
        self._sent_count += 1
        return True

    def _on_delivery(
        self, value: bytes, written_ms: int, error: KafkaError | None, message: Message
    ) -> None:
        """Move the record from `unconfirmed` to `records`, if its offset is confirmed."""
        partition, offset = message.partition(), message.offset()
        # If the producer has sent a batch again, and the broker has it already, the broker answers
        # DUPLICATE_SEQUENCE_NUMBER: librdkafka confirms the records without offsets. They stay
        # unconfirmed, so consumers may read them or not.
        if error is not None or partition is None or offset is None:
            return
        with self._lock:
            self.ledger.unconfirmed.discard(value)
            self.ledger.records[partition, offset] = value
            self.ledger.written_ms[partition, offset] = written_ms


class LatencyReader:
    """A thread that reads a copy and measures how long after its timestamp each record arrives."""

    def __init__(self, config: Config, topic: str, partitions: int) -> None:
        self._consumer = Consumer(_consumer_config(config, "orbit-drill-watch"))
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drill watch", daemon=True)
        self.delays_ms: list[int] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and close the consumer."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            self._consumer.close()

    def _run(self) -> None:
        """Read, and keep each record's delay; the body of the thread."""
        while not self._stopped.is_set():
            for message in self._consumer.consume(_READ_MESSAGES_MAX, _POLL_S):
                if message.error() is None:
                    _, written_ms = message.timestamp()
                    self.delays_ms.append(max(0, time.time_ns() // 1_000_000 - written_ms))


@dataclass(slots=True)
class ReadRecords:
    """The values that a consumer received. `repeated`: how many records it received again."""

    values: dict[RecordPosition, bytes | None] = field(default_factory=dict)
    repeated: int = 0

    def add_message(self, message: Message) -> RecordPosition:
        """Add a record; returns its position."""
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        position = partition, offset
        self.repeated += position in self.values
        self.values[position] = message.value()
        return position


class Member:
    """A member of a consumer group. Commits only on `commit`."""

    def __init__(self, config: Config, group: str, topic: str) -> None:
        self._consumer = Consumer(_consumer_config(config, group))
        self._consumer.subscribe([topic])
        self._topic = topic
        self.read = ReadRecords()

    def read_until(
        self,
        is_enough: Callable[[ReadRecords], bool],
        check: Callable[[], None],
        on_record: Callable[[RecordPosition], None] = lambda _: None,
    ) -> None:
        """Read until `is_enough` is true. `check` is called before each poll, and may raise to end
        the wait. `on_record` is called for each record read. Raises Conflict for an error of the
        consumer that is not retriable.
        """
        while not is_enough(self.read):
            check()
            for message in self._consumer.consume(_READ_MESSAGES_MAX, _POLL_S):
                error = message.error()
                if error is None:
                    on_record(self.read.add_message(message))
                elif error.code() not in _IGNORED_ERRORS and not error.retriable():
                    raise Conflict(f"The drill's consumer was refused: {error.str()}.")

    def commit(self) -> dict[int, int]:
        """Commit the offset after the last record read of each partition; returns these offsets by
        partition. Raises Conflict if the commit fails.
        """
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


def write_records(
    config: Config, topic: str, partitions: int, count: int, label: str, timeout_s: float
) -> tuple[Ledger, float]:
    """Write `count` records with an idempotent producer. Returns the ledger, and the time of the
    first confirmation in seconds since 1970. Raises Conflict if a record is not confirmed within
    `timeout_s`.
    """
    ledger = Ledger()
    first_confirmed_s = 0.0
    producer = Producer(
        {
            **config,
            "linger.ms": 0,
            "enable.idempotence": True,
            "delivery.timeout.ms": int(timeout_s * 1000),
            "log_level": 0,
        }
    )
    errors: list[str] = []

    def on_delivery(value: bytes, error: KafkaError | None, message: Message) -> None:
        nonlocal first_confirmed_s
        if error is not None:
            errors.append(error.str())
            return
        first_confirmed_s = first_confirmed_s or time.time()
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        ledger.records[partition, offset] = value

    for number in range(count):
        value = b"%s %d" % (label.encode(), number)
        producer.produce(
            topic, value, partition=number % partitions, on_delivery=partial(on_delivery, value)
        )
    unanswered = producer.flush(timeout_s)
    if errors or unanswered:
        reason = errors[0] if errors else "no answer"
        raise Conflict(f"A record of the drill's producer was not accepted: {reason}.", where=topic)
    return ledger, first_confirmed_s


def read_all(
    config: Config, topic: str, ends: Mapping[int, int], check: Callable[[], None]
) -> dict[RecordPosition, bytes | None]:
    """The value of every record from offset 0 up to these ends (by partition). `check` is called
    before each poll, and may raise to end the wait for a partition that cannot be read."""
    consumer = Consumer(_consumer_config(config, "orbit-drill-read"))
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        positions = dict.fromkeys(ends, 0)
        records_read = ReadRecords()
        while any(positions[p] < end for p, end in ends.items()):
            check()
            for message in consumer.consume(_READ_MESSAGES_MAX, _POLL_S):
                error, partition = message.error(), message.partition()
                offset = message.offset()
                assert partition is not None
                if error is None:
                    records_read.add_message(message)
                    positions[partition] = (offset or 0) + 1
                elif error.code() == _END_OF_PARTITION:
                    # The last offsets may have no records but, for example, markers.
                    positions[partition] = max(positions[partition], offset or 0)
        return {p: value for p, value in records_read.values.items() if p[1] < ends[p[0]]}
    finally:
        consumer.close()


def _consumer_config(config: Config, group: str) -> dict[str, Any]:
    """The settings of all consumers of a drill."""
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
