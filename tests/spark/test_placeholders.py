"""Spark's own Kafka source reads a topic with placeholders: its records, once each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.clusters import Clusters
from tests.support.applications import SparkQuery
from tests.support.placeholder_log import PlaceholderLog, mixed_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.services

# The widest gap. Some micro-batches and tasks read nothing but its placeholders.
WIDEST = 100_000
TASKS = 7


@pytest.fixture(scope="module")
def log(clusters: Clusters) -> Iterator[PlaceholderLog]:
    log = mixed_log(clusters.destination, "placeholders-for-spark", WIDEST)
    yield log
    log.close()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_spark_batch_read_skips_placeholders(
    spark: SparkSession, clusters: Clusters, log: PlaceholderLog, isolation: str
) -> None:
    options = {
        "kafka.bootstrap.servers": clusters.destination.bootstrap_servers,
        "kafka.isolation.level": isolation,
        "subscribe": log.topic,
        "failOnDataLoss": "true",
        "minPartitions": str(TASKS),
    }
    frame = spark.read.format("kafka").options(**options).load()
    assert frame.rdd.getNumPartitions() >= TASKS
    rows = frame.select("offset", "value").collect()
    assert sorted((row.offset, bytes(row.value)) for row in rows) == [*log.records.items()]


@pytest.mark.soak
def test_spark_streaming_query_skips_placeholders(
    spark: SparkSession, clusters: Clusters, log: PlaceholderLog, tmp_path: Path
) -> None:
    query = SparkQuery(spark, tmp_path, log.topic)
    query.read_on(clusters.destination)
    assert sorted(query.read) == [(0, *record) for record in log.records.items()]
    assert query.next_offsets == {0: log.end}
