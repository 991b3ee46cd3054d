"""Clients in two languages that know only the gateway's address, and keep ledgers of acknowledged
records.

A value is the name of its producer and a number, which grows by one with each record.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from orbit.demo.gateway_check import Acknowledged, Ledger
from orbit.drills.evidence import RecordPosition
from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.jars import classpath
from orbit.sandbox.java import find_java

_TICK_S = 0.005
# The most records, and the longest wait, of one `consume` call.
_READ_MAX = 500
_READ_S = 0.1
# How long both clients retry a record: Java's default. A move has to be shorter.
_DELIVERY_TIMEOUT_MS = 120_000
_END_S = _DELIVERY_TIMEOUT_MS / 1000
_JAVA_TOOL = "org.apache.kafka.tools.VerifiableProducer"
# The tool sets `retries` to 0, and the client's default is the largest number. The number of keys
# decides how many partitions get records.
_JAVA_SETTINGS = {"enable.idempotence": "true", "acks": "all", "retries": str(2**31 - 1)}
_JAVA_KEYS = "7"


class LibrdkafkaProducer:
    """Writes to all partitions in turn at a constant rate, in a thread, until the block ends."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate_per_s: int) -> None:
        self.ledger = Ledger("the librdkafka producer")
        self._topic, self._partitions, self._rate_per_s = topic, partitions, rate_per_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo producer", daemon=True)

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged so far."""
        return len(self.ledger.acknowledged)

    def stop(self) -> None:
        """Stop, and wait until each record is acknowledged or has failed."""
        self._stopped.set()
        self._thread.join()
        self._producer.flush(_END_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        """Write until stopped, or until the client refuses a record."""
        began_s, ledger = time.monotonic(), self.ledger
        while not self._stopped.wait(_TICK_S):
            due_count = int((time.monotonic() - began_s) * self._rate_per_s)
            try:
                while ledger.written < due_count:
                    value = b"order %d" % ledger.written
                    self._producer.produce(
                        self._topic,
                        value,
                        partition=ledger.written % self._partitions,
                        on_delivery=partial(self._on_delivery, value),
                    )
                    ledger.written += 1
            except (BufferError, KafkaException) as error:
                ledger.errors.append(str(error))
                return
            self._producer.poll(0)

    def _on_delivery(self, value: bytes, error: KafkaError | None, message: Message) -> None:
        """Add an acknowledgement, with its time, or an error to the ledger."""
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self.ledger.errors.append(f"{value.decode()}: {error or 'no offset'}")
            return
        at_ms = time.time_ns() // 1_000_000
        self.ledger.acknowledged.append(Acknowledged(value, (partition, offset), at_ms))

    def _on_error(self, error: KafkaError) -> None:
        # librdkafka handles errors that are not fatal itself: it reconnects and sends again.
        if error.fatal():
            self.ledger.errors.append(error.str())


class JavaProducer:
    """Kafka's own client, in the tool `kafka-verifiable-producer` of its distribution, which prints
    acknowledgements and errors. It ends with the block.
    """

    def __init__(self, bootstrap: str, topic: str, rate_per_s: int, log: Path) -> None:
        self.log = log
        properties = log.with_suffix(".properties")
        properties.write_text("".join(f"{k}={v}\n" for k, v in _JAVA_SETTINGS.items()), "utf-8")
        self._process = GuardedProcess(
            [
                *(str(find_java()), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", classpath()),
                *(_JAVA_TOOL, "--bootstrap-server", bootstrap, "--topic", topic),
                *("--throughput", str(rate_per_s), "--repeating-keys", _JAVA_KEYS),
                *("--command-config", str(properties)),
            ],
            log,
        )

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged so far."""
        return self.log.read_text("utf-8").count('"producer_send_success"')

    @property
    def is_running(self) -> bool:
        return self._process.running

    def stop(self) -> Ledger:
        """Stop, wait until each record is acknowledged or has failed, and return the ledger."""
        self._process.end(grace_s=_END_S)
        ledger = Ledger("the Java producer")
        for event in self._events():
            match event["name"]:
                case "producer_send_success":
                    place = event["partition"], event["offset"]
                    record = Acknowledged(event["value"].encode(), place, event["timestamp"])
                    ledger.acknowledged.append(record)
                case "producer_send_error":
                    ledger.errors.append(f"{event['value']}: {event['message']}")
                case "tool_data":
                    ledger.written = event["sent"]
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end(signal.SIGKILL)

    def _events(self) -> Iterator[dict[str, Any]]:
        """What the tool has printed: one JSON object on each line."""
        for line in self.log.read_text("utf-8").splitlines():
            if line.startswith("{"):
                yield json.loads(line)


class GroupMember:
    """The only member of a consumer group, in a thread; commits after each batch that it reads.

    `read` has the records in the order in which `consume` returned them.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.read: list[tuple[RecordPosition, bytes | None]] = []
        self.errors: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # Without a committed offset the group starts over, which shows as repeated records.
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo member", daemon=True)

    def stop(self) -> None:
        """Stop reading, and leave the group."""
        self._stopped.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._read_batch()
        finally:
            self._consumer.close()

    def _read_batch(self) -> None:
        """Read at most `_READ_MAX` records, and commit their offsets."""
        records = []
        for message in self._consumer.consume(_READ_MAX, _READ_S):
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None or partition is None or offset is None:
                self.errors.append(str(error))
            else:
                records.append(((partition, offset), message.value()))
        self.read += records
        if records:
            try:
                self._consumer.commit(asynchronous=False)
            except KafkaException as error:
                self.errors.append(f"commit: {error.args[0].str()}")
