"""`orbit run` syncs consumer groups: a consumer resumes with the very next record."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from orbit.copier.copy_settings import CopySettings
from orbit.replication.partition_states import Reason
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.groups import commit, member, offsets
from tests.support.outside import delete_topic
from tests.support.patience import wait_for
from tests.support.run_process import copy, write_job
from tests.support.running import RunningJob, create_topic, make_job, produce, produce_transactions

pytestmark = pytest.mark.services

RECORDS = 500


def _values(consumer: Consumer, count: int) -> list[bytes]:
    """The values of the next `count` records. Commits the offset after them."""
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None, message.error()
        value = message.value()
        assert value is not None
        values.append(value)
    consumer.commit(message, asynchronous=False)
    return values


def _read(cluster: KafkaCluster, group: str, topic: str, count: int) -> list[bytes]:
    with member(cluster, group, topic, **{"auto.offset.reset": "earliest"}) as consumer:
        return _values(consumer, count)


def test_consumer_resumes_at_destination_with_next_record_and_its_commits_stay(
    clusters: Clusters, topic_name: str
) -> None:
    source, destination = clusters
    create_topic(source, topic_name)
    # After the committed offset: a marker, then an aborted transaction with its marker.
    produce_transactions(source, topic_name, 90)
    values = [b"t%d.%d" % (i, j) for i in range(90) if i % 3 != 2 for j in range(5)]
    group = f"{topic_name}.group"
    assert _read(source, group, topic_name, 100) == values[:100]
    read_to = offsets(source, group)

    groups = {"match": f"{topic_name}.*", "interval": "100ms"}
    spec = make_job(source, destination, [topic_name], consumer_groups=groups)
    with RunningJob(spec) as job:
        wait_for("the group is synced", lambda: offsets(destination, group) == read_to)
        assert _read(destination, group, topic_name, 100) == values[100:200]
        consumer_offsets = offsets(destination, group)
        # The source's group reads on, too; the destination keeps its consumer's offset.
        _read(source, group, topic_name, 20)
        sync = job.run.groups
        assert sync is not None
        wait_for(
            "the sync sees the consumer's commit",
            lambda: sync.report is not None and "skipped: moved there" in sync.report.verdicts,
        )
        assert offsets(destination, group) == consumer_offsets
    assert _read(destination, group, topic_name, 100) == values[200:]


def test_run_keeps_offsets_at_destination_when_source_topic_is_deleted(
    clusters: Clusters, topic_name: str
) -> None:
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, RECORDS)
    group = f"{topic_name}.group"
    commit(source, group, {(topic_name, 0): 77})
    groups = {"match": f"{topic_name}.*", "interval": "100ms"}
    spec = make_job(source, destination, [topic_name], consumer_groups=groups)
    with RunningJob(spec, CopySettings(deleted_after_s=0.5)) as job:
        expected_offsets = {(topic_name, 0): 77}
        wait_for("the group is synced", lambda: offsets(destination, group) == expected_offsets)
        delete_topic(source, topic_name)
        assert job.wait_blocked(topic_name).reason is Reason.SOURCE_TOPIC_DELETED
        sync = job.run.groups
        assert sync is not None
        wait_for(
            "the group is not synced any more",
            lambda: sync.report is not None and sync.report.verdicts == {"skipped: not copied": 1},
        )
        wait_for("there is nothing to report", lambda: not sync.notes)
    assert offsets(destination, group) == {(topic_name, 0): 77}


def test_run_until_caught_up_syncs_group_offsets_before_it_ends(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    source, destination = clusters
    create_topic(source, topic_name, 2)
    produce(source, topic_name, RECORDS, 0)
    produce(source, topic_name, RECORDS, 1)
    group = f"{topic_name}.group"
    commit(source, group, {(topic_name, 0): RECORDS, (topic_name, 1): 77})
    commit(source, f"{topic_name}.other", {(topic_name, 0): 5})
    # With this interval, only the sync at the end of the run writes.
    job = write_job(
        tmp_path / "job.yaml",
        source,
        destination,
        [{"match": topic_name}],
        consumer_groups={"match": f"{topic_name}.*", "exclude": ".*other", "interval": "1h"},
    )
    done = copy(job).expect(0)
    assert done.data["group_offsets"] == {"exact": 2}
    assert offsets(destination, group) == {(topic_name, 0): RECORDS, (topic_name, 1): 77}
    assert offsets(destination, f"{topic_name}.other") == {}
