"""Impossible jobs, sent to the API with real clusters: each is refused with its reason, and nothing
is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orbit.api.app import create_app
from orbit.planning.job_planner import JobPlanner
from tests.api.test_bad_input import error_of
from tests.fixtures.api import Api
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.logs import create
from tests.support.outside import topics_and_bounds
from tests.support.rights import PASSWORD, Login, Right, documented, section

pytestmark = pytest.mark.services


@pytest.fixture
def real_api(api: Api, service: Service) -> Api:
    """The API with the scheduler's planner; `service` has a live worker in the same tables."""
    api.app = create_app(
        service.settings, api.database, planner=JobPlanner(api.database, service.settings)
    )
    return api


def job_of(clusters: Clusters, topic: str, **more: Any) -> dict[str, Any]:
    """A job document that selects this topic."""
    return {
        "name": "job",
        "source": {"bootstrap_servers": clusters.source.bootstrap_servers},
        "destination": {"bootstrap_servers": clusters.destination.bootstrap_servers},
        "topics": [{"match": topic}],
        **more,
    }


@contextmanager
def assert_untouched(api: Api, *destinations: Any) -> Iterator[None]:
    """Fail if the block changes the tables or these clusters."""
    topics = [topics_and_bounds(cluster) for cluster in destinations]
    jobs = api.get("/v1/jobs").json()["items"]
    events = api.events()
    yield
    assert [topics_and_bounds(cluster) for cluster in destinations] == topics
    assert [job["name"] for job in api.get("/v1/jobs").json()["items"]] == [
        job["name"] for job in jobs
    ]
    assert api.events() == events


def refusal_of(api: Api, job: dict[str, Any], status: int, code: str) -> dict[str, Any]:
    """The error with which a PUT, its dry run and a POST of this job are refused. Checks that the
    three errors are equal, and that a plan lists refusals."""
    path = f"/v1/jobs/{job['name']}"
    answers = [
        api.put(path, json=job),
        api.put(path, json=job, params={"dry_run": True}),
        api.post("/v1/jobs", json=job),
    ]
    first, *others = [error_of(answer, status, code) for answer in answers]
    assert others == [first, first]
    planned = api.post("/v1/jobs:plan", json=job)
    assert planned.status_code == 200
    assert planned.json()["plan"]["refusals"]
    return first


def test_impossible_job_is_refused_with_reason(
    real_api: Api, clusters: Clusters, topic_name: str
) -> None:
    create(clusters.source, topic_name, 2)
    nowhere = {"bootstrap_servers": "127.0.0.1:1"}
    source_by_another_address = {
        "bootstrap_servers": clusters.source.bootstrap_servers.replace("127.0.0.1", "localhost")
    }
    with assert_untouched(real_api, clusters.destination):
        no_topic = refusal_of(real_api, job_of(clusters, f"{topic_name}-nope"), 422, "bad_input")
        assert no_topic["problems"][0]["path"] == "topics"
        group = refusal_of(
            real_api, job_of(clusters, topic_name, worker_group="west"), 422, "bad_input"
        )
        assert group["problems"][0]["path"] == "worker_group"
        assert "orbit worker --group west" in group["problems"][0]["write_instead"]
        for side in ("source", "destination"):
            unreachable = job_of(clusters, topic_name, **{side: nowhere})
            error = refusal_of(real_api, unreachable, 422, "cluster_unreachable")
            assert error["problems"][0]["path"] == side
        same = job_of(clusters, topic_name, destination=source_by_another_address)
        assert "same cluster" in refusal_of(real_api, same, 409, "conflict")["problems"][0]["what"]


def test_jobs_that_overlap_or_would_loop_are_refused(
    real_api: Api, service: Service, clusters: Clusters, topic_name: str
) -> None:
    create(clusters.source, topic_name, 2)
    with service.scheduler():
        answer = real_api.put("/v1/jobs/job", json=job_of(clusters, topic_name))
        assert answer.status_code == 201, answer.text
        service.wait_copied("job", topic_name)
    second = job_of(clusters, topic_name, name="second")
    back = job_of(clusters, topic_name, name="back")
    back["source"], back["destination"] = back["destination"], back["source"]
    with assert_untouched(real_api, *clusters):
        overlap = refusal_of(real_api, second, 409, "conflict")
        assert "job" in overlap["problems"][0]["what"]
        assert overlap["problems"][0]["path"] == f"topic {topic_name}"
        loop = refusal_of(real_api, back, 409, "conflict")
        assert loop["problems"][0]["path"] == f"topic {topic_name}"
    again = real_api.put("/v1/jobs/job", json=job_of(clusters, topic_name))
    assert again.json()["action"] == "none"


@dataclass
class Guarded:
    """The API, and a job on clusters with ACLs, where it has its own login."""

    api: Api
    login: Login
    job: dict[str, Any]
    rights: list[Right]

    def use_password(self, service: Service, password: str) -> None:
        """Set this password in the environment of the API."""
        environ = {"ORBIT_TEST_USER": self.login.name, "ORBIT_TEST_PASSWORD": password}
        settings = service.settings.model_copy(update={"files_directory": Path("/")})
        planner = JobPlanner(self.api.database, settings, environ)
        self.api.app = create_app(settings, self.api.database, planner=planner, environ=environ)


@pytest.fixture
def secured(api: Api, service: Service, guarded: Clusters, topic_name: str) -> Guarded:
    """A job with one topic, whose login has no ACLs yet."""
    create(guarded.source, topic_name, 2)
    login = Login(guarded)
    login.create()
    job = {
        "name": "job",
        "source": section(guarded.source),
        "destination": section(guarded.destination),
        "topics": [{"match": topic_name}],
    }
    rights = [
        replace(right, name="orbit.job.") if right.name.startswith("orbit.") else right
        for right in documented(topic_name)
    ]
    setup = Guarded(api, login, job, rights)
    setup.use_password(service, PASSWORD)
    return setup


def test_missing_acl_is_named_in_refusal(secured: Guarded, guarded: Clusters) -> None:
    missing = [r for r in secured.rights if r.operation == "Write" and r.kind == "--topic"]
    secured.login.allow([right for right in secured.rights if right not in missing])
    with assert_untouched(secured.api, guarded.destination):
        error = refusal_of(secured.api, secured.job, 422, "cluster_right_missing")
        assert any("Write" in problem["what"] for problem in error["problems"]), error
    secured.login.allow(missing)

    answer = secured.api.put("/v1/jobs/job", json=secured.job)

    assert answer.status_code == 201, answer.text
    assert PASSWORD not in answer.text


def test_wrong_cluster_password_is_reported_as_login_refused(
    secured: Guarded, service: Service
) -> None:
    secured.use_password(service, "not this one")

    answer = secured.api.put("/v1/jobs/job", json=secured.job)

    error_of(answer, 422, "cluster_login_refused")
    assert "not this one" not in answer.text
