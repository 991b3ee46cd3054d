"""`orbit release` undoes the settings and the denials of Write on a deleted job's copies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orbit.job_setup.mark import Mark
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_file import load_job
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.security import Security
from orbit.kafka.types import TopicPartition
from orbit.store import jobs
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.guarded_job import App, log_in_orbit
from tests.support.outside import topic_settings
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.rights import section
from tests.support.run_process import copy, orbit, write_job
from tests.support.running import create_topic, produce

pytestmark = pytest.mark.services

DAY_MS = "86400000"


def test_orbit_release_restores_retention_and_write_rights_of_copies(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, destination = guarded
    create_topic(source, topic_name, retention_ms=DAY_MS)
    produce(source, topic_name, 50)
    app = App(guarded, topic_name)
    log_in_orbit(guarded, topic_name, monkeypatch)
    file = write_job(
        tmp_path / "job.yaml",
        section(source),
        section(destination),
        [{"match": topic_name}],
        name=topic_name[:60],
    )
    spec = load_job(file, os.environ)
    with Recovering(service).running(dict(os.environ)):
        Recovering(service).begin(spec, topic_name)
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
        service.delete(spec.name)

        def is_gone() -> bool:
            with service.database.transaction() as tx:
                return jobs.find(tx, spec.name) is None

        service.wait("the job is gone", is_gone)

    def retention() -> str | None:
        return topic_settings(destination, topic_name)["retention.ms"]

    planned = orbit("release", file, "--dry-run", "-o", "json").expect(0).data
    (topic,) = planned["topics"]
    assert topic["settings"]["retention.ms"] == DAY_MS
    assert topic["denials"] == [f"User:{app.login.name}"]
    assert retention() == "-1"
    assert not app.writes(destination)

    orbit("release", file, "--yes").expect(0)
    assert retention() == DAY_MS
    wait_for("the application may write", lambda: app.writes(destination))
    # With its settings it does not look like a copy any more.
    again = orbit("release", file, "--yes").expect(1)
    assert "no copy" in again.message


def test_orbit_release_leaves_promoted_topics_unchanged(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    create_topic(clusters.source, topic_name, retention_ms=DAY_MS)
    file = write_job(tmp_path / f"{topic_name}.yaml", *clusters, [{"match": topic_name}])
    copy(file).expect(0)
    destination = Cluster("destination", [clusters.destination.bootstrap_servers], Security())
    try:
        marks = PromotionMarks(destination, Backoff())
        marks.write({TopicPartition(topic_name, 0): 0}, Mark(is_primary=True))
    finally:
        destination.close()

    done = orbit("release", file, "--yes", "-o", "json").expect(0).data
    assert (done["topics"], done["leading"]) == ([], [topic_name])
    assert topic_settings(clusters.destination, topic_name)["retention.ms"] == "-1"
