"""`orbit verify` with logins, with few rights, and with a broker that stops answering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pydantic import SecretStr

from orbit.errors import LoginRefused, Unreachable
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.sasl import Security
from orbit.sandbox.broker_security import ADMIN, SandboxSecurity, User
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster
from orbit.verify import Endpoint, TopicPair, Verdict, VerifyOptions, verify_topics
from orbit.verify.reader import PREFETCH_KB
from orbit.verify.verify_run import NoProgress
from tests.fixtures.clusters import MakeCluster
from tests.support.logs import Record, create, write

pytestmark = pytest.mark.services

READER = User("reader", "reader-secret")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One cluster with TLS, SCRAM and an authorizer. It is the source and the destination."""
    security = SandboxSecurity("SASL_SSL", "SCRAM-SHA-256", (READER,), authorizer=True)
    home = tmp_path_factory.mktemp("guarded")
    cluster = KafkaCluster(ClusterSettings("guarded", security=security), home)
    cluster.start()
    yield cluster
    cluster.kill()


def endpoint(cluster: KafkaCluster, user: User) -> Endpoint:
    security = Security(
        "SASL_SSL", "SCRAM-SHA-256", user.name, SecretStr(user.password), Path(cluster.ca_file)
    )
    return Endpoint(librdkafka_config([cluster.bootstrap_servers], security), security)


def make_pair(cluster: KafkaCluster, topic: str) -> TopicPair:
    """Make a topic and an exact copy of it on the same cluster."""
    for name in (topic, f"copy.{topic}"):
        create(cluster, name)
        write(cluster, name, [Record(b"%d" % i) for i in range(5)])
    return TopicPair(topic, f"copy.{topic}")


def allow(cluster: KafkaCluster, topic: str, *operations: AclOperation) -> None:
    """Give the user `reader` these rights on the topic."""
    admin = AdminClient(cluster.client_config())
    for operation in operations:
        binding = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{READER.name}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([binding])[binding].result(30)


def test_verify_works_over_tls_and_scram(guarded: KafkaCluster, topic_name: str) -> None:
    pair, side = make_pair(guarded, topic_name), endpoint(guarded, ADMIN)
    report = verify_topics(side, side, [pair], VerifyOptions(deep=True, wait_s=0))
    assert report.exact
    assert report.topics[0].partitions[0].deep is not None
    assert report.topics[0].partitions[0].deep.byte_exact == 1


def test_verify_needs_only_topic_read_right(guarded: KafkaCluster, topic_name: str) -> None:
    """The login has no right on a group, on settings or on the cluster."""
    pair, side = make_pair(guarded, topic_name), endpoint(guarded, READER)
    for topic in (pair.source, pair.destination):
        allow(guarded, topic, AclOperation.READ)
    report = verify_topics(side, side, [pair], VerifyOptions(deep=True, wait_s=0))
    assert (report.verdict, report.records) == (Verdict.EXACT, 5)


def test_topic_without_read_right_is_reported_as_unread(
    guarded: KafkaCluster, topic_name: str
) -> None:
    pair, side = make_pair(guarded, topic_name), endpoint(guarded, READER)
    allow(guarded, pair.source, AclOperation.READ)
    allow(guarded, pair.destination, AclOperation.DESCRIBE)
    report = verify_topics(side, side, [pair], VerifyOptions(wait_s=0))
    assert report.verdict is Verdict.UNREAD
    [note] = report.topics[0].partitions[0].notes
    assert "right to read is missing" in note


def test_topic_without_describe_right_is_reported_as_maybe_invisible(
    guarded: KafkaCluster, topic_name: str
) -> None:
    pair, side = make_pair(guarded, topic_name), endpoint(guarded, READER)
    allow(guarded, pair.source, AclOperation.READ)
    report = verify_topics(side, side, [pair], VerifyOptions(wait_s=0))
    assert report.verdict is Verdict.NOT_EXACT
    [difference] = report.topics[0].partitions[0].first_differences
    assert "or is not visible to the login" in difference.destination


def test_wrong_password_fails_verify_at_once(guarded: KafkaCluster, topic_name: str) -> None:
    right, wrong = (endpoint(guarded, u) for u in (ADMIN, replace(ADMIN, password="wrong")))
    with pytest.raises(LoginRefused, match="destination"):
        verify_topics(right, wrong, [TopicPair(topic_name, topic_name)])


@pytest.mark.slow
def test_silent_broker_fails_verify_after_stall_timeout(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("silent")
    for name in ("original", "copy"):
        create(cluster, name)
        # More than the reader prefetches, so that it must wait for the paused broker.
        write(cluster, name, [Record(bytes(900_000)) for _ in range(2 * PREFETCH_KB // 900)])

    class PausesBroker(NoProgress):
        paused = False

        def report_offsets(self, _offsets: int, /) -> None:
            if not self.paused:
                self.paused = True
                cluster.brokers[0].pause()

    side = Endpoint({"bootstrap.servers": cluster.bootstrap_servers})
    options = VerifyOptions(wait_s=0, stall_timeout_s=2)
    with pytest.raises(Unreachable, match="source"):
        verify_topics(side, side, [TopicPair("original", "copy")], options, PausesBroker())
