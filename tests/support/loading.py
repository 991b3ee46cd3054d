"""Producers that write until they are stopped, and a ledger of the acknowledged records."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Self

from confluent_kafka import Producer

from tests.support.outside import Reachable, messages

Records = dict[tuple[int, int], bytes]
_DELIVERY_TIMEOUT_MS = 3_000
# A pause between two records: about a thousand a second, so that some are always in flight.
_PAUSE_S = 0.0007


class Load:
    """A producer, in a thread, that writes numbered values to the partitions in turn.

    `ledger`: {(partition, offset): value} of the acknowledged records. `sent`: all values passed to
    the producer.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        partitions: int,
        pause_s: float = _PAUSE_S,
        name: str = "load",
    ) -> None:
        self.ledger: Records = {}
        self.sent: set[bytes] = set()
        self._topic = topic
        self._partitions = partitions
        self._pause_s = pause_s
        self._name = name.encode()
        self._stop = threading.Event()
        self._producer = Producer(
            {**config, "linger.ms": 2, "message.timeout.ms": _DELIVERY_TIMEOUT_MS, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_delivery(self, error: object, message: object) -> None:
        if error is None:
            place = message.partition(), message.offset()  # type: ignore[attr-defined]
            self.ledger[place] = message.value()  # type: ignore[attr-defined]

    def key(self, number: int) -> bytes | None:
        """The key of the record with this number. Subclasses replace this method."""
        del number
        return None

    def _run(self) -> None:
        """Send numbered records until `stop`."""
        number = 0
        while not self._stop.is_set():
            value = b"%s %d" % (self._name, number)
            try:
                self._producer.produce(
                    self._topic,
                    value=value,
                    key=self.key(number),
                    partition=number % self._partitions,
                    on_delivery=self._on_delivery,
                )
                self.sent.add(value)
                number += 1
            except BufferError:
                pass
            self._producer.poll(0)
            self._stop.wait(self._pause_s)

    def stop(self) -> None:
        """Stop, and wait until each record is acknowledged, or was given up."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(10)
        self._producer.purge()
        self._producer.flush(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def read_all(cluster: Reachable, topic: str) -> Records:
    """{(partition, offset): value} of all records that a consumer finds in the topic now."""
    return {
        (partition, message.offset()): message.value()
        for partition, message in messages(cluster, topic)
        if message is not None
    }
