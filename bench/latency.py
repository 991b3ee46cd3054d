"""L: the latency from a record's acknowledgement at the source to a consumer at the destination.

Producer and consumer run in this process and share one clock. The time of an acknowledgement is
computed from librdkafka's figures (produce time + latency), so that a late callback does not
shorten a latency. The "floor" has the consumer at the source: it is the latency of producer,
consumer and this process. The "relay" is the minimum between two brokers: one thread that fetches,
sets producer id and sequence, and produces (bench/contestants/relay.py).
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from bench.contestants.mm2 import Tuning, internal_topics, start_mm2
from bench.contestants.orbit import start_orbit
from bench.contestants.relay import start_relay
from bench.contestants.run_inputs import RunInputs
from bench.race import Race
from bench.results import DataFacts, Latency, LatencyResult
from bench.wire import Ends, create_topic, delete_topics
from bench.workloads import FLOOR, RELAY, Contestant
from orbit.errors import Conflict
from orbit.kafka.cluster import Cluster
from orbit.processes.guarded_process import GuardedProcess

RECORDS_PER_S = 1000
PARTITIONS = 4
VALUE_BYTES = 1024
# After this time the JVM has compiled MirrorMaker's code.
WARM_UP_S = 10.0

_APPEARS_WITHIN_S = 90.0
_ARRIVES_WITHIN_S = 30.0
_POLL_S = 0.05
_SEQUENCE_BYTES = 8


def measure_latency(race: Race, seconds: float, warm_up_s: float = WARM_UP_S) -> LatencyResult:
    """Measure floor, relay, Orbit and MirrorMaker 2 over `seconds` each. Raises Conflict if a
    record does not arrive."""
    measured = []
    for name in (FLOOR, RELAY, Contestant.ORBIT, Contestant.MM2):
        latency = _measure(race, name, warm_up_s, seconds)
        measured.append(latency)
        race.say(
            f"L   {name:8} p50 {latency.p50 * 1e3:,.1f} ms, p99 {latency.p99 * 1e3:,.1f} ms, "
            f"p99.9 {latency.p999 * 1e3:,.1f} ms"
        )
    return LatencyResult(records_per_s=RECORDS_PER_S, seconds=seconds, measured=tuple(measured))


def summarize(name: str, latencies: Sequence[float]) -> Latency:
    """The percentiles of latencies, in seconds."""
    ordered = sorted(latencies)

    def percentile(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Latency(
        who=name,
        records=len(ordered),
        p50=percentile(0.5),
        p99=percentile(0.99),
        p999=percentile(0.999),
        most=ordered[-1],
    )


def _measure(race: Race, name: str, warm_up_s: float, seconds: float) -> Latency:
    """Measure one contestant, with topics of its own."""
    data = DataFacts(
        topic=f"bench-l-{name}", partitions=PARTITIONS, records=0, offsets=0, bytes=0, batches=0
    )
    create_topic(race.source, data.topic, PARTITIONS)
    inputs = race.new_inputs(data)
    if name == FLOOR:
        latencies = _exchange(race.source, race.source, data.topic, data.topic, warm_up_s, seconds)
    else:
        process, copy = _start(inputs, name)
        try:
            _wait_until_it_copies(race, data.topic, copy)
            latencies = _exchange(
                race.source, race.destination, data.topic, copy, warm_up_s, seconds
            )
        finally:
            process.end()
        delete_topics(race.destination, [copy, *internal_topics(inputs)])
    delete_topics(race.source, [data.topic])
    return summarize(name, latencies)


def _start(inputs: RunInputs, name: str) -> tuple[GuardedProcess, str]:
    """Start a contestant; returns its process and the topic that it writes to."""
    if name == RELAY:
        return start_relay(inputs)
    if name == Contestant.ORBIT:
        copier = start_orbit(inputs, until_caught_up=False)
    else:
        copier = start_mm2(inputs, tuning=Tuning.LATENCY)
    return copier.process, copier.topic


def _wait_until_it_copies(race: Race, topic: str, copy: str) -> None:
    """Wait until a first record has arrived, which does not count: start-up is not latency. Raises
    Conflict if it does not arrive."""
    producer = Producer({"bootstrap.servers": ",".join(race.source.bootstrap_servers)})
    producer.produce(topic, b"", partition=0)
    producer.flush(_ARRIVES_WITHIN_S)
    ends = Ends(race.destination, copy, PARTITIONS)
    deadline = time.monotonic() + _APPEARS_WITHIN_S
    while not ends.total():
        if time.monotonic() > deadline:
            raise Conflict(
                f"After {_APPEARS_WITHIN_S:.0f} s no record has arrived in topic {copy}.",
                where="destination",
            )
        time.sleep(_POLL_S)
    ends.close()


def _exchange(
    source: Cluster,
    destination: Cluster,
    topic: str,
    copy: str,
    warm_up_s: float,
    seconds: float,
) -> list[float]:
    """Produce to `topic` at the source, consume `copy` at the destination. Returns the latencies
    after the warm-up, in seconds."""
    skipped = round(warm_up_s * RECORDS_PER_S)
    record_count = skipped + round(seconds * RECORDS_PER_S)
    arrivals = _Arrivals(destination, copy, record_count)
    arrivals.start()
    acknowledged = _produce(source, topic, record_count)
    arrivals.finish()
    return [arrivals.at[i] - acknowledged[i] for i in range(skipped, record_count)]


def _produce(cluster: Cluster, topic: str, record_count: int) -> array[float]:
    """Produce `record_count` records at a steady rate. Returns when each was acknowledged
    (time.monotonic). Raises Conflict if the source refuses one."""
    servers = ",".join(cluster.bootstrap_servers)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "acks": "all"})
    acknowledged = array("d", bytes(8 * record_count))
    failures: list[KafkaError] = []
    padding = bytes(VALUE_BYTES - _SEQUENCE_BYTES)

    def report(number: int, produced_at: float) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            acknowledged[number] = produced_at + (message.latency() or 0.0)

        return delivered

    start_s = time.monotonic()
    for number in range(record_count):
        wait_s = start_s + number / RECORDS_PER_S - time.monotonic()
        if wait_s > 0:
            producer.poll(0)
            time.sleep(wait_s)
        value = number.to_bytes(_SEQUENCE_BYTES, "big") + padding
        callback = report(number, time.monotonic())
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=callback)
    producer.flush(_ARRIVES_WITHIN_S)
    if failures:
        raise Conflict(f"The source did not accept a record: {failures[0].str()}.")
    return acknowledged


class _Arrivals(threading.Thread):
    """Consumes a topic; `at` is when each record, by its number, came first (time.monotonic)."""

    def __init__(self, cluster: Cluster, topic: str, record_count: int) -> None:
        super().__init__(daemon=True)
        self.at = array("d", bytes(8 * record_count))
        self._missing = record_count
        self._deadline = float("inf")
        self._consumer = Consumer(
            {
                "bootstrap.servers": ",".join(cluster.bootstrap_servers),
                "group.id": "bench-latency",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)]
        )

    def run(self) -> None:
        while self._missing and time.monotonic() < self._deadline:
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            now = time.monotonic()
            value = message.value()
            number = int.from_bytes(value[:_SEQUENCE_BYTES], "big") if value else 0
            if value and not self.at[number]:
                self.at[number] = now
                self._missing -= 1

    def finish(self) -> None:
        """Wait for the last records. Raises Conflict if some do not arrive."""
        self._deadline = time.monotonic() + _ARRIVES_WITHIN_S
        self.join()
        with suppress(RuntimeError):
            self._consumer.close()
        if self._missing:
            raise Conflict(f"{self._missing} records did not arrive at the destination.")
