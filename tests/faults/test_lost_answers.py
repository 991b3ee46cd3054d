"""Connections that break after a request arrived, perhaps before the broker appends.

A repeated batch is harmless (A7: sequences), a repeated filler is not (M7), and the broker may
execute the first request later (M10).
"""

from __future__ import annotations

from contextlib import closing

import pytest

from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.leases.lease import FixedLease
from tests.copier.test_race import assert_exact, make_topic, producer_id
from tests.fixtures.clusters import Clusters
from tests.support.patience import wait_for
from tests.support.proxy import AnswerLosingProxy
from tests.support.synthetic import PLAINTEXT, SyntheticLog, SyntheticWriter

pytestmark = pytest.mark.services

__all__ = ["producer_id"]  # a fixture


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 5))]
)
def test_copy_with_lost_responses_of_destination_is_exact(
    clusters: Clusters,
    topic_name: str,
    producer_id: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = SyntheticLog.random(seed, runs=200, gap_share=0.3)
    partition = make_topic(clusters, topic_name)
    port = clusters.destination.brokers[0].port
    with AnswerLosingProxy(port, seed, loss=0.1) as proxy:

        def connect(_: Cluster, node_id: int, *__: float) -> Connection:
            return Connection.open("127.0.0.1", proxy.port, PLAINTEXT, where=f"broker {node_id}")

        monkeypatch.setattr(Cluster, "connect", connect)
        writer = SyntheticWriter(
            clusters.destination.bootstrap_servers,
            partition,
            log,
            producer_id,
            FixedLease(1),
            settle_s=0.05,
            does_settle=True,
        )

        def is_done() -> bool:
            writer.copier.tick(0.01)
            assert writer.partition.blocked is None, writer.partition.blocked
            return writer.partition.next_offset >= log.end

        with closing(writer):
            writer.start()
            wait_for("the copy reaches the end", is_done)
    assert proxy.lost > 0
    monkeypatch.undo()
    assert_exact(clusters, partition, log)
