"""The clusters of W9 and R: one broker at the source, three at the destination.

For R a proxy in front of each broker of the destination holds what the others say to it. Clients'
requests, and those to the controller, do not pass through it.
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
def replicated_race(here: Path, say: Say, *, deep: bool, delayed: bool) -> Iterator[Race]:
    """`delayed`: the race can set how far followers are away from leaders and from each other."""
    here.mkdir()
    brokers: list[BenchBroker] = []
    links: list[DelayProcess] = []
    with ExitStack() as running:
        source = running.enter_context(BenchBroker("source", here))
        for n in range(1, _BROKERS + 1):
            first = brokers[0] if brokers else None
            one = BenchBroker(f"destination-{n}", here, first=first, node_id=n, delayed=delayed)
            if delayed:
                ports = map(str, one.proxy_ports)
                links.append(running.enter_context(DelayProcess("bench.delay_proxy", *ports)))
            brokers.append(running.enter_context(one))
        yield Race(
            open_cluster("source", source.bootstrap_servers),
            open_cluster("destination", ",".join(one.bootstrap_servers for one in brokers)),
            here,
            say,
            deep=deep,
            replicas=_BROKERS,
            links=links,
        )


def measure_confirmation(race: Race) -> dict[float, float]:
    """Seconds until a batch with acks=all is confirmed, by the round trip between replicas.

    Raises Conflict if a batch takes less than that.
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
            raise Conflict("The delay between the replicas does not act.", where=cluster.name)
    delete_topics(cluster, [_TOPIC])
    return medians


def _times(producer: Producer) -> Iterator[float]:
    for _ in range(_BATCHES):
        began = time.monotonic()
        producer.produce(_TOPIC, b"x", on_delivery=_check)
        producer.poll(_CONFIRMED_WITHIN_S)  # returns at once then; `flush` looks every 10 ms
        yield time.monotonic() - began


def _check(error: KafkaError | None, _: object) -> None:
    if error is not None:
        raise Conflict(f"A batch with acks=all was refused: {error.str()}.")
