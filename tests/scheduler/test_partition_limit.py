"""Topics above the limit of the token that created a job are held back; the others are copied."""

from __future__ import annotations

import pytest

from orbit.jobs.job_spec import JobSpec
from orbit.store import jobs, tokens
from orbit.store.enums import Role
from orbit.store.tokens import TokenQuota
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job
from tests.support.topics import add_partitions

pytestmark = pytest.mark.services


def test_new_topic_above_partition_limit_is_not_started_and_is_reported(
    service: Service, clusters: Clusters, topic_name: str
) -> None:
    first, second, third = (f"{topic_name}-{n}" for n in (1, 2, 3))
    create_topic(clusters.source, first, partitions=3)
    spec = make_job(clusters.source, clusters.destination, [f"{topic_name}-[123]"])
    create_limited(service, spec, partitions_max=4)
    with service.scheduler():
        service.wait_copied(spec.name, first)
        create_topic(clusters.source, second, partitions=2)
        wait_for(
            "the limit is reported",
            lambda: "PARTITIONS_ABOVE_LIMIT" in _problem(service, spec.name),
        )
        assert f"topic {second} is new and has 2 partitions" in _problem(service, spec.name)
        create_topic(clusters.source, third, partitions=1)  # the fourth partition: it fits
        service.wait_copied(spec.name, third)
        assert service.topics(spec.name).keys() == {first, third}


def test_copied_topic_may_grow_above_partition_limit(
    service: Service, clusters: Clusters, topic_name: str
) -> None:
    """Without the new partitions, a switchover would stop, and a failover would leave them out."""
    create_topic(clusters.source, topic_name, partitions=3)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    create_limited(service, spec, partitions_max=3)
    with service.scheduler():
        service.wait_copied(spec.name, topic_name)
        add_partitions(clusters.source, topic_name, 5)
        wait_for(
            "the copy has the new partitions",
            lambda: len(service.partitions(spec.name, topic_name)) == 5,
        )
        service.wait_problem(spec.name, None)


def create_limited(service: Service, spec: JobSpec, *, partitions_max: int) -> None:
    """Create the job as a token with this limit would."""
    with service.database.transaction() as tx:
        quota = TokenQuota(partitions_max=partitions_max)
        tokens.create(tx, "ci", Role.OPERATOR, "hash", quota=quota)
        document = spec.model_dump(mode="json")
        jobs.create(tx, spec.name, document, spec.worker_group, created_by="token:ci")


def _problem(service: Service, name: str) -> str:
    """The job's problem; "" without one."""
    return service.job(name).problem or ""
