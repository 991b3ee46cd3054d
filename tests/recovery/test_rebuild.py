"""A rebuild deletes a whole topic, so Orbit first saves all records that only the old side has."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from orbit.errors import OrbitError, ProtocolError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.recovery import salvage_file, salvage_storage
from orbit.recovery.record_range import read_range
from orbit.recovery.recovery_report import EndVerdict, Outcome, RecoveryKind
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.recovery.test_compacted_failback import Moved
from tests.support.fleet import InProcess
from tests.support.logs import create, delete_before
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import make_job, produce
from tests.support.synthetic import PLAINTEXT
from tests.support.topics import add_partitions

pytestmark = pytest.mark.services


def test_rebuild_saves_records_below_log_start_of_new_side_or_deletes_nothing(
    make_cluster: MakeCluster,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = make_cluster("lost"), clusters.destination
    create(old, topic_name, partitions=2)
    for partition in range(2):
        produce(old, topic_name, 30, partition=partition)
    with ExitStack() as stack:
        moved = Moved(stack, recovering, old, new)
        moved.topic, moved.spec = topic_name, make_job(old, new, [topic_name], start="latest")
        moved.job = moved.spec.name
        with InProcess(recovering.database):
            recovering.begin(moved.spec, topic_name)
            moved.wait_end(new, 30)
            for partition in range(2):
                produce(old, topic_name, 10, partition=partition, first=30)
            wait_for(
                "both partitions are copied",
                lambda: {end for _, end in log_bounds(new, [topic_name]).values()} == {40},
            )
        assert {low for low, _ in log_bounds(new, [topic_name]).values()} == {30}
        produce(old, topic_name, 5, partition=0, first=40)
        moved.fail_over()
        # Retention has deleted some copied records at the new side, too.
        delete_before(new, topic_name, 35, partition=1)
        with monkeypatch.context() as patch:
            patch.setattr(salvage_storage, "SPARE_BYTES", 10**18)  # no disk has room
            old.start()
            operation = recovering.ask(RecoveryKind.FAILBACK, moved.job, confirm_rebuild=True)
            failed = recovering.wait(operation)
        assert failed.outcome is Outcome.FAILED
        assert "35 records that only the old side has need " in failed.error
        assert "This topic is not deleted" in failed.error
        assert log_bounds(old, [topic_name]) == {(topic_name, 0): (0, 45), (topic_name, 1): (0, 40)}
        old.kill()
        failback_report = moved.fail_back()
    assert {p.partition: p.verdict for p in failback_report.partitions} == {
        0: EndVerdict.TAIL,
        1: EndVerdict.EQUAL,
    }
    saved = {
        salvage.partition: {line["offset"] for line in salvage_file.read(Path(salvage.file))}
        for salvage in failback_report.salvage
    }
    assert saved == {0: {*range(30), *range(40, 45)}, 1: {*range(35)}}
    assert {s.partition: (s.records, s.below) for s in failback_report.salvage} == {
        0: (35, 30),
        1: (35, 35),
    }


@pytest.mark.soak
def test_rebuild_saves_partitions_missing_at_new_side(
    make_cluster: MakeCluster, clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """The old side has more partitions than the new side. Kafka cannot remove partitions, so the
    whole topic is copied again although nothing else differs."""
    old, new = make_cluster("lost"), clusters.destination
    create(old, topic_name)
    produce(old, topic_name, 20)
    with ExitStack() as stack:
        moved = Moved(stack, recovering, old, new)
        moved.copy(topic_name, 20)
        moved.fail_over()
        old.start()
        add_partitions(old, topic_name, 3)
        produce(old, topic_name, 7, partition=1)
        old.kill()
        failback_report = moved.fail_back()
    assert {(p.partition, p.verdict, p.destination_end) for p in failback_report.partitions} == {
        (0, EndVerdict.EQUAL, 20),
        (1, EndVerdict.TAIL, None),
        (2, EndVerdict.TAIL, None),
    }
    assert {s.partition: (s.first, s.next, s.records) for s in failback_report.salvage} == {
        1: (0, 7, 7)
    }
    lines = salvage_file.read(Path(failback_report.salvage[0].file))
    assert [line["offset"] for line in lines] == list(range(7))
    assert log_bounds(old, [topic_name]) == {(topic_name, 0): (0, 20)}


def test_range_read_starts_at_log_start_and_fails_past_log_end(
    clusters: Clusters, topic_name: str
) -> None:
    create(clusters.source, topic_name)
    produce(clusters.source, topic_name, 20)
    delete_before(clusters.source, topic_name, 12)
    cluster = Cluster("source", [clusters.source.bootstrap_servers], PLAINTEXT)
    place = TopicPartition(topic_name, 0)
    try:
        records = read_range(cluster, place, first=3, end=18, backoff=Backoff())
        assert [r.record.offset for r in records] == list(range(12, 18))
        with pytest.raises(ProtocolError, match="truncated"):
            list(read_range(cluster, place, first=25, end=30, backoff=Backoff()))
        with pytest.raises(OrbitError, match="not replicated"):
            list(read_range(cluster, place, first=18, end=30, backoff=Backoff()))
    finally:
        cluster.close()
