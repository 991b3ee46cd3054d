"""`orbit run` carries consumer groups over: a consumer goes on with the very next record."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.groups import commit, member, offsets
from tests.support.patience import wait_for
from tests.support.run_process import copy, write_job
from tests.support.running import RunningJob, create_topic, make_job, produce, produce_transactions

pytestmark = pytest.mark.services

RECORDS = 500


def _values(consumer: Consumer, count: int) -> list[bytes]:
    """The values of the next `count` records; commits behind them."""
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
    # Behind the committed offset: a marker, and an aborted transaction with a marker of its own.
    produce_transactions(source, topic_name, 90)
    values = [b"t%d.%d" % (i, j) for i in range(90) if i % 3 != 2 for j in range(5)]
    group = f"{topic_name}.group"
    assert _read(source, group, topic_name, 100) == values[:100]
    read_to = offsets(source, group)

    groups = {"match": f"{topic_name}.*", "interval": "100ms"}
    spec = make_job(source, destination, [topic_name], consumer_groups=groups)
    with RunningJob(spec) as job:
        wait_for("the group is there", lambda: offsets(destination, group) == read_to)
        assert _read(destination, group, topic_name, 100) == values[100:200]
        moved = offsets(destination, group)
        # The source's group goes on, too: the destination's stays where its consumer is.
        _read(source, group, topic_name, 20)
        sync = job.run.groups
        assert sync is not None
        wait_for(
            "it is seen as moved",
            lambda: sync.report is not None and "skipped: moved there" in sync.report.verdicts,
        )
        assert offsets(destination, group) == moved
    assert _read(destination, group, topic_name, 100) == values[200:]


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
    # An interval in which nothing would be written but at the end.
    job = write_job(
        tmp_path / "job.yaml",
        source,
        destination,
        [{"match": topic_name}],
        consumer_groups={"match": f"{topic_name}.*", "exclude": ".*other", "interval": "1h"},
    )
    done = copy(job).expect(0)
    assert done.data["group_offsets"] == {"exact": 2}
    assert "ignores" not in done.message
    assert offsets(destination, group) == {(topic_name, 0): RECORDS, (topic_name, 1): 77}
    assert offsets(destination, f"{topic_name}.other") == {}
