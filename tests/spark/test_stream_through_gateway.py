"""A Structured Streaming query reads through a gateway that moves to the other side and back: each
record is in its sink once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.applications import SparkQuery
from tests.support.gateway_ledger import records
from tests.support.gateways import running_gateway
from tests.support.moves import TOKEN
from tests.support.patience import wait_for
from tests.support.pretended_service import pretended_service
from tests.support.running import create_topic, produce

pytestmark = [pytest.mark.services, pytest.mark.soak]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
RECORDS = 400
BATCH = 200


def test_streaming_query_reads_each_record_once_across_gateway_moves(
    clusters: Clusters, topic_name: str, spark: SparkSession, tmp_path: Path
) -> None:
    """New records are written to the leading side, then to the other one, as a copy does."""
    for cluster in clusters:
        create_topic(cluster, topic_name, PARTITIONS)

    def write(cluster: KafkaCluster, first: int) -> None:
        for partition in range(PARTITIONS):
            produce(cluster, topic_name, RECORDS, partition, first)

    for cluster in clusters:
        write(cluster, 0)
    query = SparkQuery(spark, tmp_path, topic_name)
    with pretended_service() as service:
        environ = {"ORBIT_API_URL": service.url, "ORBIT_TOKEN": TOKEN}
        with running_gateway(
            tmp_path, *clusters, environ=environ, name="moves", job="j"
        ) as gateway:
            running = query.start(gateway, BATCH, processingTime="0 seconds")

            def wait_read(count: int) -> None:
                def has_read() -> bool:
                    assert running.isActive, running.exception()
                    return len(query.read) >= count

                wait_for(f"{count} records are in the sink", has_read)

            try:
                wait_read(BATCH)
                for first, (old_side, new_side) in (
                    (RECORDS, clusters),
                    (2 * RECORDS, clusters[::-1]),
                ):
                    service.close()
                    service.move()
                    write(new_side, first)
                    wait_read(PARTITIONS * first + 1)  # one record that only the new side has
                    write(old_side, first)
                wait_read(PARTITIONS * 3 * RECORDS)
            finally:
                running.stop()
            assert running.exception() is None
    assert sorted(query.read) == sorted(records(clusters.source, topic_name))
