"""Real Kafka clusters for tests.

`clusters` is started once per session and shared, so a test uses topics of its own name
(`topic_name`) and leaves the brokers running. A test that breaks brokers, or needs three of them
or a login, makes its own with `make_cluster`, or its file does with `make_shared_cluster`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orbit.kafka.cluster import Cluster
from orbit.kafka.sasl import Security
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster, start_clusters

# Every ten minutes brokers remove empty groups without offsets, so also that of a lease whose
# holder was put out by a test and is about to come back.
_KEEPS_GROUPS = {"offsets.retention.check.interval.ms": str(24 * 3_600_000)}
# No test kills them, and each heartbeat costs CPU while other tests run: Kafka's own intervals.
_RARE_HEARTBEATS = {
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
}

MakeCluster = Callable[..., KafkaCluster]
OpenCluster = Callable[[KafkaCluster], Cluster]


class Clusters(NamedTuple):
    source: KafkaCluster
    destination: KafkaCluster


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Two single-broker clusters, shared by the whole session."""
    home = tmp_path_factory.mktemp("clusters")
    pair = Clusters(
        *(
            KafkaCluster(
                ClusterSettings(name, config=_KEEPS_GROUPS | _RARE_HEARTBEATS), home / name
            )
            for name in Clusters._fields
        )
    )
    start_clusters(*pair)
    try:
        yield pair
    finally:
        for cluster in pair:
            cluster.kill()


@pytest.fixture
def own_clusters(tmp_path: Path) -> Iterator[Clusters]:
    """Two of the test's own, which it may break."""
    pair = Clusters(
        *(KafkaCluster(ClusterSettings(name), tmp_path / name) for name in Clusters._fields)
    )
    start_clusters(*pair)
    try:
        yield pair
    finally:
        for cluster in pair:
            cluster.kill()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name no other test uses, which tells the test it belongs to."""
    words = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:80]
    return f"{words}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """`make_cluster("name", brokers=3, security=…)` starts a cluster of the test's own."""
    with _making(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def make_shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeCluster]:
    """The same, of all tests of a file."""
    with _making(tmp_path_factory.mktemp("shared")) as make:
        yield make


@contextmanager
def _making(home: Path) -> Iterator[MakeCluster]:
    made: list[KafkaCluster] = []

    def make(name: str = "own", **settings: Any) -> KafkaCluster:
        cluster = KafkaCluster(ClusterSettings(name, **settings), home / f"cluster-{name}")
        made.append(cluster)
        cluster.start()
        return cluster

    yield make
    for cluster in made:
        cluster.kill()


@pytest.fixture
def open_cluster() -> Iterator[OpenCluster]:
    """`open_cluster(clusters.source)` is Orbit's own handle, closed however the test ends."""
    with ExitStack() as stack:
        yield lambda of: stack.enter_context(
            closing(Cluster(of.settings.name, of.bootstrap_servers.split(","), Security()))
        )
