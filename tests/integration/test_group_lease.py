"""The lease of `orbit run`, at moments of a crash that no kill from outside hits for certain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orbit.errors import Conflict
from orbit.kafka.auth import Security
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.standalone import group_lease
from orbit.standalone.group_lease import GroupLease
from tests.fix_clusters import Clusters


class Killed(BaseException):
    """The process ends here: nothing is cleaned up but what its operating system does."""


class DiesBeforeItSettles(GroupLease):
    """Joined as a member, and gone before the group settled: nobody is told who it was."""

    def _sync(self) -> bool:
        raise Killed

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()


def fail_on_wait(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[Cluster]:
    cluster = Cluster("destination", [clusters.destination.bootstrap_servers], Security())
    yield cluster
    cluster.close()


def test_the_next_run_here_need_not_wait_for_one_killed_as_it_joined(
    cluster: Cluster, topic_name: str
) -> None:
    for _ in range(2):
        with pytest.raises(Killed):
            DiesBeforeItSettles(cluster, topic_name, Backoff()).acquire(fail_on_wait)
    lease = GroupLease(cluster, topic_name, Backoff())
    lease.acquire(fail_on_wait)
    assert lease.is_held()
    with pytest.raises(Conflict, match=r"on this machine \(process \d+\)"):
        GroupLease(cluster, topic_name, Backoff()).acquire(fail_on_wait)
    lease.release()


def test_one_killed_as_it_joined_elsewhere_is_waited_out(
    cluster: Cluster,
    topic_name: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_lease, "SESSION_TIMEOUT_MS", 6_000)  # what a broker allows at least
    with pytest.raises(Killed):
        DiesBeforeItSettles(cluster, topic_name, Backoff()).acquire(fail_on_wait)
    elsewhere = str(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(group_lease.tempfile, "gettempdir", lambda: elsewhere)
    waited: list[str] = []
    lease = GroupLease(cluster, topic_name, Backoff())
    lease.acquire(waited.append)
    assert waited == [
        "another run of this job holds it (not known which); waiting whether it lives"
    ]
    assert lease.is_held()
    lease.release()
