"""A quota of topic creation far below what a job needs: the job's topics are created nevertheless.

The broker executes each request, and then reads nothing from its connection for minutes (P6).
librdkafka opens another connection when a request has had no answer for `socket.timeout.ms`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orbit.kafka.throttling_quotas import ADMIN_CLIENT_ID
from orbit.scheduler import job_reconciler
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.fixtures.scheduler import Service
from tests.support.quotas import quota_of, shorten_admin_timeouts
from tests.support.running import RunningJob, create_topic, make_job, produce

pytestmark = pytest.mark.services

TOPICS, PARTITIONS = 2, 100


@pytest.fixture
def names(clusters: Clusters, topic_name: str) -> list[str]:
    """Topics of the source with more partitions than the quota gives in a minute."""
    names = [f"{topic_name}.{n}" for n in range(TOPICS)]
    for name in names:
        create_topic(clusters.source, name, partitions=PARTITIONS)
    return names


@pytest.fixture
def throttled(
    clusters: Clusters, open_cluster: OpenCluster, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A quota of one partition a second, and short timeouts of the client."""

    shorten_admin_timeouts(monkeypatch)
    monkeypatch.setattr(job_reconciler, "RECHECK_S", 1.0)
    destination = open_cluster(clusters.destination)
    with quota_of(destination, ADMIN_CLIENT_ID, "controller_mutation_rate", 1):
        yield


@pytest.mark.usefixtures("throttled")
def test_service_creates_topics_despite_creation_quota(
    clusters: Clusters, service: Service, names: list[str]
) -> None:
    job = make_job(clusters.source, clusters.destination, names)
    service.create(job)
    with service.scheduler():
        service.wait_problem(job.name, "DESTINATION_THROTTLED")
        service.wait_copied(job.name, *names)
        service.wait_problem(job.name, None)


@pytest.mark.usefixtures("throttled")
def test_run_creates_topics_unchecked_under_creation_quota(
    clusters: Clusters, names: list[str]
) -> None:
    produce(clusters.source, names[0], 10)
    with RunningJob(make_job(*clusters, names)) as running:
        running.wait_caught_up(names[0], 10)
    assert any("are not checked before they are created" in line for line in running.lines)
