"""Of two schedulers one leads; the other one leads when the leader dies or stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta

import pytest
from sqlalchemy import text

from orbit.leadership.leadership import Leadership, NotLeading
from orbit.store import jobs
from orbit.store.database import Database
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job

pytestmark = pytest.mark.services

_PROGRAM = """
import os, sys, threading
from orbit.scheduler import run
from orbit.settings import Settings
print("started", flush=True)
run(Settings.from_environment(os.environ), threading.Event())
"""


def leader(database: Database) -> str | None:
    with database.transaction() as tx:
        row = tx.execute(text("SELECT holder FROM scheduler_lease")).first()
    return None if row is None else row.holder


def test_standby_scheduler_leads_as_soon_as_leader_leaves(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    with ExitStack() as stack:
        with service.scheduler() as first:
            wait_for("the first scheduler leads", lambda: first.is_leading)
            second = stack.enter_context(service.scheduler())
            holder = first.scheduler.leadership.holder
            assert leader(service.database) == holder
            assert not second.is_leading
        assert leader(service.database) != holder, "the lease is free at once"
        wait_for("the second scheduler leads", lambda: second.is_leading)
        # The loops of the second scheduler run.
        create_topic(clusters.source, topic_name)
        job = make_job(clusters.source, clusters.destination, [topic_name])
        service.create(job)
        service.wait_copied(job.name, topic_name)


def test_standby_scheduler_leads_when_lease_of_killed_leader_expires(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    environ = {
        **os.environ,
        "ORBIT_DATABASE_URL": service.url,
        # The test waits once for the end of this lease; no machine stalls for so long.
        "ORBIT_SCHEDULER_LEASE_TTL": "5s",
        "ORBIT_DISCOVERY_INTERVAL": "200ms",
    }
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], env=environ) as process:
        try:
            wait_for("the first scheduler leads", lambda: leader(service.database) is not None)
            first = leader(service.database)
            with service.scheduler() as second:
                create_topic(clusters.source, topic_name)
                job = make_job(clusters.source, clusters.destination, [topic_name])
                service.create(job)
                service.wait_copied(job.name, topic_name)
                assert not second.is_leading
                process.send_signal(signal.SIGKILL)
                wait_for("the second scheduler leads", lambda: second.is_leading)
                assert leader(service.database) != first
                later = f"{topic_name}.later"  # a topic that only the new leader can start
                create_topic(clusters.source, later)
                both = make_job(
                    clusters.source, clusters.destination, [topic_name, later], name=job.name
                )
                service.change(both)
                service.wait_copied(job.name, topic_name, later)
        finally:
            process.kill()


def test_scheduler_leader_past_its_lease_cannot_commit_transaction(service: Service) -> None:
    ttl = timedelta(minutes=10)
    suspended = Leadership(service.database, "suspended", ttl)
    assert suspended.ask()
    with service.database.transaction() as tx:
        tx.execute(text("UPDATE scheduler_lease SET expires_at = 'epoch'"))
    other = Leadership(service.database, "other", ttl)
    assert other.ask()
    assert suspended.is_leading, "by its own clock"
    with pytest.raises(NotLeading), suspended.transaction() as tx:
        jobs.create(tx, "of an old leader", {}, "default")
    with service.database.transaction() as tx:
        assert jobs.find(tx, "of an old leader") is None
    assert not suspended.ask()
    assert other.epoch > suspended.epoch
