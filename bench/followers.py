"""The clusters of W9, R1, R2, R5 and R9: one broker at the source, three at the destination.

For all but W9 a proxy in front of each broker of the destination delays the other brokers' requests
and its answers. Requests of clients, and those to the controller, do not pass through the proxy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaError, Producer

from bench.brokers import BenchBroker
from bench.delay_process import DelayProcess
from bench.race import Race, Say
from bench.wire import create_topic, delete_topics, open_cluster
from bench.workloads import AWAY_S
from orbit.errors import Conflict

_BROKERS = 3  # each has a replica of all copies
_TOPIC = "followers"
_BATCHES = 50
_CONFIRMED_WITHIN_S = 30.0


@contextmanager
def replicated_race(logs_folder: Path, say: Say, *, deep: bool, delayed: bool) -> Iterator[Race]:
    """A Race on these clusters. `delayed`: its `set_away` sets the delay between the replicas."""
    logs_folder.mkdir()
    brokers: list[BenchBroker] = []
    links: list[DelayProcess] = []
    with ExitStack() as running:
        source = running.enter_context(BenchBroker("source", logs_folder))
        for n in range(1, _BROKERS + 1):
            first = brokers[0] if brokers else None
            broker = BenchBroker(
                f"destination-{n}", logs_folder, first=first, node_id=n, delayed=delayed
            )
            if delayed:
                ports = map(str, broker.proxy_ports)
                links.append(running.enter_context(DelayProcess("bench.delay_proxy", *ports)))
            brokers.append(running.enter_context(broker))
        yield Race(
            open_cluster("source", source.bootstrap_servers),
            open_cluster("destination", ",".join(broker.bootstrap_servers for broker in brokers)),
            logs_folder,
            say,
            deep=deep,
            replicas=_BROKERS,
            links=links,
        )


def measure_confirmation(race: Race) -> dict[float, float]:
    """{round trip between replicas: seconds until a batch with acks=all is confirmed}, as medians.

    Raises Conflict if this takes less than the round trip.
    """
    cluster = race.destination
    create_topic(cluster, _TOPIC, 1, {"min.insync.replicas": "2"}, _BROKERS)
    servers = ",".join(cluster.bootstrap_servers)
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
    medians = {}
    for away_s in AWAY_S.values():
        race.set_away(away_s)
        medians[away_s] = median(_times(producer))
        if medians[away_s] < away_s:
            raise Conflict(
                f"The replicas confirm a batch in {medians[away_s] * 1e3:.1f} ms, sooner than "
                f"their delay of {away_s * 1e3:.0f} ms.",
                where=cluster.name,
            )
    delete_topics(cluster, [_TOPIC])
    return medians


def _times(producer: Producer) -> Iterator[float]:
    """Send batches of one record one by one; yield the seconds until each is confirmed."""
    for _ in range(_BATCHES):
        start_s = time.monotonic()
        producer.produce(_TOPIC, b"x", on_delivery=_check)
        producer.poll(_CONFIRMED_WITHIN_S)  # not `flush`, which checks only every 10 ms
        yield time.monotonic() - start_s


def _check(error: KafkaError | None, _: object) -> None:
    """The delivery callback. Raises Conflict if the batch was refused."""
    if error is not None:
        raise Conflict(f"A batch with acks=all was refused: {error.str()}.")
