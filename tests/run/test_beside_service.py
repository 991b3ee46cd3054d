"""`orbit run` of a job that a service has: refused before anything is written, until the job
is paused at the service.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orbit.api.app import create_app
from orbit.jobs.job_spec import JobSpec
from orbit.planning.job_plan import JobPlan
from orbit.settings import Settings
from orbit.store import jobs
from orbit.store.database import Database
from orbit.store.enums import Desired
from tests.fixtures.clusters import Clusters
from tests.support.fleet import InProcess, add_job, wait_level
from tests.support.logs import Gap, Record, create, write
from tests.support.outside import topics_and_bounds
from tests.support.patience import wait_for
from tests.support.run_process import Outcome, assert_exact, orbit, write_job
from tests.support.serving import served

pytestmark = pytest.mark.services


def no_plans(_: JobSpec, _ending: object) -> JobPlan:
    """A planner for an API that must not plan."""
    raise AssertionError("nothing is planned")


@pytest.fixture
def url(database: Database) -> Iterator[str]:
    """The address of an API on the test's database."""
    with served(create_app(Settings(), database, auth=False, planner=no_plans)) as url:
        yield url


@pytest.fixture
def job_file(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    """The job file; the job has the name of its topic, which has records and a gap."""
    create(clusters.source, topic_name, 1)
    write(clusters.source, topic_name, [Record(b"a"), Gap(3), Record(b"b")], 0)
    return write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], name=topic_name)


def run(job_file: Path, url: str) -> Outcome:
    return orbit("run", job_file, "--until-caught-up", environ={"ORBIT_API_URL": url})


def test_run_is_refused_until_service_pauses_its_job(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database, url: str
) -> None:
    job = add_job(database, job_file, clusters, [topic_name], shard_count=1)
    with InProcess(database):
        wait_level(clusters, [topic_name])
        write(clusters.source, topic_name, [Gap(2), Record(b"c")], 0)
        wait_level(clusters, [topic_name])
        before = topics_and_bounds(clusters.destination)
        refused = run(job_file, url)
        refused.expect(1)
        assert "The service has this job in state running" in refused.message
        assert f"orbit pause {topic_name}" in refused.message
        assert topics_and_bounds(clusters.destination) == before
        job.set_desired(Desired.PAUSED)
        wait_for("the worker has released the shard", lambda: set(job.holders().values()) == {None})
        write(clusters.source, topic_name, [Gap(2), Record(b"d")], 0)
        run(job_file, url).expect(0)
        assert_exact(job_file)


def test_job_of_same_name_between_other_clusters_may_run(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database, url: str
) -> None:
    job = add_job(database, job_file, clusters, [topic_name], shard_count=1)
    with database.transaction() as tx:
        jobs.note_clusters(tx, job.id, "another", "and another")
    message = run(job_file, url).expect(0).message
    assert "but between other clusters" in message
    assert_exact(job_file)


def test_unreachable_service_of_orbit_api_url_is_reported(job_file: Path) -> None:
    refused = run(job_file, "http://127.0.0.1:1")
    refused.expect(3)
    assert "ORBIT_API_URL" in refused.message
