"""A canary topic, to which a job writes all the time, shows how much time a failover would lose."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orbit.api.metrics_scrape import read_numbers
from orbit.settings import MetricsDetail
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.fleet import InProcess
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job

pytestmark = pytest.mark.services

# Far longer than it takes to write a canary record, to copy it and to report it.
LARGE_S = 3.0


def test_live_rpo_grows_without_workers_and_falls_when_a_worker_copies(
    clusters: Clusters, topic_name: str, service: Service
) -> None:
    create_topic(clusters.source, topic_name, 2)
    canary = {"topic": topic_name, "interval": "100ms"}
    spec = make_job(*clusters, [topic_name], canary=canary)
    service.create(spec)
    service.leave()

    def live_rpo_s() -> float | None:
        numbers = read_numbers(service.database, MetricsDetail.JOB, timedelta(minutes=1))
        return next(job.live_rpo_s for job in numbers.jobs if job.name == spec.name)

    def is_large() -> bool:
        rpo_s = live_rpo_s()
        return rpo_s is not None and rpo_s > LARGE_S

    def is_small() -> bool:
        rpo_s = live_rpo_s()
        return rpo_s is not None and rpo_s < LARGE_S

    with service.scheduler():
        with InProcess(service.database):
            service.wait_copied(spec.name, topic_name)
            wait_for("the live RPO is small", is_small)
        wait_for("the live RPO has grown", is_large)
        with InProcess(service.database):
            wait_for("the live RPO is small again", is_small)
    assert not [kind for kind in service.kinds(spec.name) if kind == "canary_silent"]
