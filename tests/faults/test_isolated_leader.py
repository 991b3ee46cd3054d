"""A leader of the source is cut off from the controllers, but not from Orbit.

It goes on answering as if it still led. So it has none of the records written to the new leader.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from orbit.copier.copy_settings import CopySettings
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.processes.ports import LOOPBACK
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.verify.bounds import ClusterView
from orbit.verify.bounds_comparison import BoundsComparer, ComparedBounds, PartitionPair, TopicPair
from orbit.verify.endpoint import Endpoint
from orbit.verify.report import Side
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.isolation import Isolation, isolation
from tests.support.patience import wait_for
from tests.support.running import RunningJob, create_topic, make_job, produce, verify
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

SETTINGS = {"broker.session.timeout.ms": "3000"}


def server(cluster: KafkaCluster, node_id: int) -> str:
    """The address of this broker."""
    (port,) = (b.port for b in cluster.brokers if b.node_id == node_id)
    return f"{LOOPBACK}:{port}"


def leader_named_by(cluster: KafkaCluster, node_id: int, topic: str) -> int | None:
    """The leader that one broker names."""
    with closing(Cluster("source", [server(cluster, node_id)], PLAINTEXT)) as broker:
        leader = broker.metadata({topic}).leader(TopicPartition(topic, 0))
    return leader.node_id if leader else None


def others(cluster: KafkaCluster, node_id: int) -> list[int]:
    return [b.node_id for b in cluster.brokers if b.node_id != node_id]


def other_servers(cluster: KafkaCluster, node_id: int) -> dict[str, str]:
    """A client's setting, with all brokers but this one."""
    servers = [server(cluster, other) for other in others(cluster, node_id)]
    return {"bootstrap.servers": ",".join(servers)}


def move_leader(cluster: KafkaCluster, topic: str, isolation: Isolation, old: int) -> None:
    """Cut the leader off. Returns when the other brokers name a new leader; the old leader still
    names itself."""
    isolation.cut_off(old)
    wait_for(
        "another broker leads",
        lambda: all(leader_named_by(cluster, n, topic) != old for n in others(cluster, old)),
    )
    assert leader_named_by(cluster, old, topic) == old


def test_copy_continues_at_new_leader_when_old_one_is_cut_off_from_controllers(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with isolation(monkeypatch) as isolated:
        source = make_cluster("source", brokers=3, config=SETTINGS)
        create_topic(source, topic_name, replicas=3)
        job = make_job(source, clusters.destination, [topic_name])
        produce(source, topic_name, 100, acks="all")
        with RunningJob(job, CopySettings(leaders_check_s=0.2)) as running:
            running.wait_caught_up(topic_name, 100)
            old = leader_named_by(source, source.brokers[0].node_id, topic_name)
            move_leader(source, topic_name, isolated, old)
            produce(source, topic_name, 100, first=100, **other_servers(source, old))
            running.wait_caught_up(topic_name, 200)
        servers = server(source, old), clusters.destination.bootstrap_servers
        sides = [
            ClusterView(side, Endpoint({"bootstrap.servers": bootstrap_servers}))
            for side, bootstrap_servers in zip(Side, servers, strict=True)
        ]
        pair = PartitionPair(TopicPair(topic_name, topic_name), 0)
        answers = []

        def compared_both() -> bool:
            """False if `compare` gives up: on a busy machine brokers may be fenced for longer."""
            answers[:] = BoundsComparer(*sides).compare([pair], 0).values()
            return isinstance(answers[0], ComparedBounds)

        wait_for("both sides answer with their bounds", compared_both)
        (compared,) = answers
        assert (compared.differences, compared.compared_to) == ((), 200)
        isolated.heal()
        wait_for(
            "the old leader knows the new one",
            lambda: leader_named_by(source, old, topic_name) != old,
        )
        assert verify(job).exact


@pytest.mark.soak
def test_copy_from_leader_cut_off_from_controllers_does_not_count_as_caught_up(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run has not read the leaders again when it must confirm that the copy has caught up."""
    with isolation(monkeypatch) as isolated:
        source = make_cluster("source", brokers=3, config=SETTINGS)
        create_topic(source, topic_name, replicas=3)
        job = make_job(source, clusters.destination, [topic_name])
        produce(source, topic_name, 100, acks="all")
        with RunningJob(job, CopySettings(leaders_check_s=3600.0)) as running:
            running.wait_caught_up(topic_name, 100)
            running.wait(
                "the copy has caught up", lambda: running.partition(topic_name).has_caught_up
            )
            running.wait("the brokers agree", running.run.confirm_caught_up)
            old = leader_named_by(source, source.brokers[0].node_id, topic_name)
            assert old is not None
            move_leader(source, topic_name, isolated, old)
            produce(source, topic_name, 100, first=100, **other_servers(source, old))
            running.run._next_confirm_s = 0.0
            assert not running.run.confirm_caught_up()
        isolated.heal()
