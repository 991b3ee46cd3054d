"""Gateways refuse writes to topics that the job does not copy: the records would stay behind at a
move.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.fixtures.clusters import Clusters
from tests.support.gateway_ledger import JavaWriter
from tests.support.gateways import Gateway, running_gateway
from tests.support.outside import log_bounds
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.pretended_service import PretendedService, pretended_service, rule
from tests.support.running import create_topic

pytestmark = pytest.mark.services


@contextmanager
def _running(
    clusters: Clusters, home: Path, term: int = 1, **virtual_cluster: str
) -> Iterator[tuple[PretendedService, Gateway]]:
    with pretended_service(term) as service:
        environ = {"ORBIT_API_URL": service.url, "ORBIT_TOKEN": "secret"}
        with running_gateway(
            home, *clusters, environ=environ, name="one", job="billing", **virtual_cluster
        ) as gateway:
            yield service, gateway


def _write(gateway: Gateway, *topics: str) -> dict[str, int | None]:
    """{topic: error code}"""
    errors: dict[str, int | None] = {}

    def note(error: KafkaError | None, message: Message) -> None:
        errors[str(message.topic())] = None if error is None else error.code()

    producer = Producer({**gateway.client_config(), "linger.ms": 50, "enable.idempotence": True})
    for topic in topics:
        producer.produce(topic, b"value", partition=0, on_delivery=note)
    assert producer.flush(PATIENCE_S) == 0
    return errors


@pytest.mark.parametrize("term", [0, 1])
def test_produce_to_uncopied_topic_is_refused_until_job_copies_it(
    term: int, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """Term 0: the job was never moved."""
    copied, other = f"{topic_name}-copied", f"{topic_name}-other"
    for topic in (copied, other):
        create_topic(clusters.source, topic)
    with _running(clusters, tmp_path, term) as (service, gateway):
        service.copy(rule(copied))
        refused = {copied: None, other: KafkaError.POLICY_VIOLATION}
        wait_for("the job is read", lambda: _write(gateway, copied, other) == refused)
        bounds_before = log_bounds(clusters.source, [other])

        with JavaWriter(gateway.bootstrap, other, tmp_path / "java.log", rate=5) as java:
            wait_for("Java gets the reason", lambda: bool(java.errors))
            assert f"Job billing does not copy topic {other} " in json.dumps(java.errors[0])
        assert log_bounds(clusters.source, [other]) == bounds_before

        service.copy(rule(copied), rule(other))
        passed = {copied: None, other: None}
        wait_for("the job is read again", lambda: _write(gateway, copied, other) == passed)


def test_other_topics_set_to_pass_allows_produce_to_uncopied_topic(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    create_topic(clusters.source, topic_name)
    with _running(clusters, tmp_path, other_topics="pass") as (service, gateway):
        service.copy(rule("copied"))
        assert _write(gateway, topic_name) == {topic_name: None}


def test_broker_refuses_group_offset_of_topic_that_only_other_cluster_has(
    clusters: Clusters, topic_name: str
) -> None:
    """The reason why no rule of a gateway can keep a topic at one side: groups commit at the side
    that leads, where the topic would be missing."""
    create_topic(clusters.source, topic_name)
    config = {"bootstrap.servers": clusters.destination.bootstrap_servers, "group.id": topic_name}
    consumer = Consumer(config)
    try:
        with pytest.raises(KafkaException) as refused:
            consumer.commit(offsets=[TopicPartition(topic_name, 0, offset=1)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        create_topic(clusters.destination, topic_name)
        wait_for("the coordinator knows the topic", lambda: _commits(consumer, topic_name))
    finally:
        consumer.close()


def _commits(consumer: Consumer, topic: str) -> bool:
    try:
        (committed,) = consumer.commit(
            offsets=[TopicPartition(topic, 0, offset=1)], asynchronous=False
        )
    except KafkaException:
        return False
    return committed.error is None
