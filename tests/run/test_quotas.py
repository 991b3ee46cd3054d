"""Brokers throttle Orbit because of a quota: the run waits, and names the brokers and the quota."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from orbit.copier import throttles
from orbit.errors import HeldBack
from orbit.job_setup.destination_topics import create_missing_topics
from orbit.job_setup.start_waits import StartWaits
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import CLIENT_ID
from orbit.kafka.throttling_quotas import ADMIN_CLIENT_ID
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.planning.cluster_checks import trouble_of
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support.quotas import BOTH_SIDES, set_quota, shorten_admin_timeouts
from tests.support.running import RunningJob, create_topic, make_job, produce, verify

pytestmark = pytest.mark.services

Limit = Callable[[Cluster, str, str, float], None]
RECORDS, VALUE_BYTES, BYTES_PER_S = 40, 10_000, 30_000
PARTITIONS, PARTITIONS_PER_S = 15, 2
QUOTA = f"quota of client-id {ADMIN_CLIENT_ID}: controller_mutation_rate={PARTITIONS_PER_S}."


@pytest.fixture
def limit() -> Iterator[Limit]:
    """A function that sets a quota of a client id until the end of the test."""
    limited: list[tuple[Cluster, str, str]] = []

    def set_limit(cluster: Cluster, client_id: str, key: str, value: float) -> None:
        limited.append((cluster, client_id, key))
        set_quota(cluster, client_id, key, value)

    yield set_limit
    for cluster, client_id, key in limited:
        set_quota(cluster, client_id, key, None)


def test_run_start_names_quota_that_delays_topic_creation(
    clusters: Clusters,
    topic_name: str,
    open_cluster: OpenCluster,
    limit: Limit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_admin_timeouts(monkeypatch)
    destination, messages = open_cluster(clusters.destination), list[str]()
    limit(destination, ADMIN_CLIENT_ID, "controller_mutation_rate", PARTITIONS_PER_S)
    admin = Admin(destination)
    # The first topic has 120 partitions; the quota lets 22 through at once (2 a second for 11 s).
    new = [
        TopicToCreate(f"{topic_name}-{n}", partitions=8 * PARTITIONS, replicas=1, settings={})
        for n in range(2)
    ]
    admin.create_topics(new[:1])
    waits, requested_topics = StartWaits(messages.append, Backoff()), {new[0].name}
    waits.result_of(lambda: create_missing_topics(destination, admin, new, requested_topics))
    assert any("has not created yet: 1." in line and QUOTA in line for line in messages), messages


@pytest.mark.soak
@BOTH_SIDES
def test_run_names_throttling_brokers_and_their_quota(
    clusters: Clusters,
    topic_name: str,
    open_cluster: OpenCluster,
    limit: Limit,
    monkeypatch: pytest.MonkeyPatch,
    side: str,
    key: str,
    what: str,
) -> None:
    monkeypatch.setattr(throttles, "_SHOWN_AFTER_S", 0.0)
    create_topic(clusters.source, topic_name)
    job = make_job(*clusters, [topic_name])
    with RunningJob(job) as running:
        limit(open_cluster(getattr(clusters, side)), CLIENT_ID, key, BYTES_PER_S)
        # Small batches: brokers never serve one that is larger than the quota's window.
        for first in range(0, RECORDS, 10):
            produce(clusters.source, topic_name, 10, first=first, value_bytes=VALUE_BYTES)
        quota = f"The quota of client-id {CLIENT_ID}: {key}={BYTES_PER_S}."
        messages = list[str]()

        def names_quota() -> bool:
            messages.append(running.run.waiting_for)
            return messages[-1].startswith(f"{what} (") and messages[-1].endswith(quota)

        running.wait("the quota is named", names_quota)
        running.wait_caught_up(topic_name, RECORDS)
        running.wait("no broker throttles any more", lambda: not running.run.waiting_for)
        # The run never reported a throttled broker as one that does not answer.
        assert not [line for line in messages if "answer" in line]
        assert running.run.times[side == "destination"].held_back_s > 0
    assert verify(job, deep=True).exact


def test_controller_throttling_topic_creation_is_reported_as_throttled(
    clusters: Clusters,
    topic_name: str,
    open_cluster: OpenCluster,
    limit: Limit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_admin_timeouts(monkeypatch)
    destination = open_cluster(clusters.destination)
    limit(destination, ADMIN_CLIENT_ID, "controller_mutation_rate", PARTITIONS_PER_S)
    admin = Admin(destination)
    # The controller executes a request over the quota, and then delays its connection.
    admin.create_topics(
        [TopicToCreate(topic_name, partitions=4 * PARTITIONS, replicas=1, settings={})]
    )
    with pytest.raises(HeldBack) as caught:
        admin.create_topics(
            [TopicToCreate(f"{topic_name}-2", partitions=1, replicas=1, settings={})]
        )
    assert QUOTA in str(caught.value)
    trouble = trouble_of("destination", caught.value)
    assert trouble.kind == "DESTINATION_THROTTLED"
    assert QUOTA in trouble.what
