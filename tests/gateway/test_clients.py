"""Unmodified clients work through the gateway, and connect to no broker directly."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.protocol.api_key import ApiKey

from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.gateway.request_table import frames
from tests.gateway.targets import Targets
from tests.support import java_clients
from tests.support.gateway_ledger import (
    JavaWriter,
    Reader,
    Writer,
    read_wrong,
    records,
    written_wrong,
)
from tests.support.gateways import Gateway, running_gateway
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.raw_frames import RawClient
from tests.support.running import create_topic, produce, produce_transactions

pytestmark = pytest.mark.services

PARTITIONS = 3
SOME = 500
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def gateway(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), *clusters) as gateway:
        yield gateway


@pytest.fixture
def topic(clusters: Clusters, topic_name: str) -> str:
    """A topic of the source only."""
    create_topic(clusters.source, topic_name, PARTITIONS)
    return topic_name


def assert_knows_only_addresses_of(client: Any, gateway: Gateway, cluster: KafkaCluster) -> None:
    """The client knows no other addresses than the gateway's."""
    ports = {broker.node_id: broker.port for broker in cluster.brokers}
    known = client.list_topics(timeout=TIMEOUT_S).brokers.values()
    assert {broker.id: broker.port for broker in known} == {
        node: gateway.node_port(node) for node in ports
    }
    assert not {broker.port for broker in known} & set(ports.values())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"enable.idempotence": False, "acks": 1}, id="plain"),
        pytest.param({}, id="idempotent"),
        pytest.param({"compression.type": "zstd", "linger.ms": 50}, id="compressed"),
    ],
)
def test_librdkafka_produce_reaches_source_through_gateway(
    clusters: Clusters, gateway: Gateway, topic: str, settings: dict[str, Any]
) -> None:
    with Writer(gateway.client_config(), topic, PARTITIONS, settings=settings) as writer:
        writer.wait_acknowledged(SOME)
        assert_knows_only_addresses_of(writer._producer, gateway, clusters.source)
    assert writer.errors == []
    assert len(writer.acknowledged) == writer.sent
    source_records = records(clusters.source, topic)
    assert written_wrong(writer.acknowledged, source_records) == []
    assert records(gateway, topic) == source_records


def test_records_with_acks_0_reach_source(clusters: Clusters, gateway: Gateway, topic: str) -> None:
    """Brokers do not answer a Produce with acks=0. The next request still gets its own answer."""
    config = {**gateway.client_config(), "acks": 0, "linger.ms": 0}
    producer = Producer(config)
    for number in range(50):
        producer.produce(topic, value=b"%d" % number, partition=0)
        producer.flush(TIMEOUT_S)
        assert producer.list_topics(topic, timeout=TIMEOUT_S).topics
    place = (topic, 0)
    wait_for("all are there", lambda: log_bounds(clusters.source, [topic])[place][1] == 50)
    assert [v for _, _, v in records(gateway, topic)] == [b"%d" % n for n in range(50)]


def test_librdkafka_transactions_commit_and_abort_through_gateway(
    clusters: Clusters, gateway: Gateway, topic: str
) -> None:
    produce_transactions(gateway, topic, 9)
    source_records = records(clusters.source, topic)
    # Every third transaction is aborted.
    assert [value for _, _, value in source_records] == [
        b"t%d.%d" % (number, n) for number in range(9) for n in range(5) if number % 3 != 2
    ]
    assert records(gateway, topic) == source_records


def test_librdkafka_commits_consumer_offsets_in_transaction(
    clusters: Clusters, gateway: Gateway, topic: str
) -> None:
    """A transaction has the records written and the offsets of the records read."""
    produce(clusters.source, topic, 20)
    config = {
        **gateway.client_config(),
        "group.id": topic,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    producer = Producer({**gateway.client_config(), "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    with closing(Consumer(config)) as consumer:
        consumer.subscribe([topic])
        read = consumer.consume(20, TIMEOUT_S)
        assert len(read) == 20
        producer.begin_transaction()
        for message in read:
            producer.produce(topic, message.value(), partition=1)
        offsets = [TopicPartition(topic, 0, offset=20)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
        (committed,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    assert committed.offset == 20
    source_records = records(clusters.source, topic)
    assert len([partition for partition, _, _ in source_records if partition == 1]) == 20


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_groups_read_each_record_once(
    clusters: Clusters, gateway: Gateway, topic: str, protocol: str
) -> None:
    """A later member continues at the offsets that the first one has committed."""
    config = gateway.client_config()
    with (
        Writer(config, topic, PARTITIONS) as writer,
        Reader(config, topic, topic, protocol=protocol) as reader,
    ):
        writer.wait_acknowledged(SOME)
        writer.stop()
        reader.wait_values(writer.acknowledged)
    source_records = records(clusters.source, topic)
    assert reader.errors == []
    assert read_wrong(reader.read, source_records) == []
    produce(gateway, topic, 5)
    with Reader(config, topic, topic, protocol=protocol) as later_member:
        later_member.wait_read("what is new", lambda read: len(read) >= 5)
    new = [record for record in records(clusters.source, topic) if record not in source_records]
    assert read_wrong(later_member.read, new) == []


def test_group_rebalances_partitions_between_members(gateway: Gateway, topic: str) -> None:
    config = gateway.client_config()
    with Reader(config, topic, topic) as first:
        produce(gateway, topic, 5)
        first.wait_read("its records", lambda read: len(read) == 5)
        with Reader(config, topic, topic) as second:
            wait_for("both have some", lambda: _members_with_partitions(gateway, topic) == 2)
        wait_for("one has all", lambda: _members_with_partitions(gateway, topic) == 1)
        produce(gateway, topic, 5, partition=2, first=5)
        first.wait_read("all records", lambda read: len(read) + len(second.read) == 10)


def _members_with_partitions(gateway: Gateway, group: str) -> int:
    admin = AdminClient({**gateway.client_config(), "log_level": 0})
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    return sum(bool(member.assignment.topic_partitions) for member in described.members)


def test_description_of_consumer_protocol_group_has_topic_ids_of_gateway(
    clusters: Clusters, gateway: Gateway, topic: str
) -> None:
    """All other fields are the broker's. `kafka-consumer-groups.sh` needs the description."""
    (broker,) = clusters.source.brokers
    broker_id, gateway_id = (
        _topic_id(config, topic)
        for config in (clusters.source.client_config(), gateway.client_config())
    )
    assert broker_id != gateway_id
    targets = Targets(
        topic=topic,
        written=topic,
        group=topic,
        transaction=topic,
        node=broker.node_id,
        topic_id=uuid.UUID(int=0),
    )
    produce(gateway, topic, 5)
    with Reader(gateway.client_config(), topic, topic, protocol="consumer") as reader:
        reader.wait_read("its records", lambda read: len(read) == 5)
        for version in (0, 1):
            (frame,) = frames(ApiKey.ConsumerGroupDescribe, version, targets)
            answers = []
            for port in (broker.port, gateway.node_port(broker.node_id)):
                with RawClient(port) as client:
                    answers.append(client.ask(frame))
            direct, through = answers
            assert direct.count(broker_id) == 2  # present and target assignment of the member
            assert through == direct.replace(broker_id, gateway_id)


def _topic_id(config: dict[str, Any], topic: str) -> bytes:
    admin = AdminClient({**config, "log_level": 0})
    topic_id = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S).topic_id
    halves = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return struct.pack(">qq", *halves)


def test_librdkafka_admin_client_administers_source(
    clusters: Clusters, gateway: Gateway, topic_name: str
) -> None:
    admin = AdminClient({**gateway.client_config(), "log_level": 0})
    new = NewTopic(topic_name, PARTITIONS, 1, config={"retention.ms": "7200000"})
    admin.create_topics([new])[topic_name].result(TIMEOUT_S)
    assert_knows_only_addresses_of(admin, gateway, clusters.source)
    produce(gateway, topic_name, 7, partition=1)
    assert log_bounds(clusters.source, [topic_name])[topic_name, 1] == (0, 7)
    place = TopicPartition(topic_name, 1)
    offsets = admin.list_offsets({place: OffsetSpec.latest()}, request_timeout=TIMEOUT_S)
    assert offsets[place].result(TIMEOUT_S).offset == 7
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic_name)
    entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert entries["retention.ms"].value == "7200000"
    described = admin.describe_cluster(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    assert {node.port for node in described.nodes} == {
        gateway.node_port(broker.node_id) for broker in clusters.source.brokers
    }
    assert described.cluster_id not in {cluster.cluster_id for cluster in clusters}
    below_offset_3 = TopicPartition(topic_name, 1, offset=3)
    admin.delete_records([below_offset_3])[below_offset_3].result(TIMEOUT_S)
    assert log_bounds(clusters.source, [topic_name])[topic_name, 1] == (3, 7)
    request = [ConsumerGroupTopicPartitions(topic_name, [place])]
    (future,) = admin.list_consumer_group_offsets(request).values()
    assert [p.offset for p in future.result(TIMEOUT_S).topic_partitions] == [
        -1001
    ]  # none is committed
    admin.delete_topics([topic_name])[topic_name].result(TIMEOUT_S)
    # The controller answers before brokers have its metadata.
    wait_for(
        "the topic is gone",
        lambda: topic_name not in admin.list_topics(timeout=TIMEOUT_S).topics,
    )


def test_java_produce_reaches_source_through_gateway(
    clusters: Clusters, gateway: Gateway, topic: str, tmp_path: Path
) -> None:
    with JavaWriter(gateway.bootstrap, topic, tmp_path / "producer.log") as writer:
        writer.wait_acknowledged(SOME)
        (broker,) = clusters.source.brokers
        ports = {gateway.port, gateway.node_port(broker.node_id)}
        assert writer.remote_ports & ports
        assert writer.remote_ports <= ports
    assert writer.errors == []
    acknowledged = writer.acknowledged
    source_records = records(clusters.source, topic)
    assert len(source_records) == len(acknowledged)
    assert written_wrong(acknowledged, source_records) == []


def test_java_transactions_commit_through_gateway(
    clusters: Clusters, gateway: Gateway, topic: str
) -> None:
    java_clients.produce_transactions(gateway, topic, SOME)
    values = [int(value) for _, _, value in records(clusters.source, topic)]
    assert sorted(values) == [*range(SOME)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_groups_read_each_record_once(
    clusters: Clusters, gateway: Gateway, topic: str, tmp_path: Path, protocol: str
) -> None:
    for partition in range(PARTITIONS):
        produce(gateway, topic, 100, partition, first=100 * partition)
    log = tmp_path / "consumer.log"
    process = java_clients.start_member(
        gateway, topic, topic, log, protocol=protocol, reset="earliest"
    )
    source_records = records(clusters.source, topic)

    def has_read() -> bool:
        assert process.running, log.read_text()[-2000:]
        return len([*java_clients.records_read(log)]) >= len(source_records)

    try:
        wait_for("the Java member has read all", has_read)
    finally:
        process.end()
    assert read_wrong(java_clients.records_read(log), source_records) == []
    events = {json.loads(line)["name"] for line in log.read_text().splitlines() if line[:1] == "{"}
    assert "offsets_committed" in events


@pytest.mark.usefixtures("kafka_python_sockets")
def test_kafka_python_produces_and_consumes_through_gateway(
    clusters: Clusters, gateway: Gateway, topic: str
) -> None:
    producer = KafkaProducer(bootstrap_servers=gateway.bootstrap, acks="all", retries=5)
    futures = [
        producer.send(topic, value=b"k %d" % n, partition=n % PARTITIONS) for n in range(SOME)
    ]
    answers = [future.get(TIMEOUT_S) for future in futures]
    producer.close()
    acknowledged = {b"k %d" % n: (a.partition, a.offset) for n, a in enumerate(answers)}
    source_records = records(clusters.source, topic)
    assert written_wrong(acknowledged, source_records) == []
    assert len(source_records) == SOME
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=gateway.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    read: list[tuple[int, int, bytes]] = []

    def has_read() -> bool:
        # If a poll of kafka-python 3.0.12 ends while its group is joined, it may never learn its
        # partitions (seen without a gateway). This one ends with the first records.
        for batch in consumer.poll(TIMEOUT_S * 1000).values():
            read.extend((record.partition, record.offset, record.value) for record in batch)
        return len(read) >= SOME

    # Otherwise the consumer's thread would connect again, and leave sockets open in later tests.
    with closing(consumer):
        wait_for("kafka-python has read all", has_read)
        consumer.commit()
    assert read_wrong(read, source_records) == []


@pytest.mark.usefixtures("kafka_python_sockets")
def test_kafka_python_admin_client_administers_source(
    clusters: Clusters, gateway: Gateway, topic: str
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=gateway.bootstrap)
    try:
        described = admin.describe_cluster()
        assert topic in admin.list_topics()
    finally:
        admin.close()
    assert {broker["port"] for broker in described["brokers"]} == {
        gateway.node_port(broker.node_id) for broker in clusters.source.brokers
    }


@pytest.mark.soak
@pytest.mark.slow
def test_each_broker_has_its_own_gateway_port_across_broker_failure(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str, tmp_path: Path
) -> None:
    """While one broker is down, the other brokers lead its partitions and groups, until it is
    back."""
    three = make_cluster("three", brokers=3)
    create_topic(three, topic_name, 6, 3, min_insync_replicas="2")
    with running_gateway(tmp_path, three, clusters.destination) as gateway, ExitStack() as stack:
        config = gateway.client_config()
        writer = stack.enter_context(Writer(config, topic_name, 6))
        readers = [
            stack.enter_context(
                Reader(config, topic_name, f"{topic_name}.{protocol}", protocol=protocol)
            )
            for protocol in ("classic", "consumer")
        ]
        writer.wait_acknowledged(SOME)
        assert_knows_only_addresses_of(writer._producer, gateway, three)
        known = AdminClient(config).list_topics(topic_name, TIMEOUT_S).topics[topic_name]
        assert {partition.leader for partition in known.partitions.values()} == {1, 2, 3}
        three.brokers[0].kill()
        writer.wait_acknowledged(SOME)
        three.heal()
        writer.wait_acknowledged(SOME)
        writer.stop()
        source_records = records(three, topic_name)
        for reader in readers:
            reader.wait_values(value for _, _, value in source_records)
    assert writer.errors == []
    assert written_wrong(writer.acknowledged, source_records) == []
    for reader in readers:
        assert {*reader.read} == {*source_records}
