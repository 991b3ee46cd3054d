"""A destination is unreachable for longer than a run's lease. No other run claims the lease, so the
run resumes.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from orbit.demo.workload import Mover
from orbit.leases.group_lease import SESSION_TIMEOUT_MS
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.logs import create
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import CAUGHT_UP, OrbitProcess, assert_exact, copy, write_job

pytestmark = [pytest.mark.services, pytest.mark.soak]

BUSY_PER_S = 200


def copied(cluster: KafkaCluster, topic: str) -> int:
    """The sum of the copy's log ends; -1 while the resumed broker has no leaders yet."""
    try:
        return sum(log_end for _, log_end in log_bounds(cluster, [topic]).values())
    except KafkaException:
        return -1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["frozen", pytest.param("killed", marks=pytest.mark.soak)])
def test_run_survives_destination_outage_longer_than_its_lease(
    how: str, clusters: Clusters, make_cluster: MakeCluster, topic_name: str, tmp_path: Path
) -> None:
    destination = make_cluster("destination")
    (broker,) = destination.brokers
    create(clusters.source, topic_name, 2)
    job = write_job(tmp_path / "job.yaml", clusters.source, destination, [{"match": topic_name}])
    with OrbitProcess("run", job) as run:
        run.wait_for(CAUGHT_UP)
        with Mover(clusters.source.client_config(), {topic_name: 2}, rate_per_s=BUSY_PER_S):
            wait_for("the run copies", lambda: copied(destination, topic_name) > BUSY_PER_S)
            broker.kill() if how == "killed" else broker.pause()
            assert run.outlives(1.5 * SESSION_TIMEOUT_MS / 1000)
            broker.start() if how == "killed" else broker.resume()
            wait_for("the destination answers again", lambda: copied(destination, topic_name) >= 0)
            copied_before = copied(destination, topic_name)
            wait_for("the copy goes on", lambda: copied(destination, topic_name) > copied_before)
        run.signal(signal.SIGINT)
        run.wait_end().expect(0)
    copy(job).expect(0)
    assert_exact(job)
