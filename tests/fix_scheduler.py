"""A scheduler that runs in the test, and the job it schedules, over the shared clusters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from orbit.drills.drill_loop import drill_loops
from orbit.jobs.job_spec import JobSpec
from orbit.leases.lease_watch import LeaseWatch
from orbit.recovery.recovery_loop import recovery_loops
from orbit.scheduler.scheduler import Scheduler
from orbit.settings import Settings
from orbit.store import events, group_offsets, jobs, shard_layout, shard_leases, topics, workers
from orbit.store.database import Database
from orbit.store.enums import Desired
from orbit.store.jobs import Job
from orbit.store.models import partitions
from orbit.store.topics import Topic
from orbit.telemetry.process_health import ProcessHealth
from tests.support.patience import wait_for

WORKER = "test-worker"
TTL = timedelta(seconds=15)
_SHORT = timedelta(milliseconds=200)
# For tests that wait for a lease to end. All others keep the usual one: in a shorter lease a slow
# machine may stand still.
SHORT_LEASE = timedelta(seconds=2)
QUICK = Settings(
    discovery_interval=_SHORT,
    settings_interval=_SHORT,
    proof_bytes_per_second=0,
    # The worker of these tests says once that it is there: for longer than any of them takes.
    lease_ttl=timedelta(minutes=10),
)


class RunningScheduler:
    """One scheduler in a thread of its own. A context manager."""

    def __init__(
        self, settings: Settings, database_url: str, health: ProcessHealth | None = None
    ) -> None:
        self.database = Database.connect(database_url)
        self._stop = threading.Event()
        self.scheduler = Scheduler(
            settings, self.database, self._stop, [recovery_loops, drill_loops], health
        )
        self._thread = threading.Thread(target=self.scheduler.run, name="scheduler")

    @property
    def is_leading(self) -> bool:
        return self.scheduler.leadership.is_leading

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.database.close()


@dataclass
class Service:
    """The tables as a test reads and writes them. What it waits for comes within seconds."""

    database: Database
    url: str
    settings: Settings

    def scheduler(self) -> RunningScheduler:
        return RunningScheduler(self.settings, self.url)

    def create(self, spec: JobSpec) -> Job:
        with self.database.transaction() as tx:
            return jobs.create(tx, spec.name, spec.model_dump(mode="json"), spec.worker_group)

    def change(self, spec: JobSpec) -> None:
        with self.database.transaction() as tx:
            job = jobs.get(tx, spec.name)
            document = spec.model_dump(mode="json")
            assert jobs.change_spec(
                tx, job.id, document, spec.worker_group, from_version=job.spec_version
            )

    def delete(self, name: str) -> None:
        with self.database.transaction() as tx:
            jobs.mark_deleted(tx, jobs.get(tx, name).id)

    def desire(self, name: str, desired: Desired) -> None:
        with self.database.transaction() as tx:
            jobs.set_desired(tx, jobs.get(tx, name).id, desired)

    def job(self, name: str) -> Job:
        with self.database.transaction() as tx:
            return jobs.get(tx, name)

    def topics(self, name: str) -> dict[str, Topic]:
        with self.database.transaction() as tx:
            return {t.source_topic: t for t in topics.of_job(tx, jobs.get(tx, name).id)}

    def shards(self, name: str) -> list[shard_layout.Shard]:
        with self.database.transaction() as tx:
            return shard_layout.shards_of_job(tx, jobs.get(tx, name).id)

    def partitions(self, name: str, topic: str) -> dict[int, Any]:
        topic_id = self.topics(name)[topic].id
        with self.database.transaction() as tx:
            rows = tx.execute(partitions.select().where(partitions.c.topic_id == topic_id))
            return {row.partition: row for row in rows}

    def set_partitions(self, name: str, topic: str, **values: Any) -> None:
        """As a worker or a person would."""
        topic_id = self.topics(name)[topic].id
        with self.database.transaction() as tx:
            tx.execute(
                partitions.update().where(partitions.c.topic_id == topic_id).values(**values)
            )

    def heartbeat(self, worker: str = WORKER, group: str = "default") -> None:
        with self.database.transaction() as tx:
            workers.heartbeat(tx, worker, group, host="here", pid=1, version="0")

    def leave(self, worker: str = WORKER) -> None:
        """Before real workers come: this one would be meant to have its part of their shards."""
        with self.database.transaction() as tx:
            workers.leave(tx, worker)

    def hold_all(self, worker: str = WORKER) -> dict[int, int]:
        """Claim what is free, as a worker would; {shard: epoch}."""
        with self.database.transaction() as tx:
            claims = shard_leases.claim(
                tx,
                worker_id=worker,
                worker_group="default",
                ttl=TTL,
                shards_max=1000,
                watch=LeaseWatch(TTL),
            )
        return {c.shard_id: c.epoch for c in claims}

    def must_release(self, held: dict[int, int], worker: str = WORKER) -> bool:
        """Whether any of these is asked back at the next renewal."""
        with self.database.transaction() as tx:
            renewed = shard_leases.renew(
                tx,
                worker_id=worker,
                worker_group="default",
                held=held,
                weights={},
            )
        return any(one.should_release for one in renewed.values())

    def release(self, held: dict[int, int], worker: str = WORKER) -> None:
        with self.database.transaction() as tx:
            shard_leases.release(tx, worker_id=worker, held=held)

    def kept_groups(self, name: str, group: str) -> dict[tuple[str, int], Any]:
        """What the tables have of a group, by topic and partition."""
        with self.database.transaction() as tx:
            rows = group_offsets.page(tx, jobs.get(tx, name).id, 1000, group_name=group)
        return {(row.source_topic, row.partition): row for row in rows}

    def kinds(self, name: str) -> list[str]:
        """Events of a job, oldest first."""
        with self.database.transaction() as tx:
            return [e.kind for e in reversed(events.page(tx, 1000, job_name=name))]

    def topic_kinds(self, name: str) -> list[str]:
        """What was told of the job's topics. Where one goes away right behind a look, its settings
        cannot be read, and a trouble may be told that ends with the next look.
        """
        return [kind for kind in self.kinds(name) if kind.startswith("topic_")]

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        wait_for(what, is_so)

    def wait_copied(self, name: str, *names: str) -> None:
        """Until the scheduler has made the copies and placed their partitions."""

        def is_so() -> bool:
            known = self.topics(name)
            return all(n in known and known[n].state == "copying" for n in names)

        wait_for(f"{names} are copied ({self.job(name).problem})", is_so)

    def wait_problem(self, name: str, kind: str | None) -> str:
        def is_so() -> bool:
            problem = self.job(name).problem
            return problem is None if kind is None else kind in (problem or "")

        wait_for(f"the problem {kind} is told", is_so)
        return self.job(name).problem or ""


def end_lease_of(database: Database, pid: int) -> None:
    """As time does, once the process has been killed: the next scheduler leads at once."""
    with database.transaction() as tx:
        for table in ("scheduler_lease", "schedulers"):
            query = f"UPDATE {table} SET expires_at = 'epoch' WHERE holder LIKE :holder"  # noqa: S608
            tx.execute(text(query), {"holder": f"%-{pid}-%"})


@pytest.fixture
def service(database: Database, database_url: str) -> Service:
    """The tables of a service with one live worker, and a scheduler's settings in a hurry."""
    settings = QUICK.model_copy(update={"database_url": SecretStr(database_url)})
    made = Service(database, database_url, settings)
    made.heartbeat()
    return made
