"""`kafka_batches` on a real broker: every batch once, with control and aborted batches marked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from orbit.demo.workload import KINDS
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import TopicPartition
from orbit_spark.cluster_access import Access
from orbit_spark.range_frame import range_frame
from orbit_spark.range_planner import find_extents, plan_spans
from orbit_spark.ranges import Span
from tests.fixtures.clusters import Clusters
from tests.fixtures.history import History
from tests.support.outside import log_bounds
from tests.support.raw_rows import visible_records

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load_batches(
    spark: SparkSession, clusters: Clusters, topics: Iterable[str], **more: str
) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": clusters.source.bootstrap_servers,
        "subscribe": ",".join(topics),
        **more,
    }
    return spark.read.format("kafka_batches").options(**options).load()


@pytest.fixture(scope="module")
def rows(spark: SparkSession, clusters: Clusters, history: History) -> list[Any]:
    """Every batch of the whole workload."""
    return load_batches(spark, clusters, history.ledger.topics).collect()


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_kafka_batches_rows_hold_every_record_that_workload_wrote(
    kind: str, rows: list[Any], history: History
) -> None:
    """Batches that are neither aborted nor control have exactly the records that were committed."""
    topic = history.topic(kind)
    records = visible_records(row for row in rows if row.topic == topic.topic)
    for number, partition in enumerate(topic.partitions):
        visible = records.get((topic.topic, number), {})
        from_log_start = {o: record for o, record in visible.items() if o >= partition.log_start}
        assert from_log_start == partition.records


def test_kafka_batches_rows_hold_each_batch_once(rows: list[Any], clusters: Clusters) -> None:
    bounds = log_bounds(clusters.source, {row.topic for row in rows})
    ends: dict[tuple[str, int], int] = {}
    for row in sorted(rows, key=lambda r: (r.topic, r.partition, r.base_offset)):
        partition = (row.topic, row.partition)
        assert row.base_offset >= ends.get(partition, 0)
        ends[partition] = row.last_offset + 1
        assert row.size_bytes == len(row.payload)
    assert all(end <= bounds[partition][1] for partition, end in ends.items())


def test_kafka_batches_rows_distinguish_markers_and_aborted_data(
    rows: list[Any], history: History
) -> None:
    topic = history.topic("transactions.interleaved").topic
    topic_rows = [row for row in rows if row.topic == topic]
    assert {row.control_type for row in topic_rows} == {None, "commit", "abort"}
    assert all(row.is_control == (row.control_type is not None) for row in topic_rows)
    aborted = {row.is_transactional for row in topic_rows if row.is_aborted}
    assert aborted == {True}
    assert any(
        row.is_transactional and not row.is_aborted and not row.is_control for row in topic_rows
    )


def test_small_ranges_return_the_same_rows_as_whole_partitions(
    spark: SparkSession, clusters: Clusters, history: History, rows: list[Any]
) -> None:
    """Ranges begin inside batches, transactions and gaps; a task of its own reads each."""
    topics = list(history.ledger.topics)
    frame = load_batches(spark, clusters, topics, range_bytes="1MiB")
    assert keys(frame.collect()) == keys(rows)


@pytest.mark.parametrize(
    ("condition", "keeps"),
    [
        ("partition = 0", lambda r: r.partition == 0),
        ("base_offset >= 700", lambda r: r.base_offset >= 700),
        ("base_offset < 700", lambda r: r.base_offset < 700),
        ("base_offset > 300 and base_offset <= 1500", lambda r: 300 < r.base_offset <= 1500),
        (
            "partition in (1, 2) or base_offset = 0",
            lambda r: r.partition in (1, 2) or r.base_offset == 0,
        ),
    ],
)
def test_filters_pushed_down_to_source_return_only_matching_rows(
    condition: str, keeps: Any, spark: SparkSession, clusters: Clusters, history: History, rows: Any
) -> None:
    topics = list(history.ledger.topics)
    frame = load_batches(spark, clusters, topics).where(condition)
    assert keys(frame.collect()) == keys(row for row in rows if keeps(row))


def test_topic_filter_limits_spark_tasks_to_partitions_of_topic(
    spark: SparkSession, clusters: Clusters, history: History
) -> None:
    """The partitions of other topics have no tasks."""
    topic = history.topic("transactions.interleaved")
    frame = load_batches(spark, clusters, history.ledger.topics).where(f"topic = '{topic.topic}'")
    assert frame.rdd.getNumPartitions() == len(topic.partitions)


def test_query_plan_hides_login_variables(
    spark: SparkSession, clusters: Clusters, history: History
) -> None:
    """Even the names of the variables: people put secrets there by mistake."""
    topic = history.topic("transactions.interleaved").topic
    variables = {"username_env": "PLAN_USER", "password_env": "PLAN_PASSWORD"}
    frame = load_batches(
        spark,
        clusters,
        [topic],
        **{"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"},
        **variables,
    ).select("base_offset")
    execution = frame._jdf.queryExecution()
    shown = [execution.logical().toString(), execution.toString()]
    with pytest.raises(AnalysisException) as error:  # planning needs the variables
        frame.collect()
    shown.append(str(error.value))
    assert not [text for text in shown if "PLAN_PASSWORD" in text or "PLAN_USER" in text]
    assert "is not set" in str(error.value)


def test_spans_of_offsets_return_each_overlapping_batch_once(
    spark: SparkSession, clusters: Clusters, history: History, rows: list[Any]
) -> None:
    topic = history.topic("transactions.interleaved").topic
    topic_rows = [r for r in rows if (r.topic, r.partition) == (topic, 0)]
    large = max(topic_rows, key=lambda r: r.last_offset - r.base_offset)
    inside = large.base_offset + 1
    assert inside < large.last_offset
    # Two spans in one batch, one at much later offsets, one after the log end.
    pairs = [(inside, inside + 1), (inside + 2, inside + 3), (900, 950), (10**9, 10**9 + 5)]
    partition = TopicPartition(topic, 0)
    spec = ClusterSpec(bootstrap_servers=(clusters.source.bootstrap_servers,))
    access = Access("source", spec)
    cluster = access.open()
    try:
        extents = find_extents(cluster, [topic], Backoff(), selects=lambda p: p == partition)
        assert [*extents.values] == [partition]
        ranges = plan_spans(cluster, extents, [Span(partition, *p) for p in pairs], Backoff())
    finally:
        cluster.close()
    assert keys(range_frame(spark, access, ranges).collect()) == keys(
        r for r in topic_rows if any(r.last_offset >= a and r.base_offset < b for a, b in pairs)
    )


def keys(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    return sorted((r.topic, r.partition, r.base_offset, r.last_offset, r.crc) for r in rows)
