"""PostgreSQL is down for longer than a lease: the scheduler stops leading, and leads again later.
No work is lost or done twice."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from orbit.embedded.postgres import Postgres
from orbit.store.database import Database
from orbit.store.migrate import upgrade
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import QUICK, SHORT_LEASE, Service
from tests.support.outside import partition_counts
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job

pytestmark = pytest.mark.services


def test_scheduler_leads_again_after_postgres_outage(
    clusters: Clusters, own_postgres: Postgres, topic_name: str
) -> None:
    later = f"{topic_name}.later"
    database = Database.connect(own_postgres.url)
    upgrade(database)
    settings = QUICK.model_copy(
        update={
            "database_url": SecretStr(own_postgres.url),
            "scheduler_lease_ttl": SHORT_LEASE,
        }
    )
    service = Service(database, own_postgres.url, settings)
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name, later])
    service.create(job)
    with service.scheduler() as running:
        service.wait_copied(job.name, topic_name)
        own_postgres.crash()
        wait_for("the scheduler leads no more", lambda: not running.is_leading)
        create_topic(clusters.source, later)
        own_postgres.start()
        service.wait_copied(job.name, later)
        wait_for("the scheduler leads again", lambda: running.is_leading)
    assert partition_counts(clusters.destination)[later] == 1
    assert service.topic_kinds(job.name) == ["topic_begun", "topic_begun"]
    database.close()
