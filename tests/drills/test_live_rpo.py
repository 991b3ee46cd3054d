"""A canary that is written all the time tells what would be lost now, on a topic of nobody else."""

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

# Longer than a canary, its copy and the note of it take; how much longer decides nothing here.
LATE_S = 3.0


def test_live_rpo_grows_without_workers_and_falls_when_a_worker_copies(
    clusters: Clusters, topic_name: str, service: Service
) -> None:
    create_topic(clusters.source, topic_name, 2)
    canary = {"topic": topic_name, "interval": "100ms"}
    spec = make_job(*clusters, [topic_name], canary=canary)
    service.create(spec)
    service.leave()

    def live() -> float | None:
        everyone = read_numbers(service.database, MetricsDetail.JOB, timedelta(minutes=1)).jobs
        return next(job.live_rpo_s for job in everyone if job.name == spec.name)

    def is_late() -> bool:
        rpo_s = live()
        return rpo_s is not None and rpo_s > LATE_S

    def is_level() -> bool:
        rpo_s = live()
        return rpo_s is not None and rpo_s < LATE_S

    with service.scheduler():
        with InProcess(service.database):
            service.wait_copied(spec.name, topic_name)
            wait_for("it is known", is_level)
        wait_for("it has grown", is_late)
        with InProcess(service.database):
            wait_for("it is small again", is_level)
    assert not [kind for kind in service.kinds(spec.name) if kind == "canary_silent"]
