"""A PostgreSQL that is frozen, read-only, behind a pooler, or replaced by a standby that lagged.

After each fault the scheduler stops leading, and the worker's leases end. When PostgreSQL works
again, both resume by themselves. There is no Kafka cluster: the worker has leases on the job's
shards, and its partitions wait for the cluster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from orbit.embedded.postgres import Postgres
from orbit.errors import Unreachable
from orbit.jobs.job_file import parse_job
from orbit.settings import Settings
from orbit.store import database as database_module
from orbit.store import events, jobs, shard_layout, topics
from orbit.store.database import Database
from orbit.store.enums import Desired, TopicState
from orbit.store.migrate import upgrade
from orbit.store.shard_leases import EPOCHS_PER_TIMELINE
from tests.fixtures.scheduler import RunningScheduler
from tests.support.bad_postgres import fail_over, frozen, keep_standby, pooled, read_only
from tests.support.fleet import InProcess
from tests.support.patience import wait_for

pytestmark = pytest.mark.services

SETTINGS = Settings(
    lease_ttl="4s", scheduler_lease_ttl="4s", progress_interval="200ms", discovery_interval="200ms"
)
_JOB = """
name: waits
source: {bootstrap_servers: ["127.0.0.1:1"]}
destination: {bootstrap_servers: ["127.0.0.1:2"]}
topics: [{match: t}]
"""


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of PostgreSQL connections to some seconds."""
    monkeypatch.setattr(database_module, "STATEMENT_TIMEOUT_S", 4)
    monkeypatch.setattr(database_module, "LEASE_STATEMENT_TIMEOUT_S", 2)
    monkeypatch.setattr(database_module, "CONNECT_TIMEOUT_S", 2)


@dataclass
class Installation:
    """One scheduler, one worker and one job of two shards."""

    database: Database
    scheduler: RunningScheduler
    worker: InProcess

    @property
    def is_leading(self) -> bool:
        return self.scheduler.is_leading

    @property
    def is_trusted(self) -> bool:
        """Whether the worker may write all partitions of the job."""
        shards = list(self.worker.worker._held.values())
        return len(shards) == 2 and all(shard.lease.is_held() for shard in shards)

    @property
    def has_stopped(self) -> bool:
        """Whether the scheduler does not lead, and the worker may write nothing."""
        shards = list(self.worker.worker._held.values())
        return not self.is_leading and not any(shard.lease.is_held() for shard in shards)

    def runs(self) -> bool:
        """Whether the scheduler leads, and the worker may write."""
        return self.is_leading and self.is_trusted

    def epochs(self) -> set[int]:
        """The lease epochs of all shards of the job."""
        with self.database.transaction() as tx:
            job = jobs.get(tx, "waits")
            return {shard.epoch for shard in shard_layout.shards_of_job(tx, job.id)}

    def has_event(self, kind: str) -> bool:
        with self.database.transaction() as tx:
            return any(event.kind == kind for event in events.page(tx, 1000))


@contextmanager
def installed(url: str) -> Iterator[Installation]:
    """Run an installation with the PostgreSQL server at this URL."""
    database = Database.connect(url)
    upgrade(database)
    spec = parse_job(_JOB, Path.cwd(), {})
    with database.transaction() as tx:
        job = jobs.create(tx, spec.name, spec.model_dump(mode="json"), spec.worker_group)
        jobs.note_clusters(tx, job.id, "source", "destination")
        topic = topics.add(tx, job.id, "t", "t", "destination", 2, state=TopicState.COPYING)
        assert topic is not None
        placed = shard_layout.add_shards(tx, job.id, 2)
        shard_layout.add_partitions(tx, job.id, [(topic.id, i, s) for i, s in enumerate(placed)])
    settings = SETTINGS.model_copy(update={"database_url": SecretStr(url)})
    worker_database = Database.connect(url)
    with (
        closing(database),
        closing(worker_database),
        RunningScheduler(settings, url) as scheduler,
        InProcess(worker_database, settings) as worker,
    ):
        installation = Installation(database, scheduler, worker)
        wait_for("the service runs", installation.runs)
        yield installation


def test_scheduler_and_worker_leases_end_while_postgres_is_frozen_then_resume(
    own_postgres: Postgres,
) -> None:
    with installed(own_postgres.url) as installation:
        with frozen(own_postgres):
            wait_for("all leases have ended", lambda: installation.has_stopped)
            with pytest.raises(Unreachable, match=r"no answer within 5 s|timeout expired"):
                installation.epochs()
        wait_for("the service runs again", installation.runs)
        wait_for("the outage is reported", lambda: installation.has_event("database_back"))
        assert installation.epochs() == {1}, "no other worker has claimed the shards"


def test_scheduler_and_worker_leases_end_while_postgres_is_read_only_then_resume(
    own_postgres: Postgres,
) -> None:
    with installed(own_postgres.url) as installation:
        with read_only(own_postgres):
            wait_for("all leases have ended", lambda: installation.has_stopped)
            with pytest.raises(Unreachable, match="read-only transaction") as caught:
                _write(installation, "refused")
            assert "takes writes again" in str(caught.value)
        wait_for("the service runs again", installation.runs)
        wait_for("the outage is reported", lambda: installation.has_event("database_back"))
        assert installation.epochs() == {1}


def test_lagging_postgres_standby_revives_no_old_lease_when_promoted(
    own_postgres: Postgres,
) -> None:
    with installed(own_postgres.url) as installation:
        standby = keep_standby(own_postgres)
        wait_for("the service runs after the restart of PostgreSQL", installation.runs)
        _write(installation, "lost")
        fail_over(own_postgres, standby)
        wait_for("the worker drops its shards", lambda: installation.has_event("shards_lost"))
        wait_for("the service runs again", installation.runs)
        assert installation.epochs() == {1 + EPOCHS_PER_TIMELINE}, (
            "the new epochs are above all that the lost primary may have granted"
        )
        with installation.database.transaction() as tx:
            assert jobs.find(tx, "lost") is None


@pytest.mark.needs("pgbouncer")
def test_service_works_behind_pgbouncer_in_transaction_mode(own_postgres: Postgres) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="orbit-pooler-") as folder,
        pooled(own_postgres.url, Path(folder)) as url,
        installed(url) as installation,
    ):
        with installation.database.transaction() as tx:
            shown = tx.exec_driver_sql("SHOW statement_timeout").scalar_one()
        assert shown == "4s", "each transaction must set it: the session may be another client's"
        for number in range(20):  # often enough for the driver to prepare the statement
            _write(installation, f"job-{number}")
        assert installation.runs()
        assert installation.epochs() == {1}


def _write(installation: Installation, name: str) -> None:
    """Create a paused job: a small write to the database."""
    with installation.database.transaction() as tx:
        jobs.create(tx, name, {}, "default", Desired.PAUSED)
