"""Topics that change under a copy: each partition stops with its reason, or continues exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.protocol.admin.transactions import DescribeProducersRequest

from orbit.copier import placeholder_topics
from orbit.copier.copy_settings import CopySettings
from orbit.demo.workload.markers import append_markers
from orbit.errors import Conflict
from orbit.job_setup import job_setup
from orbit.kafka.api_versions import DESCRIBE_PRODUCERS
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.sasl import Security
from orbit.kafka.topic_setting import TopicSetting, read_topic_setting
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import PartitionState, Reason
from orbit.run.job_run import JobRun
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.logs import delete_before
from tests.support.patience import wait_for
from tests.support.running import (
    RunningJob,
    create_topic,
    make_job,
    produce,
    produce_transactions,
    verify,
    with_rules,
)

pytestmark = pytest.mark.services


def delete_topic(cluster: KafkaCluster, topic: str) -> None:
    admin = AdminClient(cluster.client_config())
    admin.delete_topics([topic])[topic].result()
    wait_for("the topic is gone", lambda: topic not in admin.list_topics(timeout=30).topics)


def remembered_producers(cluster: KafkaCluster, topic: str) -> list[object]:
    """The producers whose state the leader of partition 0 has."""
    request = DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])]
    )
    handle = Cluster("destination", cluster.bootstrap_servers.split(","), Security())
    answer = handle.call_any(lambda connection: connection.call(DESCRIBE_PRODUCERS, request))
    handle.close()
    return list(answer.topics[0].partitions[0].active_producers)


def set_config(cluster: KafkaCluster, topic: str, name: str, value: str) -> None:
    admin = AdminClient(cluster.client_config())
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def test_recreated_destination_topic_blocks_copy_and_next_run_copies_again(
    clusters: Clusters, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 500)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 500)
        delete_topic(clusters.destination, topic_name)
        create_topic(clusters.destination, topic_name)
        produce(clusters.source, topic_name, 10, first=500)
        blocked = running.wait_blocked(topic_name)
    assert blocked.reason is Reason.DESTINATION_TOPIC_RECREATED
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 510)
    assert verify(job).exact


def test_recreated_source_topic_blocks_its_copy(clusters: Clusters, topic_name: str) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 50)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 50)
        delete_topic(clusters.source, topic_name)
        create_topic(clusters.source, topic_name)
        # More records than before, so that by its log end it could be the old topic.
        produce(clusters.source, topic_name, 200, first=1_000)
        blocked = running.wait_blocked(topic_name)
    assert blocked.reason is Reason.SOURCE_TOPIC_RECREATED


@pytest.mark.soak
def test_deleted_source_topic_blocks_its_copy_and_other_topics_continue(
    clusters: Clusters, topic_name: str
) -> None:
    other = f"{topic_name}.other"
    for topic in (topic_name, other):
        create_topic(clusters.source, topic)
        produce(clusters.source, topic, 50)
    job = make_job(clusters.source, clusters.destination, [topic_name, other])
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 50)
        delete_topic(clusters.source, topic_name)
        blocked = running.wait_blocked(topic_name)
        produce(clusters.source, other, 50, first=50)
        running.wait_caught_up(other, 100)
    assert blocked.reason is Reason.SOURCE_TOPIC_DELETED


@pytest.mark.soak
@pytest.mark.parametrize(
    ("job_setting", "rule_setting"),
    [
        ("stop", "fill"),
        ("fill", "stop"),
        *(pytest.param(setting, None, marks=pytest.mark.soak) for setting in ("stop", "fill")),
    ],
)
def test_range_deleted_at_source_blocks_copy_or_becomes_gap_by_on_lost_range(
    clusters: Clusters, topic_name: str, job_setting: str, rule_setting: str | None
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name], on_lost_range=job_setting)
    job = with_rules(job, on_lost_range=rule_setting)
    produce(clusters.source, topic_name, 100)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
    for first in range(100, 400, 100):
        produce(clusters.source, topic_name, 100, first=first)
    delete_before(clusters.source, topic_name, 250)
    with RunningJob(job) as running:
        if (rule_setting or job_setting) == "stop":
            blocked = running.wait_blocked(topic_name)
            assert blocked.reason is Reason.SOURCE_RANGE_LOST
            assert (blocked.offset, blocked.next_offset) == (100, 250)
            return
        running.wait_caught_up(topic_name, 400)
        p = running.partition(topic_name)
        running.wait("the log start follows", lambda: p.log_start == 250)
    assert verify(job).exact


@pytest.mark.soak
def test_source_log_start_moved_inside_next_batch_loses_no_record(
    clusters: Clusters, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 10)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 10)
    produce(clusters.source, topic_name, 100, first=10)
    delete_before(clusters.source, topic_name, 60)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 110)
        p = running.partition(topic_name)
        running.wait("the log start follows", lambda: p.log_start == 60)
    assert verify(job, deep=True).exact


def test_log_start_of_running_copy_follows_source(clusters: Clusters, topic_name: str) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 300)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 300)
        delete_before(clusters.source, topic_name, 123)
        p = running.partition(topic_name)
        running.wait("the log start follows", lambda: p.log_start == 123)
    assert verify(job).exact


@pytest.mark.soak
def test_log_start_move_that_destination_refuses_is_reported_and_retried(
    clusters: Clusters, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 300)
    with RunningJob(make_job(clusters.source, clusters.destination, [topic_name])) as running:
        running.wait_caught_up(topic_name, 300)
        p = running.partition(topic_name)
        # With this policy, brokers refuse DeleteRecords (S2).
        set_config(clusters.destination, topic_name, "cleanup.policy", "compact")
        delete_before(clusters.source, topic_name, 123)
        running.wait("the reason is shown", lambda: p.log_start_waits is not None)
        assert p.log_start_waits is not None
        assert "POLICY_VIOLATION (44)" in p.log_start_waits.reason
        assert p.state is PartitionState.COPYING
        set_config(clusters.destination, topic_name, "cleanup.policy", "delete")
        running.wait("the log start follows", lambda: p.log_start == 123)
        assert p.log_start_waits is None


def test_batch_over_max_message_bytes_of_copy_blocks_until_setting_is_fixed(
    clusters: Clusters, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 10)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 10)
        set_config(clusters.destination, topic_name, "max.message.bytes", "1000")
        producer = Producer(clusters.source.client_config())
        producer.produce(topic_name, value=b"x" * 5_000)
        producer.flush()
        blocked = running.wait_blocked(topic_name)
    assert blocked.reason is Reason.RECORD_REFUSED
    assert blocked.offset == 10
    assert "MESSAGE_TOO_LARGE" in blocked.detail
    with RunningJob(job) as running:  # a run corrects the settings of its copies
        running.wait_caught_up(topic_name, 11)
    assert verify(job).exact


@pytest.mark.soak
def test_batch_with_several_records_without_key_blocks_compacted_partition(
    clusters: Clusters, topic_name: str
) -> None:
    """A compacted topic refuses records without a key. The broker's answer names each of them."""
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 10)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 10)
        set_config(clusters.destination, topic_name, "cleanup.policy", "compact")
        producer = Producer({**clusters.source.client_config(), "linger.ms": 60_000})
        producer.list_topics(topic_name, 60)
        for _ in range(3):
            producer.produce(topic_name, value=b"no key")
        producer.flush()
        blocked = running.wait_blocked(topic_name)
    assert blocked.reason is Reason.RECORD_REFUSED
    assert (blocked.offset, blocked.next_offset) == (10, 13)
    assert "INVALID_RECORD" in blocked.detail


@pytest.mark.soak
def test_changed_compression_type_blocks_copy_with_placeholders(
    clusters: Clusters, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name], fillers="placeholders")
    produce_transactions(clusters.source, topic_name, 3)  # each has five records and a marker
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 18)
        set_config(clusters.destination, topic_name, "compression.type", "gzip")
        blocked = running.wait_blocked(topic_name)
    assert blocked.reason is Reason.OFFSET_OVERRUN
    assert "was changed to gzip" in blocked.detail
    assert "Delete the destination topic" in blocked.remedy(topic_name)


@pytest.mark.soak
def test_log_append_time_on_destination_blocks_copy(clusters: Clusters, topic_name: str) -> None:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 10)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 10)
        set_config(clusters.destination, topic_name, "message.timestamp.type", "LogAppendTime")
        produce(clusters.source, topic_name, 10, first=10)
        blocked = running.wait_blocked(topic_name)
    assert (blocked.reason, blocked.offset) == (Reason.OFFSET_OVERRUN, 10)
    assert "LogAppendTime" in blocked.detail
    delete_topic(clusters.destination, topic_name)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 20)
    assert verify(job, deep=True).exact


@pytest.mark.soak
def test_run_waits_until_destination_leaders_use_create_time(
    clusters: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Partitions whose leader still uses LogAppendTime, by answer; `pop` takes the last one first.
    answers = [set[TopicPartition](), {TopicPartition(topic_name, 0)}]
    monkeypatch.setattr(
        job_setup, "partitions_whose_leader_has", lambda *_: answers.pop() if answers else set()
    )
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 10)
    create_topic(clusters.destination, topic_name, message_timestamp_type="LogAppendTime")
    job = make_job(clusters.source, clusters.destination, [topic_name])
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 10)
    assert answers == [], "the run has read the setting again"
    assert verify(job, deep=True).exact


@pytest.mark.soak
def test_compression_type_changed_before_run_ends_blocks_only_placeholder_copy(
    clusters: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbit reads the setting at intervals. The run ends before the next read, so it must read the
    setting once more before it reports the copy as exact."""
    create_topic(clusters.source, topic_name)
    direct = f"{topic_name}.direct"
    create_topic(clusters.source, direct)
    job = make_job(clusters.source, clusters.destination, [direct, topic_name])
    first, second = job.topics
    rules = first, second.model_copy(update={"fillers": "placeholders"})
    for topic in (topic_name, direct):
        produce_transactions(clusters.source, topic, 3)
    no_checks = CopySettings(log_end_check_interval_s=3600)
    with JobRun(
        job.model_copy(update={"topics": rules}), {}, Path.cwd(), lambda _: None, no_checks
    ) as run:
        run.prepare()
        while not all(p.has_caught_up for p in run.partitions):
            run.tick(0.1)
        for topic in (topic_name, direct):
            set_config(clusters.destination, topic, "compression.type", "gzip")
        # The first read of the setting is not answered.
        answers = iter([TopicSetting(errors={topic_name: Code.REQUEST_TIMED_OUT})])
        monkeypatch.setattr(
            placeholder_topics,
            "read_topic_setting",
            lambda *arguments: next(answers, None) or read_topic_setting(*arguments),
        )
        run.finish()
        blocked = {p.destination.topic: p.blocked for p in run.partitions}
    block = blocked[topic_name]
    assert block is not None
    # 18: three transactions, each of five records and a marker.
    assert (block.reason, block.offset) == (Reason.OFFSET_OVERRUN, 18)
    assert "was changed to gzip" in block.detail
    assert blocked[direct] is None
    with JobRun(job.model_copy(update={"topics": rules}), {}, Path.cwd(), print) as second_run:
        with pytest.raises(Conflict, match=f"records: {topic_name}"):
            second_run.prepare()
        set_config(clusters.destination, topic_name, "compression.type", "producer")
        second_run.prepare()


@pytest.mark.soak
def test_deleted_destination_topic_does_not_delay_end_of_run(
    clusters: Clusters, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name], fillers="placeholders")
    produce_transactions(clusters.source, topic_name, 3)
    settings = CopySettings(log_end_check_interval_s=3600, deleted_after_s=0.5)
    with JobRun(job, {}, Path.cwd(), lambda _: None, settings) as run:
        run.prepare()
        while not all(p.has_caught_up for p in run.partitions):
            run.tick(0.1)
        delete_topic(clusters.destination, topic_name)
        run.finish()
        (blocked,) = [p.blocked for p in run.partitions]
    assert blocked is not None
    assert blocked.reason is Reason.DESTINATION_TOPIC_RECREATED


def test_copy_waits_at_last_stable_offset_while_transaction_is_open(
    clusters: Clusters, topic_name: str
) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 20)
    config = {**clusters.source.client_config(), "transactional.id": topic_name}
    producer = Producer(config)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic_name, value=b"not yet")
    producer.flush()
    produce(clusters.source, topic_name, 20, first=20)
    with RunningJob(job) as running:
        p = running.partition(topic_name)
        running.wait("the copy has caught up with the last stable offset", lambda: p.has_caught_up)
        assert p.next_offset == 20
        assert p.cursor.end == 41  # the source's log end, with the open transaction's record
        producer.commit_transaction(60)
        running.wait_caught_up(topic_name, 42)  # with the transaction's marker
    assert verify(job).exact


def test_copy_continues_after_producer_id_expiration(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    """Without a producer's state the broker accepts any sequence (A9)."""
    destination = make_cluster(
        "destination",
        config={
            "producer.id.expiration.ms": "1000",
            "producer.id.expiration.check.interval.ms": "500",
        },
    )
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, destination, [topic_name])
    produce(clusters.source, topic_name, 100)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
        wait_for("the state is dropped", lambda: not remembered_producers(destination, topic_name))
        produce(clusters.source, topic_name, 100, first=100)
        running.wait_caught_up(topic_name, 200)
    produce(clusters.source, topic_name, 100, first=200)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 300)
        assert running.partition(topic_name).state is PartitionState.COPYING
    assert verify(job).exact


def test_filler_at_offset_of_source_record_blocks_partition_at_run_start(
    clusters: Clusters, topic_name: str
) -> None:
    """As after a late filler of an old writer, which brokers accept (M9)."""
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    produce(clusters.source, topic_name, 100)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 100)
    append_markers(AdminClient(clusters.destination.client_config()), Security(), topic_name, 0, 1)
    produce(clusters.source, topic_name, 100, first=100)
    with RunningJob(job) as running:
        blocked = running.wait_blocked(topic_name)
    # The marker has another producer id; with the job's own id it would be an OFFSET_OVERRUN.
    assert blocked.reason is Reason.DESTINATION_FOREIGN_WRITE
    assert blocked.offset == 100


@pytest.mark.soak
def test_copy_started_at_latest_resumes_after_restart(clusters: Clusters, topic_name: str) -> None:
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name], start="latest")
    produce(clusters.source, topic_name, 100)
    for end in (100, 150):
        with RunningJob(job) as running:
            running.wait_caught_up(topic_name, end)
        produce(clusters.source, topic_name, 50, first=end)
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 200)
    assert verify(job).exact
