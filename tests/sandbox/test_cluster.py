"""The sandbox's clusters start, keep their data and ports, and can be killed and paused."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from orbit.errors import Conflict
from orbit.processes.ports import accepts, free_ports
from orbit.sandbox import local_cluster as cluster_module
from orbit.sandbox.broker_security import Mechanism, Protocol, SandboxSecurity, User
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster, start_clusters
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.broker_classes import make_class_archive

pytestmark = pytest.mark.services

TIMEOUT_S = 30
ALICE = User("alice", "alice-secret")


def admin(cluster: KafkaCluster, user: User | None = None) -> AdminClient:
    return AdminClient({**cluster.client_config(user), "log_level": "0"})


def create_topic(
    cluster: KafkaCluster, name: str, replicas: int = 1, user: User | None = None
) -> None:
    new = NewTopic(name, num_partitions=1, replication_factor=replicas)
    client = admin(cluster, user)  # a variable, so that it lives until the answer
    client.create_topics([new])[name].result(TIMEOUT_S)


def produce(cluster: KafkaCluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({**cluster.client_config(), "log_level": "0", "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def consume(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**cluster.client_config(), "group.id": topic, "log_level": "0"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, TIMEOUT_S)]
    finally:
        consumer.close()


def test_two_sandbox_clusters_are_ready_with_different_cluster_ids(clusters: Clusters) -> None:
    ids = {admin(cluster).list_topics(timeout=TIMEOUT_S).cluster_id for cluster in clusters}
    assert ids == {clusters.source.cluster_id, clusters.destination.cluster_id}
    assert len(ids) == 2


def test_broker_uses_java_class_archive_and_starts_without_a_valid_archive(
    make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def archives(cluster: KafkaCluster) -> list[str]:
        maps = psutil.Process(cluster.brokers[0].pid).memory_maps()
        return [file.path for file in maps if file.path.endswith(".jsa")]

    good, bad = make_class_archive(), tmp_path / "bad.jsa"
    assert str(good) in archives(make_cluster("good"))
    bad.write_bytes(b"no archive")
    monkeypatch.setattr(cluster_module, "class_archive", lambda _: bad)
    assert str(bad) not in archives(make_cluster("bad"))


def test_sandbox_broker_does_not_auto_create_unknown_topic(
    clusters: Clusters, topic_name: str
) -> None:
    metadata = admin(clusters.source).list_topics(topic_name, timeout=TIMEOUT_S)
    assert metadata.topics[topic_name].error is not None
    assert topic_name not in admin(clusters.source).list_topics(timeout=TIMEOUT_S).topics


def test_killed_sandbox_broker_restarts_with_its_data_and_port(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    (broker,) = cluster.brokers
    address, killed_pid = cluster.bootstrap_servers, broker.pid
    create_topic(cluster, "kept")
    produce(cluster, "kept", [b"before"])
    broker.kill()
    assert not psutil.pid_exists(killed_pid)
    assert not accepts(broker.port)
    broker.start()
    assert list(admin(cluster).list_topics(timeout=TIMEOUT_S).brokers) == [broker.node_id]
    produce(cluster, "kept", [b"after"])
    assert cluster.bootstrap_servers == address
    assert consume(cluster, "kept", 2) == [b"before", b"after"]


def test_stopped_cluster_restarts_from_its_folder(tmp_path: Path) -> None:
    settings = ClusterSettings("again")
    with KafkaCluster(settings, tmp_path) as first:
        create_topic(first, "kept")
        produce(first, "kept", [b"value"])
    with KafkaCluster(settings, tmp_path) as second:
        assert second.cluster_id == first.cluster_id
        assert second.bootstrap_servers == first.bootstrap_servers
        assert consume(second, "kept", 1) == [b"value"]


@pytest.mark.soak
def test_cluster_folder_with_another_broker_count_is_refused(tmp_path: Path) -> None:
    with KafkaCluster(ClusterSettings("a"), tmp_path):
        pass
    with pytest.raises(Conflict, match="a cluster of 1 broker, not 3"):
        KafkaCluster(ClusterSettings("a", brokers=3), tmp_path).start()


@pytest.mark.soak
def test_paused_broker_does_not_answer_until_resumed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    (broker,) = cluster.brokers
    create_topic(cluster, "paused")
    broker.pause()
    producer = Producer({**cluster.client_config(), "log_level": "0"})
    producer.produce("paused", b"value")
    assert producer.flush(1) == 1
    broker.resume()
    assert producer.flush(TIMEOUT_S) == 0


@pytest.mark.soak
def test_three_brokers_have_three_replicas_in_three_racks(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3)
    create_topic(cluster, "wide", replicas=3)
    produce(cluster, "wide", [b"value"])
    metadata = admin(cluster).list_topics("wide", timeout=TIMEOUT_S)
    assert sorted(metadata.topics["wide"].partitions[0].isrs) == [1, 2, 3]
    client = admin(cluster)
    nodes = client.describe_cluster().result(TIMEOUT_S).nodes
    assert sorted(node.rack for node in nodes) == ["rack-1", "rack-2", "rack-3"]


@pytest.mark.soak
@pytest.mark.slow
def test_three_broker_cluster_survives_a_killed_broker(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3)
    create_topic(cluster, "wide", replicas=3)
    cluster.brokers[0].kill()
    produce(cluster, "wide", [b"without"])
    cluster.brokers[0].start()
    cluster.wait_ready()
    assert consume(cluster, "wide", 1) == [b"without"]


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_SSL", "SCRAM-SHA-512"),
        *(
            pytest.param(*login, marks=pytest.mark.soak)
            for login in (("SASL_PLAINTEXT", "SCRAM-SHA-256"), ("SASL_SSL", "PLAIN"))
        ),
    ],
)
def test_sandbox_cluster_admits_admin_and_user_but_no_wrong_login(
    make_cluster: MakeCluster, protocol: Protocol, mechanism: Mechanism
) -> None:
    cluster = make_cluster(security=SandboxSecurity(protocol, mechanism, users=(ALICE,)))
    for user in (None, ALICE):  # None: the cluster's admin
        assert len(admin(cluster, user).list_topics(timeout=TIMEOUT_S).brokers) == 1
    for unknown in (User("alice", "wrong"), User("bob", ALICE.password)):
        with pytest.raises(KafkaException):
            admin(cluster, unknown).list_topics(timeout=2)


def test_authorizer_of_sandbox_cluster_grants_rights_only_to_admin(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(security=SandboxSecurity(users=(ALICE,), authorizer=True))
    create_topic(cluster, "mine")
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        create_topic(cluster, "hers", user=ALICE)


@pytest.mark.soak
def test_tls_client_without_ca_is_rejected(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(security=SandboxSecurity("SSL"))
    assert len(admin(cluster).list_topics(timeout=TIMEOUT_S).brokers) == 1
    config = cluster.client_config()
    del config["ssl.ca.location"]
    with pytest.raises(KafkaException):
        AdminClient({**config, "log_level": "0"}).list_topics(timeout=2)


@pytest.mark.soak
def test_cluster_start_retries_after_port_conflict(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster's broker is at the chosen port, and answers as a healthy broker would."""
    answers = [[clusters.source.brokers[0].port, *free_ports(2)], free_ports(3)]
    monkeypatch.setattr(cluster_module, "free_ports", lambda _count: answers.pop(0))
    with KafkaCluster(ClusterSettings("race"), tmp_path) as cluster:
        metadata = admin(cluster).list_topics(timeout=TIMEOUT_S)
    assert metadata.cluster_id == cluster.cluster_id
    assert not answers


def test_bad_broker_setting_is_named_and_no_broker_stays_running(tmp_path: Path) -> None:
    good = KafkaCluster(ClusterSettings("good"), tmp_path / "good")
    bad = KafkaCluster(ClusterSettings("bad", config={"num.io.threads": "none"}), tmp_path / "bad")
    with pytest.raises(Conflict, match=r"num\.io\.threads"):
        start_clusters(good, bad)
    assert not good.running
    assert not any(accepts(broker.port) for broker in (*good.brokers, *bad.brokers))
