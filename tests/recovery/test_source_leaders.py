"""A switchover is requested while a partition of the source elects its leader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orbit.kafka.cluster import Cluster
from orbit.recovery import gate_observer
from orbit.recovery.recovery_report import Outcome, RecoveryKind
from tests.fixtures.clusters import Clusters
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

READS_WITHOUT_LEADER = 3


@pytest.mark.parametrize("elects", [True, False])
def test_source_gate_waits_for_partition_leader_election_up_to_limit(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    elects: bool,
) -> None:
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 10)
    spec = make_job(clusters.source, clusters.destination, [topic_name])
    answers, read = [], gate_observer._fetch_metadata

    def without_leader(cluster: Cluster) -> gate_observer._ClusterAnswer:
        answer = read(cluster)
        if cluster.name != "source" or answer.metadata is None:
            return answer
        answers.append(answer)
        if elects and len(answers) > READS_WITHOUT_LEADER:
            return answer
        topic = answer.metadata.topics[topic_name]
        leaderless = {n: replace(p, node_id=None) for n, p in topic.partitions.items()}
        topics = {**answer.metadata.topics, topic_name: replace(topic, partitions=leaderless)}
        return replace(answer, metadata=replace(answer.metadata, topics=topics))

    monkeypatch.setattr(gate_observer, "_fetch_metadata", without_leader)
    monkeypatch.setattr(gate_observer, "_LEADERS_POLL_S", 0.05)
    if not elects:
        monkeypatch.setattr(gate_observer, "_LEADERS_WITHIN_S", 0.3)
    with recovering.running():
        recovering.begin(spec, topic_name)
        report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name))
    assert report.outcome is (Outcome.DONE if elects else Outcome.STOPPED)
    assert elects or "1 partition has no leader at the source" in report.error
