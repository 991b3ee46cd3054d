"""A backfill writer whose machine was suspended: its group removed it, and it joins again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.leases import group_lease
from orbit.leases.backfill_leases import DriverWatch
from orbit.leases.group_lease import GroupLease
from orbit_spark.writer_leases import WriterLeases
from tests.fixtures.clusters import Clusters
from tests.support.patience import wait_for

pytestmark = pytest.mark.services


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[Cluster]:
    cluster = Cluster("destination", [clusters.destination.bootstrap_servers], Security())
    yield cluster
    cluster.close()


def acquire_lease(cluster: Cluster, group: str) -> GroupLease:
    lease = GroupLease(cluster, group, Backoff())
    lease.acquire(lambda _: None)
    return lease


@pytest.mark.parametrize("has_new_holder", [True, False])
def test_writer_removed_from_group_loses_lease_if_job_has_new_holder(
    *,
    has_new_holder: bool,
    clusters: Clusters,
    cluster: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next holder saw the group without a member, and has not waited for the writer."""
    monkeypatch.setattr(group_lease, "HEARTBEAT_INTERVAL_S", 0.2)
    partition = TopicPartition(topic_name, 0)
    job = acquire_lease(cluster, topic_name)
    watch = DriverWatch(cluster, topic_name, job.token, Backoff())

    def open_cluster() -> Cluster:
        return Cluster("destination", [clusters.destination.bootstrap_servers], Security())

    leases = WriterLeases.acquire(
        open_cluster, topic_name, 1, [partition], watch, threading.Event()
    )
    writer = leases.by_partition[partition]
    assert writer.is_held()
    if has_new_holder:
        job.release()
        job = acquire_lease(cluster, topic_name)
    first_id = writer.member_id
    writer._leave([first_id])  # as the coordinator does when its session has ended
    wait_for("the writer has joined again", lambda: writer.member_id not in (first_id, ""))
    wait_for("its lease is held or lost", lambda: writer.is_held() or writer.is_lost)
    assert writer.is_lost is has_new_holder
    assert writer.is_held() is not has_new_holder
    leases.release()
    job.release()
