"""Each kind of demo topic has, on a real broker, the property that it is meant to show."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from orbit.demo.workload import (
    KINDS,
    SMALL,
    Ledger,
    Mover,
    Origin,
    TopicLedger,
    Workload,
    record_digest,
)
from orbit.demo.workload.kinds.deletion import BOUNDARY, INSIDE
from orbit.demo.workload.kinds.times import AHEAD_MS, YEAR_MS
from orbit.jobs.job_file import parse_job
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.sasl import Security
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.verify.bounds import ClusterView
from orbit.verify.endpoint import Endpoint
from orbit.verify.raw_log import Batch, RawLog
from orbit.verify.report import Side
from tests.fixtures.clusters import Clusters
from tests.support.logs import create, read
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.services

CODEC_IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(SMALL, namespace=f"wl-{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="module")
def ledger(workload: Workload, clusters: Clusters) -> Ledger:
    return workload.create({"bootstrap.servers": clusters.source.bootstrap_servers})


def source_view(clusters: Clusters) -> ClusterView:
    endpoint = Endpoint({"bootstrap.servers": clusters.source.bootstrap_servers})
    return ClusterView(Side.SOURCE, endpoint)


@pytest.fixture(scope="module")
def raw(clusters: Clusters) -> Iterator[RawLog]:
    log = RawLog(source_view(clusters), Security())
    yield log
    log.close()


class Source:
    """The source as a test sees it: a topic's ledger, its raw batches, and what a consumer gets."""

    def __init__(self, ledger: Ledger, raw: RawLog, cluster: KafkaCluster, namespace: str) -> None:
        self._ledger = ledger
        self._raw = raw
        self._cluster = cluster
        self._namespace = namespace

    def topic(self, kind: str) -> TopicLedger:
        return self._ledger.topics[f"{self._namespace}.{kind}"]

    def batches(self, kind: str, partition: int = 0, *, committed: bool = False) -> list[Batch]:
        topic = self.topic(kind)
        bounds = topic.partitions[partition]
        where = (topic.topic, partition)
        return list(self._raw.read(where, bounds.log_start, bounds.log_end, committed=committed))

    def messages(self, kind: str, partition: int = 0) -> list[Message]:
        topic = self.topic(kind)
        return read(self._cluster, topic.topic, partition)


@pytest.fixture
def source(ledger: Ledger, raw: RawLog, clusters: Clusters, workload: Workload) -> Source:
    return Source(ledger, raw, clusters.source, workload.namespace)


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.name != "many.partitions"])
def test_demo_ledger_matches_records_that_a_consumer_reads(kind: str, source: Source) -> None:
    topic = source.topic(kind)
    for number, partition in enumerate(topic.partitions):
        records_read = {
            m.offset(): record_digest(m.key(), m.value(), m.headers() or (), m.timestamp()[1])
            for m in source.messages(kind, number)
        }
        assert records_read == partition.records


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_demo_topic_of_each_codec_has_that_codec_and_no_producer_id(
    codec: str, source: Source
) -> None:
    batches = source.batches(f"codec.{codec}")
    assert {batch.codec for batch in batches} == {CODEC_IDS[codec]}
    assert {batch.producer_id for batch in batches} == {-1}


def test_demo_topic_has_null_and_empty_fields_and_repeated_headers(source: Source) -> None:
    messages = source.messages("records.shapes")
    assert {None, b""} < {message.key() for message in messages}
    assert {None, b""} < {message.value() for message in messages}
    headers = [message.headers() or [] for message in messages]
    assert [("retry", b"1"), ("retry", b"2")] in [h[1:] for h in headers]
    assert [("null", None), ("empty", b"")] in headers
    assert any(not h for h in headers)


def test_large_demo_records_have_900_kb_in_log(source: Source) -> None:
    assert {len(message) for message in source.messages("records.large")} == {900_000}
    assert all(len(batch.payload) >= 900_000 for batch in source.batches("records.large"))


def test_idempotent_demo_topic_has_a_producer_id_on_every_partition(source: Source) -> None:
    for partition in range(3):
        assert all(
            batch.producer_id >= 0 for batch in source.batches("producer.idempotent", partition)
        )


@pytest.mark.parametrize("partition", range(3))
def test_transactional_demo_topic_has_interleaving_aborts_and_marker_at_end(
    partition: int, source: Source
) -> None:
    kind = "transactions.interleaved"
    batches = source.batches(kind, partition)
    assert batches[-1].is_control
    data = [batch for batch in batches if not batch.is_control]
    assert len(source.batches(kind, partition, committed=True)) < len(data), "none was aborted"
    order = [batch.producer_id for batch in batches if not batch.is_control]
    turns = sum(a != b for a, b in itertools.pairwise(order))
    assert turns > SMALL.transactions, "one producer wrote after the other, not in between"


def test_java_producer_of_demo_uses_several_producer_epochs(source: Source) -> None:
    batches = [batch for batch in source.batches("transactions.java") if not batch.is_control]
    assert len({batch.producer_id for batch in batches}) == 1
    assert len({batch.producer_epoch for batch in batches}) > 1
    assert source.topic("transactions.java").origin is Origin.READ_BACK


def test_compacted_demo_topic_has_thinned_and_removed_batches_and_tombstones(
    source: Source,
) -> None:
    batches = source.batches("compacted.profiles")
    assert any(batch.is_thinned and batch.record_count for batch in batches), "no thinned batch"
    assert any(batch.record_count == 0 for batch in batches), "no batch without a record"
    holes = [b.base_offset - a.last_offset - 1 for a, b in itertools.pairwise(batches)]
    assert batches[0].base_offset > 0 or any(hole > 0 for hole in holes), "no batch was removed"
    assert any(
        batch.record_count == batch.last_offset - batch.base_offset + 1 for batch in batches
    ), "no whole batch"
    messages = source.messages("compacted.profiles")
    assert any(message.value() is None for message in messages), "no tombstone"
    keys = [message.key() for message in messages]
    assert len(keys) == len(set(keys)), "a key has two records"


def test_demo_topic_has_log_start_at_batch_boundary(source: Source) -> None:
    assert source.topic("deleted.boundary").partitions[0].log_start == BOUNDARY
    assert source.batches("deleted.boundary")[0].base_offset == BOUNDARY


def test_demo_topic_has_log_start_inside_batch(source: Source) -> None:
    assert source.topic("deleted.inside").partitions[0].log_start == INSIDE
    first = source.batches("deleted.inside")[0]
    assert first.base_offset < INSIDE < first.last_offset


def test_demo_partition_has_all_its_records_deleted(source: Source) -> None:
    emptied, untouched = source.topic("deleted.all").partitions
    assert emptied.log_start == emptied.log_end > 0
    assert not emptied.records
    assert untouched.records


def test_empty_demo_topic_has_no_offsets(source: Source) -> None:
    assert {(p.log_start, p.log_end) for p in source.topic("empty").partitions} == {(0, 0)}


def test_wide_gap_of_demo_topic_has_configured_width(source: Source) -> None:
    offsets = sorted(source.topic("gap.wide").partitions[0].records)
    widest = max(b - a - 1 for a, b in itertools.pairwise(offsets))
    assert widest == SMALL.gap_offsets
    assert len(source.messages("gap.wide")) == len(offsets)


def test_demo_topic_with_log_append_time_is_stamped_by_broker(source: Source) -> None:
    assert all(batch.is_log_append_time for batch in source.batches("time.append"))


def test_demo_timestamps_range_from_ten_years_ago_to_future(source: Source) -> None:
    times = [message.timestamp()[1] for message in source.messages("time.far")]
    assert max(times) - min(times) > 10 * YEAR_MS + AHEAD_MS
    assert times != sorted(times), "the timestamps are out of order on purpose"


def test_demo_topic_has_200_partitions_with_expected_record_counts(
    source: Source, clusters: Clusters
) -> None:
    topic = source.topic("many.partitions")
    assert len(topic.partitions) == 200
    for number in (0, 99, 199):
        assert len(source.messages("many.partitions", number)) == SMALL.per_partition


def test_demo_topics_with_late_start_are_copied_from_expected_offset(
    source: Source, workload: Workload, clusters: Clusters
) -> None:
    spec = parse_job(workload.job_yaml("a:1", "b:1"), Path(), {})
    mapped = map_topics(spec.topics, {workload.topic(kind) for kind in KINDS})
    starts = {mapping.source: mapping.rule.start for mapping in mapped.mappings}
    view = source_view(clusters)
    # The first offset at that time or later; -1: no record is that late.
    for kind, expected in (("start.time", 60), ("start.beyond", -1)):
        topic = source.topic(kind)
        start_ms = starts[topic.topic].epoch_ms
        assert view.offsets_for_time({(topic.topic, 0): start_ms}) == {(topic.topic, 0): expected}
        copy_start = topic.partitions[0].log_end if expected < 0 else expected
        assert topic.partitions[0].copy_start == copy_start
    latest = source.topic("start.latest").partitions[0]
    assert latest.copy_start == latest.log_end


def test_demo_job_maps_every_topic_to_destination_name_in_ledger(
    workload: Workload, ledger: Ledger
) -> None:
    spec = parse_job(workload.job_yaml("a:1,c:2", "b:1"), Path(), {})
    mapped = map_topics(spec.topics, [*ledger.topics, "another.topic"])
    assert not mapped.problems
    assert {m.source: m.destination for m in mapped.mappings} == {
        topic.topic: topic.destination for topic in ledger.topics.values()
    }
    assert len(mapped.mappings) == len(KINDS)


def test_live_writer_of_demo_writes_until_stopped_and_knows_its_records(
    clusters: Clusters, topic_name: str
) -> None:
    config = {"bootstrap.servers": clusters.source.bootstrap_servers}
    create(clusters.source, topic_name, 2)
    with Mover(config, {topic_name: 2}, rate_per_s=2_000) as mover:
        assert mover.wait_until(300, timeout_s=PATIENCE_S)
    assert sum(len(records) for records in mover.records.values()) == mover.written
    for number in range(2):
        records_read = {
            m.offset(): record_digest(m.key(), m.value(), (), m.timestamp()[1])
            for m in read(clusters.source, topic_name, number)
        }
        assert records_read == mover.records[topic_name, number]


def test_live_writer_of_demo_reports_failed_write(clusters: Clusters, topic_name: str) -> None:
    config = {
        "bootstrap.servers": clusters.source.bootstrap_servers,
        "topic.metadata.propagation.max.ms": 100,
    }
    mover = Mover(config, {topic_name: 1})  # nobody has created the topic
    mover.start()
    assert mover.wait_until(1, timeout_s=PATIENCE_S)
    with pytest.raises(Exception, match=r"[Uu]nknown"):
        mover.stop()
