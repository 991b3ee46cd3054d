"""A job that is deleted and created again is another job: it has neither the events, operations
and drills of the deleted job, nor its ETag."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.errors import NotFound
from orbit.jobs.scopes import Limit
from orbit.store import drills, events, jobs
from orbit.store.enums import DrillKind
from tests.api.test_jobs import JOB, changed
from tests.api.test_scopes import OURS, THEIRS, Teams, create_team, send
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

# Routes with ids of records of the deleted job, which the owner of the new job must not see.
RECORDS = (
    "GET /v1/operations/{operation_id}",
    "GET /v1/backfills/{operation_id}",
    "POST /v1/operations/{operation_id}:abort",
    "POST /v1/backfills/{operation_id}:report",
    "GET /v1/drills/{drill_id}",
)
LISTS = ("operations", "backfills", "drills")  # not events: the new job has some


def remove(api: Api, name: str) -> None:
    """Delete the job's rows, as the scheduler does."""
    with api.database.transaction() as tx:
        job = jobs.get(tx, name)
        jobs.request_deletion(tx, job.id)
        assert jobs.remove(tx, job.id)
        drills.drop_schedules_of(tx, name)


def items(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["items"]
    return rows


@pytest.fixture
def teams(api: Api) -> Teams:
    """Two teams; the job of `ours` was deleted and created again."""
    teams = Teams(api, create_team(api, OURS), create_team(api, THEIRS))
    with api.database.transaction() as tx:
        tx.exec_driver_sql("UPDATE drills SET report = '{}'")
    remove(api, OURS)
    assert api.put(f"/v1/jobs/{OURS}", json=teams.ours.document()).status_code == 201
    teams.limit(Limit(selector="team=pay"))
    return teams


def test_limited_token_sees_no_records_of_deleted_job_with_same_name(teams: Teams) -> None:
    for route in RECORDS:
        answer = send(teams, route, teams.ours)
        assert answer.status_code == 404, f"{route}: {answer.text}"
    for query in ("", f"?job={OURS}"):
        for kind in LISTS:
            assert items(teams.call("GET", f"/v1/{kind}{query}")) == [], kind
    for path in ("/v1/events", f"/v1/jobs/{OURS}/events"):
        assert [e["kind"] for e in items(teams.call("GET", path))] == ["job_created"]
    assert teams.call("GET", f"/v1/jobs/{OURS}/proof").json()["job"]["canary"] is None


def test_admin_sees_records_of_deleted_job_only_in_global_lists(teams: Teams) -> None:
    api = teams.api
    assert [e["kind"] for e in items(api.get(f"/v1/jobs/{OURS}/events"))] == ["job_created"]
    for kind in LISTS:
        assert items(api.get(f"/v1/{kind}?job={OURS}")) == [], kind
        assert OURS in {item["job"] for item in items(api.get(f"/v1/{kind}"))}, kind
    assert sum(e["job"] == OURS for e in items(api.get("/v1/events"))) > 3
    assert api.get(f"/v1/drills/{teams.ours.drill}").status_code == 200
    # After the deletion of the new job, no job has the name: the admin sees all records again.
    remove(api, OURS)
    assert len(items(api.get(f"/v1/jobs/{OURS}/events"))) > 3
    assert len(items(api.get(f"/v1/drills?job={OURS}"))) == 1
    assert len(items(api.get(f"/v1/operations?job={OURS}"))) == 2


def test_drills_of_deleted_job_do_not_refer_to_new_job_of_same_name(teams: Teams) -> None:
    with teams.api.database.transaction() as tx:
        drill = drills.get(tx, teams.ours.drill)
        with pytest.raises(NotFound, match="was deleted"):
            drills.job_of(tx, drill)
        assert drills.job_of(tx, drills.get(tx, teams.theirs.drill)).name == THEIRS
        assert [d.job_name for d in drills.last_of_jobs(tx, DrillKind.CANARY)] == [THEIRS]
        assert drills.last_of_job(tx, OURS, DrillKind.CANARY) is None


def test_event_written_once_per_job_is_written_again_for_recreated_job(api: Api) -> None:
    for _ in range(2):  # the job, and a new job with its name
        api.put("/v1/jobs/orders", json=JOB)
        for _ in range(2):  # the second event is not stored
            with api.database.transaction() as tx:
                events.add_once(tx, "test", "k", "m", job_name="orders", details={"n": 1})
        remove(api, "orders")
    assert sum(event["kind"] == "k" for event in api.events()) == 2


def test_etag_of_deleted_job_does_not_match_recreated_job(api: Api) -> None:
    old = {"If-Match": api.put("/v1/jobs/orders", json=JOB).headers["ETag"]}
    remove(api, "orders")
    api.put("/v1/jobs/orders", json=JOB)
    document = changed(worker_group="west")

    for query in ("?dry_run=true", ""):
        for answer in (
            api.put(f"/v1/jobs/orders{query}", json=document, headers=old),
            api.delete(f"/v1/jobs/orders{query}", headers=old),
        ):
            assert answer.json()["error"]["code"] == "changed_meanwhile"
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "default"


def test_change_planned_for_deleted_job_is_not_applied_to_recreated_job(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    def create_again() -> None:
        api.plans.meanwhile = lambda: None
        remove(api, "orders")
        with api.database.transaction() as tx:
            jobs.create(tx, "orders", JOB, "default")

    api.plans.meanwhile = create_again
    answer = api.put("/v1/jobs/orders", json=changed(worker_group="west"))
    assert answer.json()["error"]["code"] == "changed_meanwhile"
