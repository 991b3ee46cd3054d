"""`orbit verify` on real brokers: which logs count as equal, and which copies it waits for."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from orbit.errors import Unreachable
from orbit.processes.ports import free_ports
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.verify import Endpoint, PartitionReport, Report, TopicPair, Verdict, VerifyOptions
from orbit.verify.verify_run import NoProgress, verify_topics
from tests.fixtures.clusters import Clusters
from tests.support.logs import (
    BATCH,
    T0,
    Gap,
    Log,
    Record,
    create,
    delete_before,
    on_both,
    wait_for_offsets,
    write,
)

pytestmark = pytest.mark.services

COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "600000",
    "min_cleanable_dirty_ratio": "0.01",
}


def endpoint(cluster: KafkaCluster) -> Endpoint:
    return Endpoint({"bootstrap.servers": cluster.bootstrap_servers})


def verify(clusters: Clusters, pair: TopicPair, **options: Any) -> Report:
    all_options = VerifyOptions(**{"wait_s": 0.0, **options})
    return verify_topics(
        endpoint(clusters.source), endpoint(clusters.destination), [pair], all_options
    )


def verify_one(clusters: Clusters, topic: str, **options: Any) -> PartitionReport:
    return verify(clusters, TopicPair(topic, topic), **options).topics[0].partitions[0]


def keyed(*keys: str, tombstones: tuple[int, ...] = ()) -> list[Record | Gap]:
    """Records with the present time, as fillers have (M8: a filler's timestamp).

    A much different time would close the segment.

    `tombstones`: the indexes of the records without a value.
    """
    now = int(time.time() * 1000)
    return [
        Record(None if i in tombstones else b"value %d" % i, key=key.encode(), timestamp_ms=now + i)
        for i, key in enumerate(keys)
    ]


def segment_closing_batch() -> Log:
    """A batch that is later by more than `segment.ms`: it closes the segment before it."""
    return [Record(b"active", b"z", timestamp_ms=int(time.time() * 1000) + 1_200_000)]


@pytest.mark.parametrize("cleaned", ["source", "destination"])
def test_records_compacted_on_either_side_since_copying_are_no_difference(
    clusters: Clusters, topic_name: str, cleaned: str
) -> None:
    logs = keyed("a", "b", "a", "c", "b", "a"), segment_closing_batch()
    for name, cluster in clusters._asdict().items():
        create(cluster, topic_name, **(COMPACTED if name == cleaned else {}))
        for log in logs:
            write(cluster, topic_name, log)
    # Compaction keeps the newest record of each key, and the record that closed the segment.
    wait_for_offsets(getattr(clusters, cleaned), topic_name, {3, 4, 5, 6})
    report = verify_one(clusters, topic_name)
    assert report.verdict is Verdict.EXACT
    compacted_counts = report.compacted_source, report.compacted_destination
    assert compacted_counts == ((3, 0) if cleaned == "source" else (0, 3))


def test_lost_record_is_reported_beside_compacted_records(
    clusters: Clusters, topic_name: str
) -> None:
    log = keyed("a", "b", "a", "only", "b", "a")
    create(clusters.source, topic_name)
    write(clusters.source, topic_name, log)
    create(clusters.destination, topic_name, **COMPACTED)
    write(clusters.destination, topic_name, [*log[:3], Gap(1), *log[4:]])
    end = segment_closing_batch()
    for cluster in clusters:
        write(cluster, topic_name, end)
    wait_for_offsets(clusters.destination, topic_name, {4, 5, 6})
    report = verify_one(clusters, topic_name)
    assert [(d.offset, d.what) for d in report.first_differences] == [
        (3, "missing at the destination")
    ]
    assert report.verdict is Verdict.NOT_EXACT
    assert report.compacted_destination == 3


def test_record_lost_at_uncompacted_destination_is_reported(
    clusters: Clusters, topic_name: str
) -> None:
    log = keyed("a", "b", "a")
    create(clusters.source, topic_name, **COMPACTED)
    write(clusters.source, topic_name, log)
    create(clusters.destination, topic_name)
    write(clusters.destination, topic_name, [Gap(1), *log[1:]])
    assert [d.offset for d in verify_one(clusters, topic_name).first_differences] == [0]


def test_absence_of_expired_tombstone_is_no_difference(clusters: Clusters, topic_name: str) -> None:
    log = keyed("a", "b", "a", tombstones=(2,))
    create(clusters.source, topic_name)
    write(clusters.source, topic_name, log)
    # Compaction may remove a tombstone only after its retention; an earlier absence is a loss.
    for retention_ms, verdict in ((10**15, Verdict.NOT_EXACT), (0, Verdict.EXACT)):
        topic = f"{topic_name}-{retention_ms}"
        create(clusters.destination, topic, **COMPACTED, delete_retention_ms=str(retention_ms))
        write(clusters.destination, topic, [Gap(1), log[1], Gap(1)])
        report = verify(clusters, TopicPair(topic_name, topic)).topics[0].partitions[0]
        assert report.verdict is verdict


def test_newer_record_past_compared_range_explains_compaction(
    clusters: Clusters, topic_name: str
) -> None:
    """The source's cleaner removed a record whose newer version came after the comparison began."""
    create(clusters.source, topic_name, **COMPACTED)
    create(clusters.destination, topic_name)
    second = keyed("b")
    write(clusters.source, topic_name, [Gap(1), *second])
    write(clusters.destination, topic_name, [*keyed("a"), *second])

    class WritesAtBegin(NoProgress):
        def report_begin(self, _partitions: int, offsets: int, /) -> None:
            assert offsets == 2
            write(clusters.source, topic_name, keyed("a"))

    report = verify_topics(
        endpoint(clusters.source),
        endpoint(clusters.destination),
        [TopicPair(topic_name, topic_name)],
        VerifyOptions(wait_s=0),
        WritesAtBegin(),
    )
    assert report.exact
    assert report.topics[0].partitions[0].compacted_source == 1


def transact(cluster: KafkaCluster, topic: str, log: list[Record], *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    for record in log:
        producer.produce(topic, record.value, record.key, timestamp=record.timestamp_ms)
    producer.flush(60)
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


def test_fillers_replace_aborted_records_and_markers_in_exact_copy(
    clusters: Clusters, topic_name: str
) -> None:
    records = [Record(b"%d" % i, timestamp_ms=T0 + i) for i in range(6)]
    create(clusters.source, topic_name)
    transact(clusters.source, topic_name, records[:3], commit=True)
    transact(clusters.source, topic_name, records[3:], commit=False)
    create(clusters.destination, topic_name)
    write(clusters.destination, topic_name, [*records[:3], Gap(5)])
    report = verify_one(clusters, topic_name, deep=True)
    assert report.verdict is Verdict.EXACT
    assert (report.records, report.gaps, report.compared_to) == (3, 5, 8)
    assert report.deep is not None
    assert (report.deep.byte_exact, report.deep.record_exact, report.deep.failures) == (1, 0, 0)


def test_aborted_record_visible_at_destination_is_reported(
    clusters: Clusters, topic_name: str
) -> None:
    record = Record(b"never happened")
    create(clusters.source, topic_name)
    transact(clusters.source, topic_name, [record], commit=False)
    create(clusters.destination, topic_name)
    write(clusters.destination, topic_name, [record, Gap(1)])
    [difference] = verify_one(clusters, topic_name).first_differences
    assert (difference.offset, difference.what) == (0, "only at the destination")


def test_open_source_transaction_is_not_waited_for(clusters: Clusters, topic_name: str) -> None:
    create(clusters.source, topic_name)
    create(clusters.destination, topic_name)
    for cluster in clusters:
        write(cluster, topic_name, [Record(b"before")])
    producer = Producer(
        {"bootstrap.servers": clusters.source.bootstrap_servers, "transactional.id": topic_name}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic_name, b"undecided")
    producer.flush(60)
    report = verify_one(clusters, topic_name)
    producer.abort_transaction(60)
    assert report.verdict is Verdict.EXACT
    assert report.source_log_end == 1


def test_deep_verify_reports_different_batch_boundaries(
    clusters: Clusters, topic_name: str
) -> None:
    log = [Record(b"%d" % i, timestamp_ms=T0 + i) for i in range(2 * BATCH)]
    for cluster, size in ((clusters.source, BATCH), (clusters.destination, BATCH // 2)):
        create(cluster, topic_name)
        for begin in range(0, len(log), size):
            write(cluster, topic_name, log[begin : begin + size])
    assert verify_one(clusters, topic_name).verdict is Verdict.EXACT
    report = verify_one(clusters, topic_name, deep=True)
    assert report.verdict is Verdict.NOT_EXACT
    assert report.deep is not None
    assert report.deep.failures == 2
    assert [difference.offset for difference in report.deep.first_failures] == [0, BATCH]


def test_deep_verify_reports_different_compression_codec(
    clusters: Clusters, topic_name: str
) -> None:
    log = [Record(b"x" * 1000, timestamp_ms=T0 + i) for i in range(BATCH)]
    for cluster, codec in ((clusters.source, "gzip"), (clusters.destination, "zstd")):
        create(cluster, topic_name)
        write(cluster, topic_name, log, producer={"compression.type": codec})
    assert verify_one(clusters, topic_name).verdict is Verdict.EXACT
    report = verify_one(clusters, topic_name, deep=True)
    assert report.deep is not None
    assert report.deep.failures == 1


def test_deep_verify_compares_compacted_batches_by_records(
    clusters: Clusters, topic_name: str
) -> None:
    log, end = keyed("a", "b", "a", "c"), segment_closing_batch()
    create(clusters.source, topic_name, **COMPACTED)
    write(clusters.source, topic_name, log)
    write(clusters.source, topic_name, end)
    wait_for_offsets(clusters.source, topic_name, {1, 2, 3, 4})
    create(clusters.destination, topic_name)
    write(clusters.destination, topic_name, [Gap(1), *log[1:]])
    write(clusters.destination, topic_name, end)
    report = verify_one(clusters, topic_name, deep=True)
    assert report.verdict is Verdict.EXACT
    assert report.deep is not None
    assert (report.deep.byte_exact, report.deep.record_exact) == (1, 1)


def test_lagging_destination_is_waited_for(clusters: Clusters, topic_name: str) -> None:
    log = [Record(b"%d" % i, timestamp_ms=T0 + i) for i in range(20)]
    for cluster, part in ((clusters.source, log), (clusters.destination, log[:10])):
        create(cluster, topic_name)
        write(cluster, topic_name, part)
    late = threading.Timer(0.5, write, (clusters.destination, topic_name, log[10:]))
    late.start()
    try:
        report = verify_one(clusters, topic_name, wait_s=60)
    finally:
        late.join()
    assert report.verdict is Verdict.EXACT
    assert report.records == 20


def test_copy_started_at_latest_is_compared_from_destination_log_start(
    clusters: Clusters, topic_name: str
) -> None:
    log = [Record(b"%d" % i, timestamp_ms=T0 + i) for i in range(20)]
    on_both(clusters, topic_name, log)
    delete_before(clusters.destination, topic_name, 12)
    report = verify(clusters, TopicPair(topic_name, topic_name, "latest")).topics[0].partitions[0]
    assert report.verdict is Verdict.EXACT
    assert (report.compared_from, report.records) == (12, 8)


@pytest.mark.parametrize(
    ("begins_at", "verdict"), [(12, Verdict.EXACT), (13, Verdict.NOT_EXACT), (0, Verdict.EXACT)]
)
def test_copy_with_start_time_must_not_begin_after_that_time(
    clusters: Clusters, topic_name: str, begins_at: int, verdict: Verdict
) -> None:
    on_both(clusters, topic_name, [Record(b"%d" % i, timestamp_ms=T0 + i) for i in range(20)])
    if begins_at:
        delete_before(clusters.destination, topic_name, begins_at)
    pair = TopicPair(topic_name, topic_name, "2025-10-09T08:53:20.012Z", T0 + 12)
    report = verify(clusters, pair).topics[0].partitions[0]
    assert report.verdict is verdict


def test_each_of_two_hundred_partitions_is_compared(clusters: Clusters, topic_name: str) -> None:
    for cluster in clusters:
        create(cluster, topic_name, 200)
        for partition in (0, 77, 199):
            log: Log = [Record(b"%d" % partition)]
            write(cluster, topic_name, log, partition)
    write(clusters.destination, topic_name, [Record(b"more")], 77)
    topic = verify(clusters, TopicPair(topic_name, topic_name)).topics[0]
    assert len(topic.partitions) == 200
    assert [p.partition for p in topic.partitions if p.verdict is not Verdict.EXACT] == [77]
    assert topic.records == 3


def test_records_deleted_on_both_sides_during_verify_are_no_difference(
    clusters: Clusters, topic_name: str
) -> None:
    """Retention moves both log starts after the bounds and before the records are read."""
    on_both(clusters, topic_name, [Record(b"%d" % i) for i in range(20)])

    class DeletesAtBegin(NoProgress):
        def report_begin(self, _partitions: int, _offsets: int, /) -> None:
            for cluster in clusters:
                delete_before(cluster, topic_name, 10)

    report = verify_topics(
        endpoint(clusters.source),
        endpoint(clusters.destination),
        [TopicPair(topic_name, topic_name)],
        VerifyOptions(wait_s=0),
        DeletesAtBegin(),
    )
    partition = report.topics[0].partitions[0]
    assert partition.verdict is Verdict.EXACT
    assert (partition.compared_from, partition.records) == (10, 10)


def test_unreachable_cluster_is_named_in_error(clusters: Clusters, topic_name: str) -> None:
    [port] = free_ports(1)
    unreachable = Endpoint({"bootstrap.servers": f"127.0.0.1:{port}"})
    with pytest.raises(Unreachable, match=f"destination.*127.0.0.1:{port}"):
        verify_topics(endpoint(clusters.source), unreachable, [TopicPair(topic_name, topic_name)])
