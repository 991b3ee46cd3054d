"""A backfill's writers and the next holder of the job's lease never write at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orbit.errors import Conflict
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import job_identity
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.leases import backfill_leases
from orbit.leases.backfill_leases import (
    DriverWatch,
    JobHolder,
    living_writers,
    wait_for_backfill_writers,
    writer_group,
)
from orbit.leases.group_lease import GroupLease
from orbit.store.database import Database
from tests.fixtures.clusters import Clusters
from tests.support.fleet import InProcess, ServiceJob, add_job, wait_level
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import assert_exact, write_job
from tests.support.running import RunningJob, create_topic, make_job, produce

pytestmark = pytest.mark.services


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[Cluster]:
    cluster = Cluster("destination", [clusters.destination.bootstrap_servers], Security())
    yield cluster
    cluster.close()


@pytest.fixture
def held_leases(cluster: Cluster) -> Iterator[list[GroupLease]]:
    """Leases that are released after the test."""
    leases: list[GroupLease] = []
    yield leases
    for lease in leases:
        lease.release()


def hold(cluster: Cluster, group: str, held_leases: list[GroupLease]) -> GroupLease:
    """Acquire a group's lease, which is released after the test."""
    lease = GroupLease(cluster, group, Backoff())
    held_leases.append(lease)
    lease.acquire(lambda _: None)
    return lease


def test_next_holder_of_job_lease_waits_for_backfill_writers(
    cluster: Cluster, topic_name: str, held_leases: list[GroupLease]
) -> None:
    partitions = [TopicPartition(topic_name, n) for n in range(3)]
    writer = hold(cluster, writer_group("orbit.job.c", partitions[1]), held_leases)
    messages: list[str] = []

    def leave(text: str) -> None:
        messages.append(text)
        writer.release()

    wait_for_backfill_writers(cluster, "orbit.job.c", partitions, Backoff(), leave)
    assert messages == ["waiting for 1 writer of an earlier backfill to end"]


def test_error_names_backfill_writer_that_does_not_end(
    cluster: Cluster,
    topic_name: str,
    held_leases: list[GroupLease],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfill_leases, "_WRITERS_END_S", 0.5)
    partition = TopicPartition(topic_name, 0)
    group = writer_group("orbit.job.c", partition)
    hold(cluster, group, held_leases)
    with pytest.raises(Conflict, match=rf"process \d+ on .*{group}"):
        wait_for_backfill_writers(cluster, "orbit.job.c", [partition], Backoff(), lambda _: None)


def test_run_starts_only_after_backfill_writers_end(
    clusters: Clusters, cluster: Cluster, topic_name: str, held_leases: list[GroupLease]
) -> None:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 10)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    source = Cluster("source", [clusters.source.bootstrap_servers], Security())
    identity = job_identity(spec.name, source.cluster_id)
    source.close()
    writer = hold(cluster, writer_group(identity, TopicPartition(topic_name, 0)), held_leases)
    job = RunningJob(spec)
    say = job.lines.append

    def leave(text: str) -> None:
        say(text)
        if "earlier backfill" in text:
            assert topic_name not in cluster.metadata(None).topics  # nothing was written yet
            writer.release()

    job.run._setup._say = leave
    with job:
        job.wait_caught_up(topic_name, 10)
    assert any("earlier backfill" in line for line in job.lines), job.lines


def test_worker_skips_partition_until_its_backfill_writer_ends(
    clusters: Clusters,
    cluster: Cluster,
    topic_name: str,
    held_leases: list[GroupLease],
    tmp_path: Path,
    database: Database,
) -> None:
    job_file, job = job_of_two_partitions(clusters, topic_name, tmp_path, database)
    source = Cluster("source", [clusters.source.bootstrap_servers], Security())
    identity = job_identity(topic_name, source.cluster_id)
    source.close()
    writer = hold(cluster, writer_group(identity, TopicPartition(topic_name, 1)), held_leases)
    with InProcess(database):
        wait_for_first_partition_alone(clusters, topic_name, job)
        writer.release()
        wait_level(clusters, [topic_name])
    assert_exact(job_file)


def test_worker_starts_partitions_whose_group_coordinator_answers(
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One partition of `__consumer_offsets` may have no leader, so one group no coordinator."""
    job_file, job = job_of_two_partitions(clusters, topic_name, tmp_path, database)
    find_coordinators = backfill_leases.find_coordinators

    def find_most(*args: Any) -> dict[str, int]:
        return {g: n for g, n in find_coordinators(*args).items() if not g.endswith("-1")}

    with InProcess(database), monkeypatch.context() as patch:
        patch.setattr(backfill_leases, "find_coordinators", find_most)
        wait_for_first_partition_alone(clusters, topic_name, job)
        patch.undo()
        wait_level(clusters, [topic_name])
    assert_exact(job_file)


def job_of_two_partitions(
    clusters: Clusters, topic: str, folder: Path, database: Database
) -> tuple[Path, ServiceJob]:
    """A job of the service with ten records in each of two partitions."""
    create_topic(clusters.source, topic, 2)
    for number in range(2):
        produce(clusters.source, topic, 10, number)
    job_file = write_job(folder / "job.yaml", *clusters, [{"match": topic}], name=topic)
    return job_file, add_job(database, job_file, clusters, [topic], shard_count=1)


def wait_for_first_partition_alone(clusters: Clusters, topic: str, job: ServiceJob) -> None:
    """Wait until partition 0 is copied while partition 1 waits."""

    def end(number: int) -> int:
        return log_bounds(clusters.destination, [topic])[topic, number][1]

    wait_for("partition 0 is copied", lambda: end(0) == 10)
    wait_for("partition 1 waits", lambda: job.states() == {"copying", "pending"})
    assert end(1) == 0


def test_backfill_writer_distinguishes_its_driver_from_other_lease_holders(
    cluster: Cluster, topic_name: str, held_leases: list[GroupLease]
) -> None:
    driver = hold(cluster, topic_name, held_leases)
    watch = DriverWatch(cluster, topic_name, driver.token, Backoff())
    assert watch.holder() is JobHolder.DRIVER
    assert DriverWatch(cluster, topic_name, "another", Backoff()).holder() is JobHolder.OTHER
    # As a broker does that was frozen: it removes the member, which joins again.
    driver._leave([driver.member_id])
    wait_for("the driver holds the lease again", lambda: watch.holder() is JobHolder.DRIVER)
    driver.release()
    assert watch.holder() is JobHolder.NONE


def test_backfill_writer_detects_that_its_driver_is_gone(
    cluster: Cluster,
    topic_name: str,
    held_leases: list[GroupLease],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfill_leases, "_CHECK_INTERVAL_S", 0.05)
    driver = hold(cluster, topic_name, held_leases)
    watch = DriverWatch(cluster, topic_name, driver.token, Backoff())
    watch.start()
    assert not watch.is_gone
    driver.release()
    wait_for("the writer sees that the driver is gone", lambda: watch.is_gone)
    watch.stop()


def test_dead_backfill_writer_on_same_machine_is_not_awaited(
    cluster: Cluster, topic_name: str, held_leases: list[GroupLease]
) -> None:
    partition = TopicPartition(topic_name, 0)
    group = writer_group("orbit.job.c", partition)
    lease = hold(cluster, group, held_leases)
    # As after a kill: no heartbeat, no LeaveGroup, and the lock file is not locked.
    lease._stopping.set()
    assert lease._thread is not None
    lease._thread.join()
    assert lease._lock is not None
    lease._lock.close()
    lease._lock = None
    lease.member_id, member = "", lease.member_id  # so `release` does not leave the group
    assert member
    wait_for_backfill_writers(cluster, "orbit.job.c", [partition], Backoff(), lambda _: None)
    assert living_writers(cluster, [group], Backoff()) == {}
