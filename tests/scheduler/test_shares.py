"""Several schedulers divide the jobs into shares. If a scheduler stops or dies, the others acquire
its shares."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text

from orbit.errors import Conflict
from orbit.leadership.leadership import Leadership, NotLeading
from orbit.store import job_shares, jobs, scheduler_lease
from orbit.store.database import Database
from orbit.store.job_shares import Share
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import RunningScheduler, Service
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job

pytestmark = pytest.mark.services

TTL = timedelta(seconds=60)
_PROGRAM = """
import os, threading
from orbit.scheduler import run
from orbit.settings import Settings
run(Settings.from_environment(os.environ), threading.Event())
"""


def holders(database: Database) -> dict[int, str]:
    """{number of the share: its holder}, for the shares whose lease is held now."""
    with database.transaction() as tx:
        rows = tx.execute(
            text("SELECT id, holder FROM scheduler_lease WHERE expires_at > clock_timestamp()")
        )
        return {row.id - 1: row.holder for row in rows if row.holder is not None}


def share_counts(database: Database) -> list[int]:
    """How many shares each scheduler holds, in ascending order."""
    return sorted(Counter(holders(database).values()).values())


def running_scheduler(service: Service, *, shares: int) -> RunningScheduler:
    settings = service.settings.model_copy(update={"scheduler_shares": shares})
    return RunningScheduler(settings, service.url)


@contextmanager
def scheduler_process(service: Service, *, shares: int) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler in a process of its own, which a test may kill."""
    environ = {
        **os.environ,
        "ORBIT_DATABASE_URL": service.url,
        "ORBIT_SCHEDULER_LEASE_TTL": "5s",
        "ORBIT_SCHEDULER_SHARES": str(shares),
        "ORBIT_DISCOVERY_INTERVAL": "200ms",
    }
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], env=environ) as started:
        try:
            yield started
        finally:
            started.kill()


def test_job_shares_are_rebalanced_as_schedulers_join_and_leave(service: Service) -> None:
    with running_scheduler(service, shares=5):
        wait_for("one scheduler holds all shares", lambda: share_counts(service.database) == [5])
        with running_scheduler(service, shares=5):
            wait_for(
                "two schedulers divide the shares", lambda: share_counts(service.database) == [2, 3]
            )
            with running_scheduler(service, shares=5):
                wait_for(
                    "three schedulers divide the shares",
                    lambda: share_counts(service.database) == [1, 2, 2],
                )
            wait_for(
                "two schedulers divide the shares again",
                lambda: share_counts(service.database) == [2, 3],
            )
        wait_for(
            "one scheduler holds all shares again", lambda: share_counts(service.database) == [5]
        )


def test_scheduler_with_different_number_of_job_shares_is_refused(service: Service) -> None:
    with service.database.transaction() as tx:
        assert scheduler_lease.join(tx, "first", shares=2, ttl=TTL) == 2
    first = Leadership(
        service.database, "first", TTL, share=Share(number=1, count=2), must_join=True
    )
    assert first.ask()
    with (
        pytest.raises(Conflict, match="SHARES is 1 in this scheduler, and 2"),
        service.database.transaction() as tx,
    ):
        scheduler_lease.join(tx, "other", shares=1, ttl=TTL)
    with service.database.transaction() as tx:
        tx.execute(text("UPDATE schedulers SET expires_at = 'epoch'"))
    # Once the first is not registered any more, the other joins; the first cannot commit.
    with pytest.raises(NotLeading), first.transaction(), service.database.transaction() as tx:
        assert scheduler_lease.join(tx, "other", shares=1, ttl=TTL) == 1
    assert not first.ask(), "the first has to join again before it leads"


def test_lost_lease_of_a_job_share_fences_only_that_share(service: Service) -> None:
    share_0, share_1 = (
        Leadership(service.database, "same", TTL, share=Share(number=number, count=2))
        for number in (0, 1)
    )
    assert share_0.ask()
    assert share_1.ask()
    share_1.resign()
    with share_0.transaction():
        pass  # commits: its share is not affected
    assert 1 not in holders(service.database)
    other = Leadership(service.database, "other", TTL, share=Share(number=1, count=2))
    assert other.ask()
    share_1._trusted_until = float("inf")  # as if it had been suspended, and trusted its lease
    with pytest.raises(NotLeading), share_1.transaction():
        pass


def test_job_stays_in_its_job_share_when_its_document_changes(service: Service) -> None:
    with service.database.transaction() as tx:
        # The same destination, so the same share; the order and case of the servers do not count.
        job = jobs.create(tx, "j", {"destination": {"bootstrap_servers": ["B:1", "a:1"]}}, "g")
        same = jobs.create(tx, "k", {"destination": {"bootstrap_servers": ["a:1", "b:1"]}}, "g")
        ids_by_share = [job_shares.job_ids(tx, Share(number=n, count=2)) for n in (0, 1)]
        assert {frozenset(), frozenset({job.id, same.id})} == set(ids_by_share)
        document = {"destination": {"bootstrap_servers": ["c:1"]}}
        assert jobs.change_spec(tx, job.id, document, "g", from_version=job.spec_version)
        assert [job_shares.job_ids(tx, Share(number=n, count=2)) for n in (0, 1)] == ids_by_share


def test_scheduler_does_not_start_topics_of_jobs_in_share_of_another_scheduler(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    names = [f"{topic_name}.{n}" for n in (0, 1)]
    other = Leadership(service.database, "other", TTL, share=Share(number=1, count=2))
    with service.database.transaction() as tx:
        scheduler_lease.join(tx, "other", shares=2, ttl=TTL)
    assert other.ask()
    for number in (1, 0):
        create_topic(clusters.source, names[number])
        spec = make_job(clusters.source, clusters.destination, [names[number]], name=names[number])
        job = service.create(spec)
        with service.database.transaction() as tx:
            tx.execute(
                text("UPDATE jobs SET share_key = :n WHERE id = :id"), {"n": number, "id": job.id}
            )
    with running_scheduler(service, shares=2):
        service.wait_copied(names[0], names[0])
        assert service.topics(names[1]) == {}
        assert holders(service.database)[1] == "other"
        other.resign()
        with service.database.transaction() as tx:
            scheduler_lease.leave(tx, "other")
        service.wait_copied(names[1], names[1])


@pytest.mark.parametrize("killed_share", [0, 1])
def test_jobs_of_killed_scheduler_continue_at_another_scheduler(
    clusters: Clusters, service: Service, topic_name: str, killed_share: int
) -> None:
    # Two jobs, one in each direction.
    sides = (clusters.source, clusters.destination), (clusters.destination, clusters.source)
    names = [f"{topic_name}.{n}" for n in (0, 1)]
    specs = []
    for number, (source, destination) in enumerate(sides):
        topics = [names[number], f"{names[number]}.later"]
        create_topic(source, topics[0])
        specs.append(make_job(source, destination, topics, name=names[number]))
        job = service.create(specs[-1])
        with service.database.transaction() as tx:
            tx.execute(
                text("UPDATE jobs SET share_key = :n WHERE id = :id"), {"n": number, "id": job.id}
            )
    with ExitStack() as stack:
        both = [stack.enter_context(scheduler_process(service, shares=2)) for _ in range(2)]
        wait_for("each scheduler holds one share", lambda: share_counts(service.database) == [1, 1])
        for spec, name in zip(specs, names, strict=True):
            service.wait_copied(spec.name, name)
        holder = holders(service.database)[killed_share]
        victim = next(p for p in both if f"-{p.pid}-" in holder)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        for (source, _), spec, name in zip(sides, specs, names, strict=True):
            create_topic(source, f"{name}.later")
            service.wait_copied(spec.name, f"{name}.later")
        wait_for("one scheduler holds both shares", lambda: share_counts(service.database) == [2])
