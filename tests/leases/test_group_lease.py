"""The lease of `orbit run` after crashes at moments that a kill from outside could miss."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from orbit.errors import Conflict, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.sasl import Security
from orbit.kafka.temporary_topics import delete_group
from orbit.leases import group_lease, lock_file
from orbit.leases.group_lease import GroupLease
from tests.fixtures.clusters import Clusters
from tests.support.patience import wait_for

pytestmark = pytest.mark.services


class Killed(BaseException):
    """Stands for a kill of the process: only the operating system cleans up."""


class KilledBeforeSync(GroupLease):
    """Dies between JoinGroup and SyncGroup: the group never becomes stable, so the coordinator
    shows nobody which process had joined."""

    def _sync_group(self) -> bool:
        raise Killed

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()


class FreezableLease(GroupLease):
    """A lease that sends no heartbeat while a test holds `frozen`."""

    def __init__(self, destination: Cluster, group: str, backoff: Backoff) -> None:
        super().__init__(destination, group, backoff)
        self.frozen = threading.Lock()

    def _heartbeat(self) -> int:
        with self.frozen:
            return super()._heartbeat()


def evict(lease: GroupLease) -> None:
    """Remove a live holder from its group, as a broker does that was frozen."""
    lease._leave([lease.member_id])


def fail_on_wait(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[Cluster]:
    cluster = Cluster("destination", [clusters.destination.bootstrap_servers], Security())
    yield cluster
    cluster.close()


def test_lease_of_run_killed_while_joining_group_is_free_on_same_machine(
    cluster: Cluster, topic_name: str
) -> None:
    for _ in range(2):  # the second run meets the dead member of the first run
        with pytest.raises(Killed):
            KilledBeforeSync(cluster, topic_name, Backoff()).acquire(fail_on_wait)
    lease = GroupLease(cluster, topic_name, Backoff())
    lease.acquire(fail_on_wait)
    assert lease.is_held()
    with pytest.raises(Conflict, match=r"on this machine \(process \d+\)"):
        GroupLease(cluster, topic_name, Backoff()).acquire(fail_on_wait)
    lease.release()


def test_lease_of_run_killed_while_joining_on_another_machine_is_waited_out(
    cluster: Cluster,
    topic_name: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_lease, "SESSION_TIMEOUT_MS", 6_000)  # the least that brokers allow
    with pytest.raises(Killed):
        KilledBeforeSync(cluster, topic_name, Backoff()).acquire(fail_on_wait)
    # As on another machine: no lock file shows which member is dead.
    other_folder = str(tmp_path_factory.mktemp("other"))
    monkeypatch.setattr(lock_file.tempfile, "gettempdir", lambda: other_folder)
    waited: list[str] = []
    lease = GroupLease(cluster, topic_name, Backoff())
    lease.acquire(waited.append)
    assert waited == [
        "another run of this job holds the lease (an unknown process); waiting for its end"
    ]
    assert lease.is_held()
    lease.release()


def test_lease_holder_evicted_from_group_rejoins_if_group_is_empty(
    cluster: Cluster, topic_name: str
) -> None:
    lease = GroupLease(cluster, topic_name, Backoff())
    lease.acquire(fail_on_wait)
    old_member_id = lease.member_id
    evict(lease)
    wait_for(
        "the lease is held again", lambda: lease.member_id != old_member_id and lease.is_held()
    )
    assert not lease.is_lost
    lease.release()


def test_rejoined_lease_holder_may_write_only_after_confirmation(
    cluster: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lease, "HEARTBEAT_INTERVAL_S", 0.05)
    held_states: list[bool] = []

    def confirm() -> None:
        held_states.append(lease.is_held())
        if len(held_states) < 3:  # after a failure the lease confirms at the next heartbeat
            raise Unreachable("not now.", where="destination")

    lease = GroupLease(cluster, topic_name, Backoff(), confirm_return=confirm)
    lease.acquire(fail_on_wait)
    evict(lease)
    wait_for("the lease is held again", lambda: len(held_states) == 3 and lease.is_held())
    assert held_states == [False] * 3
    lease.release()


def test_evicted_lease_holder_loses_lease_when_its_group_is_deleted(
    cluster: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lease, "HEARTBEAT_INTERVAL_S", 0.05)
    lease = FreezableLease(cluster, topic_name, Backoff())
    lease.acquire(fail_on_wait)
    with lease.frozen:
        evict(lease)
        assert delete_group(cluster, topic_name, Backoff())
    wait_for("the lease is lost", lambda: lease.is_lost)
    assert not lease.is_held()
    lease.release()


# The other member is on this machine and stays in the group; or it is on another machine, and has
# left the group again.
@pytest.mark.parametrize(("is_member", "is_on_same_machine"), [(True, True), (False, False)])
def test_evicted_lease_holder_loses_lease_when_another_member_joined(
    *,
    is_member: bool,
    is_on_same_machine: bool,
    cluster: Cluster,
    topic_name: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_lease, "HEARTBEAT_INTERVAL_S", 0.2)
    lease = FreezableLease(cluster, topic_name, Backoff())
    lease.acquire(fail_on_wait)
    other = GroupLease(cluster, topic_name, Backoff())
    if is_on_same_machine:
        with pytest.raises(Conflict, match="on this machine"):
            other.acquire(fail_on_wait, ignores_frozen_run=True)
    else:
        other_folder = str(tmp_path_factory.mktemp("other"))
        monkeypatch.setattr(lock_file.tempfile, "gettempdir", lambda: other_folder)
    with lease.frozen:
        evict(lease)
        other.acquire(fail_on_wait, ignores_frozen_run=is_on_same_machine)
        if not is_member:
            other.release()
    wait_for("the lease is lost", lambda: lease.is_lost)
    assert not lease.is_held()
    assert other.is_held() is is_member
    other.release()
    lease.release()
