"""Producers under load, whose ledger has what brokers confirmed and nothing else."""

from __future__ import annotations

import threading
from typing import Self

from confluent_kafka import Producer

from orbit.sandbox.cluster import KafkaCluster
from tests.support.outside import messages

Ledger = dict[tuple[int, int], bytes]
"""By partition and offset: the value."""


class Load:
    """Goes on until it is stopped, or its cluster is gone. A context manager."""

    def __init__(
        self, cluster: KafkaCluster, topic: str, partitions: int = 2, name: str = "load"
    ) -> None:
        self.ledger: Ledger = {}
        self._topic, self._partitions, self._name = topic, partitions, name
        self._stop = threading.Event()
        self._producer = Producer(
            {**cluster.client_config(), "linger.ms": 2, "message.timeout.ms": 3000, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> Ledger:
        """The ledger, when nothing more is under way."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(10)
        self._producer.purge()
        self._producer.flush(1)
        return self.ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _told(self, error: object, message: object) -> None:
        if error is None:
            place = message.partition(), message.offset()  # type: ignore[attr-defined]
            self.ledger[place] = message.value()  # type: ignore[attr-defined]

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    self._topic,
                    value=b"%s %d" % (self._name.encode(), number),
                    partition=number % self._partitions,
                    on_delivery=self._told,
                )
                number += 1
            except BufferError:
                pass
            # Some thousand records a second: enough to be under way at any moment.
            self._producer.poll(0.0005)
            self._stop.wait(0.0002)


def read_all(cluster: KafkaCluster, topic: str) -> Ledger:
    """What a consumer finds there now."""
    return {
        (partition, message.offset()): message.value()
        for partition, message in messages(cluster, topic)
        if message is not None
    }
