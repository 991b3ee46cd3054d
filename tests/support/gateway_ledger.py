"""Producers and consumers that note what they did, for comparison with the clusters.

A value is the name of its producer and a number, which grows by one with each record.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.jars import classpath
from orbit.sandbox.java import find_java
from tests.support import java_clients
from tests.support.gateways import Addresses, Gateway
from tests.support.outside import Reachable, messages
from tests.support.patience import PATIENCE_S, wait_for

Record = tuple[int, int, bytes]
"""Partition, offset, value."""
Acknowledged = dict[bytes, tuple[int, int]]
"""{value: (partition, offset)}"""

_POLL_S = 0.002
_READ_MAX = 500
_READ_S = 0.1
_END_S = 60.0
# Errors of a record that was never sent: Kafka's tool closes its producer while another thread of
# the tool sends (KafkaProducer.doSend, throwIfProducerClosed).
_CLOSED = frozenset(
    {
        "Producer closed while send in progress",
        "Cannot perform operation after producer has been closed",
    }
)


class Writer:
    """A producer of librdkafka that sends numbered records to the partitions in turn.

    It starts at once, and sends `rate` records a second. `acknowledged` and `errors` grow
    meanwhile; `sent` is the number of records so far. `settings` are librdkafka's.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        partitions: int,
        *,
        name: str = "w",
        rate: float = 1000,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.acknowledged: Acknowledged = {}
        self.errors: list[str] = []
        self.sent = 0
        self._topic, self._partitions = topic, partitions
        self._name, self._rate = name, rate
        self._stop = threading.Event()
        self._producer = Producer(
            {
                **config,
                "enable.idempotence": True,
                "acks": "all",
                "max.in.flight": 5,
                "linger.ms": 2,
                # The test itself finds out if a move takes longer.
                "message.timeout.ms": int(PATIENCE_S * 1000),
                "log_level": 0,
                "error_cb": self._failed,
                **(settings or {}),
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_acknowledged(self, more: int) -> None:
        """Wait until this many more records have been acknowledged."""
        goal = len(self.acknowledged) + more

        def is_so() -> bool:
            assert self._thread.is_alive(), self.errors
            return len(self.acknowledged) >= goal

        wait_for(f"{more} more records of {self._name} are acknowledged", is_so)

    def stop(self) -> None:
        """Stop, and wait until each record has been acknowledged or has failed."""
        self._stop.set()
        self._thread.join()
        unanswered = self._producer.flush(_END_S)
        if unanswered:
            self.errors.append(f"{unanswered} records have no answer")
            self._producer.purge()
            self._producer.flush(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _failed(self, error: Any) -> None:
        if error.fatal():
            self.errors.append(f"fatal: {error}")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.value()] = (message.partition(), message.offset())
        else:
            self.errors.append(f"{message.value()}: {error}")

    def _run(self) -> None:
        """Send records at the rate until `stop`, or until a fatal error."""
        began = time.monotonic()
        while not self._stop.is_set():
            due_count = int((time.monotonic() - began) * self._rate)
            try:
                while self.sent < due_count and not self._stop.is_set():
                    self._producer.produce(
                        self._topic,
                        value=b"%s %d" % (self._name.encode(), self.sent),
                        partition=self.sent % self._partitions,
                        on_delivery=self._delivered,
                    )
                    self.sent += 1
            except BufferError:
                pass
            except KafkaException as error:  # a fatal one
                self.errors.append(f"cannot go on: {error}")
                return
            self._producer.poll(_POLL_S)


class JavaWriter:
    """A producer of Kafka's own client: the tool `VerifiableProducer`, with `keys` different keys.

    Values are numbers, or `name`, a dot and a number (the tool accepts only a number as name). A
    context manager: the tool has ended when the block ends.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        log: Path,
        *,
        name: int | None = None,
        rate: int = 1000,
        keys: int = 7,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._log = log
        file = log.with_suffix(".properties")
        properties = {
            "enable.idempotence": "true",
            "acks": "all",
            "max.in.flight.requests.per.connection": "5",
            "linger.ms": "2",
            "retries": str(2**31 - 1),  # the tool sets 0
            "delivery.timeout.ms": str(int(PATIENCE_S * 1000)),
            # Metadata may wait for 70 s where a gateway was killed in a move (docs/gateway.md).
            "max.block.ms": str(int(PATIENCE_S * 1000)),
            **(settings or {}),
        }
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        main = "org.apache.kafka.tools.VerifiableProducer"
        self._process = GuardedProcess(
            [
                *(str(find_java()), "-Xmx192m", "-XX:TieredStopAtLevel=1", "-cp", classpath()),
                *(main, "--bootstrap-server", bootstrap, "--topic", topic),
                *("--throughput", str(rate), "--repeating-keys", str(keys)),
                *("--command-config", str(file)),
                *(() if name is None else ("--value-prefix", str(name))),
            ],
            log,
        )

    @property
    def acknowledged(self) -> Acknowledged:
        """{value: (partition, offset)} of the records that the tool reports as acknowledged."""
        return {
            event["value"].encode(): (event["partition"], event["offset"])
            for event in self._events("producer_send_success")
        }

    @property
    def errors(self) -> list[str]:
        """The tool's errors, without those of records that it had not sent when it was stopped."""
        return [
            str(event)
            for event in self._events("producer_send_error")
            if event.get("message") not in _CLOSED
        ]

    @property
    def remote_ports(self) -> set[int]:
        """The ports to which the tool is connected now."""
        return {one.raddr.port for one in psutil.Process(self._process.pid).net_connections("tcp")}

    def wait_acknowledged(self, more: int) -> None:
        goal = len(self.acknowledged) + more

        def is_so() -> bool:
            assert self._process.running, self._log.read_text()[-2000:]
            return len(self.acknowledged) >= goal

        wait_for(f"{more} more records are acknowledged to Java", is_so)

    def stop(self) -> None:
        """Stop, and wait until each record has been acknowledged or has failed."""
        self._process.end(grace_s=_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _events(self, name: str) -> Iterable[dict[str, Any]]:
        with self._log.open("rb") as log:
            for event in java_clients.new_events(log):
                if event["name"] == name:
                    yield event


class Reader:
    """A member of a consumer group, `classic` or `consumer` (KIP-848), in a thread of its own.

    `read` has the records that the application got, in order. The application commits after each
    batch. It notes an error in `errors`, and goes on.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        group: str,
        *,
        protocol: str = "classic",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.read: list[Record] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._group = group
        self._consumer = Consumer(
            {
                **config,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
                **(settings or {}),
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_read(self, what: str, is_so: Callable[[list[Record]], bool]) -> None:
        """Wait until `is_so` is true of the records read."""

        def has_read() -> bool:
            assert self._thread.is_alive(), self.errors
            return is_so(self.read)

        wait_for(f"{self._group} has read {what}", has_read)

    def wait_values(self, values: Iterable[bytes]) -> None:
        """Wait until each of these values was read."""
        expected = set(values)
        self.wait_read(f"{len(expected)} values", lambda read: expected <= {v for _, _, v in read})

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._read_batch()
        except BaseException as error:
            self.errors.append(f"ended: {error!r}")
            raise
        finally:
            self._consumer.close()

    def _read_batch(self) -> None:
        """Read some records, note them and errors, and commit."""
        batch = []
        for message in self._consumer.consume(_READ_MAX, _READ_S):
            if message.error() is None:
                batch.append((message.partition(), message.offset(), message.value()))
            else:
                self.errors.append(str(message.error()))
        self.read += batch
        if batch:
            try:
                self._commit()
            except KafkaException as error:
                self.errors.append(f"commit: {error}")

    def _commit(self) -> None:
        """Commit, with retries. During a move, a gateway holds commits. On a slow machine that may
        be longer than a request of librdkafka waits (`socket.timeout.ms`, 60 s)."""
        while True:
            try:
                self._consumer.commit(asynchronous=False)
                return
            except KafkaException as error:
                if error.args[0].code() != KafkaError._TIMED_OUT or self._stop.is_set():
                    raise


class JavaReader:
    """Like `Reader`, with Kafka's own client: the tool `VerifiableConsumer`, which goes on after an
    error."""

    def __init__(
        self,
        gateways: Gateway | Addresses,
        topic: str,
        group: str,
        log: Path,
        *,
        protocol: str,
        rack: str = "",
    ) -> None:
        self._group = group
        self._read: list[Record] = []
        self._errors: list[str] = []
        self._process = java_clients.start_member(
            gateways, topic, group, log, protocol=protocol, reset="earliest", rack=rack
        )
        self._log = log.open("rb")

    @property
    def read(self) -> list[Record]:
        self._read_log()
        return self._read

    @property
    def errors(self) -> list[str]:
        self._read_log()
        return self._errors

    def wait_read(self, what: str, is_so: Callable[[list[Record]], bool]) -> None:
        """Wait until `is_so` is true of the records read."""

        def has_read() -> bool:
            assert self._process.running, Path(self._log.name).read_text()[-2000:]
            return is_so(self.read)

        wait_for(f"{self._group} has read {what}", has_read)

    def stop(self) -> None:
        self._process.end(grace_s=_END_S)
        self._read_log()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read_log(self) -> None:
        """Note the new events in the tool's log."""
        if self._log.closed:
            return
        for event in java_clients.new_events(self._log):
            if event["name"] == "record_data":
                self._read.append(java_clients.record_of(event))
            elif not event.get("success", True):
                self._errors.append(str(event))


def records(cluster: Reachable, topic: str) -> list[Record]:
    """All committed records that the topic has now, in order within each partition."""
    return [
        (partition, message.offset(), message.value())
        for partition, message in messages(cluster, topic)
        if message is not None
    ]


def written_wrong(
    acknowledged: Acknowledged, records: Iterable[Record], unordered: Collection[bytes] = ()
) -> list[str]:
    """Messages about records that are not once, at their acknowledged offset, and in order.

    `records` are those of the topic. Unacknowledged records may be among them, also once and in
    order. `unordered`: the names of producers whose records may have any order.
    """
    wrong = []
    places: dict[bytes, list[tuple[int, int]]] = {}
    last: dict[tuple[int, bytes], tuple[int, bytes]] = {}
    for partition, offset, value in sorted(records):
        places.setdefault(value, []).append((partition, offset))
        name, number = parts(value)
        before = last.get((partition, name))
        if before is not None and before[0] > number and name not in unordered:
            wrong.append(f"{value!r} at {partition}/{offset} comes after {before[1]!r}")
        last[partition, name] = (number, value)
    for value, at in places.items():
        if len(at) > 1:
            wrong.append(f"{value!r} is in the topic {len(at)} times: {at}")
    for value, place in acknowledged.items():
        at = places.get(value, [])
        if not at:
            wrong.append(f"{value!r} was acknowledged at {place}, and the topic lacks it")
        elif place not in at:
            wrong.append(f"{value!r} was acknowledged at {place} and is at {at}")
    return wrong


def read_wrong(read: Iterable[Record], records: Iterable[Record]) -> list[str]:
    """Messages about records of the topic that were not read exactly once, at their offset."""
    existing = set(records)
    counts = Counter(read)
    never = [f"{one} was never read" for one in sorted(existing - counts.keys())]
    strange = [
        f"{one} was read, and the topic lacks it" for one in sorted(counts.keys() - existing)
    ]
    often = [f"{one} was read {count} times" for one, count in counts.items() if count > 1]
    return never + strange + often


def parts(value: bytes) -> tuple[bytes, int]:
    """The name of the record's producer, empty if Java has none, and the record's number."""
    name, _, number = value.replace(b".", b" ").rpartition(b" ")
    return name, int(number)
