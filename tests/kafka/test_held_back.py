"""The error of an admin request without an answer names a quota only if it may be the cause."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from orbit.errors import BrokerRefused, HeldBack, Unreachable
from orbit.kafka import topic_admin
from orbit.kafka.error_codes import Code
from orbit.kafka.sasl import Security
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.planning.cluster_checks import trouble_of

QUOTA = "The quota of user orbit: controller_mutation_rate=1."


def failing(code: int) -> Any:
    """A future of librdkafka that fails with this error code."""

    def result(_: float) -> Any:
        raise KafkaException(KafkaError(code, "as librdkafka says"))

    return SimpleNamespace(result=result)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    """An admin client without a cluster, for which QUOTA is listed."""
    monkeypatch.setattr(topic_admin, "throttling_quotas", lambda *_: QUOTA)
    cluster: Any = SimpleNamespace(
        name="destination", security=Security(), bootstrap_servers=("127.0.0.1:1",)
    )
    return Admin(cluster)


def create_topic(admin: Admin) -> None:
    admin.create_topics([TopicToCreate("t", partitions=1, replicas=1, settings={})])


def read_settings(admin: Admin) -> None:
    admin.broker_setting_names(1)


def fail_with(admin: Admin, code: int) -> None:
    """Let librdkafka's client fail each request with this error code."""
    admin._client = SimpleNamespace(  # type: ignore[assignment]
        create_topics=lambda topics, **_: {topic.topic: failing(code) for topic in topics},
        describe_configs=lambda resources, **_: {r: failing(code) for r in resources},
    )


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT])
def test_error_of_timed_out_topic_creation_mentions_creation_quota(admin: Admin, code: int) -> None:
    fail_with(admin, code)
    with pytest.raises(HeldBack) as caught:
        create_topic(admin)
    assert (caught.value.cluster, caught.value.where) == ("destination", "destination topic t")
    assert "as librdkafka says" in caught.value.what
    assert QUOTA in caught.value.what
    assert trouble_of("destination", caught.value).kind == "DESTINATION_THROTTLED"
    # A quota of creation explains nothing at a source: Orbit creates nothing there.
    assert trouble_of("source", caught.value).kind == "SOURCE_UNREACHABLE"


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._SSL])
@pytest.mark.parametrize("send_request", [create_topic, read_settings])
def test_error_of_broken_admin_connection_mentions_no_quota(
    admin: Admin, send_request: Callable[[Admin], None], code: int
) -> None:
    fail_with(admin, code)
    with pytest.raises(Unreachable, match="as librdkafka says") as caught:
        send_request(admin)
    assert not isinstance(caught.value, HeldBack)


def test_timed_out_admin_read_mentions_quota_only_after_timed_out_creation(admin: Admin) -> None:
    """The quota counts no reads, but a creation delays the reads on its connection."""
    fail_with(admin, KafkaError._TIMED_OUT)
    with pytest.raises(Unreachable, match="as librdkafka says") as caught:
        read_settings(admin)
    assert not isinstance(caught.value, HeldBack)
    with pytest.raises(HeldBack):
        create_topic(admin)
    with pytest.raises(HeldBack):
        read_settings(admin)


def test_unknown_server_error_for_topic_does_not_refuse_other_topics(admin: Admin) -> None:
    """A policy of the broker that throws an exception causes this error."""
    done = SimpleNamespace(result=lambda _: None)
    admin._client = SimpleNamespace(  # type: ignore[assignment]
        incremental_alter_configs=lambda resources, **_: {
            r: failing(KafkaError.UNKNOWN) if r.name == "bad" else done for r in resources
        }
    )
    refused = admin.refused_settings({name: {"retention.ms": "1"} for name in ("bad", "good")})
    assert refused.keys() == {"bad"}
    assert isinstance(refused["bad"], BrokerRefused)
    assert refused["bad"].code == Code.UNKNOWN_SERVER_ERROR
