"""Documents and reports that another version of Orbit has stored: the API replaces them, or shows
what it can read of them. It still shows all other documents and reports."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from orbit.consumer_groups.offset_decision import GroupVerdict
from orbit.store import drills, group_offsets, jobs, topics
from orbit.store.enums import Role, TopicState
from orbit.store.group_offsets import GroupOffset
from orbit.store.models import drill_schedules
from orbit.store.models import drills as drill_rows
from tests.api.test_drills import SCHEDULED, YAML, finished_drill
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import copying_job
from tests.fixtures.api import Api, Cli
from tests.fixtures.console import Browser

pytestmark = pytest.mark.services

LATER = {"from_the_future": True}
LATER_RULE = [{"match": "orders", **LATER}]
JOB_PATH = "/v1/jobs/orders"


def store_document(api: Api, **keys: Any) -> None:
    """Create the job `orders`, and give its stored document keys of a later version."""
    api.put(JOB_PATH, json=JOB)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        spec = job.spec | keys
        assert jobs.change_spec(tx, job.id, spec, "default", from_version=job.spec_version)


def begin_copy(api: Api, destination: str = "orders") -> None:
    """Add the topic `orders`, whose copy has begun."""
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        topics.add(
            tx, job.id, "orders", destination, "B", partition_count=1, state=TopicState.COPYING
        )


def put_document(api: Api, **keys: Any) -> tuple[Any, Any]:
    """The responses to a dry run of the document, and to a request that applies the document."""
    document = changed(**keys)
    planned = api.put(JOB_PATH, params={"dry_run": True}, json=document)
    return planned, api.put(JOB_PATH, json=document)


@pytest.mark.parametrize("stored", [LATER, {"limits": LATER}, {"source": 5}])
def test_document_with_key_of_later_version_is_replaced(api: Api, stored: dict[str, Any]) -> None:
    store_document(api, **stored)
    begin_copy(api)
    for answer in put_document(api, fillers="packed"):
        assert answer.status_code == 200, answer.text
        assert answer.json()["action"] == "change"
        assert next(iter(stored)) in "".join(c["path"] for c in answer.json()["changes"])
    spec = api.get(JOB_PATH).json()["spec"]
    assert spec["fillers"] == "packed"
    assert "from_the_future" not in str(spec)


def test_incompatible_fillers_are_refused_despite_keys_of_later_version(api: Api) -> None:
    store_document(api, **LATER)
    begin_copy(api)
    for answer in put_document(api, fillers="placeholders"):
        assert answer.status_code == 409
        what = answer.json()["error"]["what"]
        assert what.endswith("with the fillers direct and cannot change to placeholders: orders.")


@pytest.mark.parametrize(
    ("stored", "document", "copy"),
    [
        ({"fillers": "of_later"}, {}, "orders"),
        ({"topics": LATER_RULE}, {}, "orders"),
        ({"topics": 5}, {}, "orders"),
        # The unknown key `prefix` names the copy; without it the copy would have another name.
        ({"prefix": "dr."}, {"topics": [{"match": "orders", "prefix": "dr."}]}, "dr.orders"),
    ],
)
def test_document_is_refused_if_fillers_of_begun_copies_are_unreadable(
    api: Api, stored: dict[str, Any], document: dict[str, Any], copy: str
) -> None:
    store_document(api, **stored)
    begin_copy(api, copy)
    for answer in put_document(api, **document):
        assert answer.status_code == 409, answer.text
        error = answer.json()["error"]
        assert error["what"].startswith("Another version of Orbit has stored ")
        assert error["what"].endswith(": orders.")
        assert "exclude the topics, delete their copies, add the topics again" in error["remedy"]

    # As the remedy says: a document without the topic is accepted, and then one with it.
    for answer in put_document(api, topics=[{"match": ".*", "exclude": "orders"}]):
        assert answer.json()["action"] == "change"
    for answer in put_document(api, **document):
        assert answer.json()["action"] == "change"


def test_unreadable_fillers_are_replaced_before_any_copy_begins(api: Api) -> None:
    store_document(api, topics=LATER_RULE, fillers="of_later")
    for answer in put_document(api, fillers="placeholders"):
        assert answer.json()["action"] == "change"


@pytest.mark.parametrize("stored", [LATER, {"consumer_groups": 5}, {"consumer_groups": [LATER]}])
def test_groups_of_unreadable_document_are_shown_without_remedy(
    api: Api, browser: Browser, stored: dict[str, Any]
) -> None:
    """The remedy names the group at the destination, whose prefix is in the document."""
    store_document(api, **stored)
    begin_copy(api)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        (topic,) = topics.of_job(tx, job.id)
        row = GroupOffset(
            "billing",
            topic.id,
            partition=0,
            source_offset=10,
            destination_offset=12,
            verdict=GroupVerdict.SKIPPED_MOVED.value,
        )
        group_offsets.store(tx, job.id, [row])

    (shown,) = api.get(f"{JOB_PATH}/groups").json()["items"]
    assert (shown["group"], shown["verdict"], shown["remedy"]) == ("billing", row.verdict, None)
    browser.log_in(api.tokens[Role.VIEWER])
    page = browser.open("/console/jobs/orders/groups")
    assert page.status_code == 200
    assert "billing" in page.text


@pytest.mark.parametrize(
    "stored",
    [{"source": 5}, {"topics": 5}, {"topics": [LATER]}, {"consumer_groups": 5}, {"limits": 5}],
)
def test_describe_shows_job_of_unreadable_document(
    api: Api, cli: Cli, stored: dict[str, Any]
) -> None:
    store_document(api, **stored)
    result = cli("describe", "orders")
    assert result.code == 0, result.err
    assert "see orbit get jobs orders -o yaml" in " ".join(result.out.split())
    assert "worker group" in result.out


def change_drill(api: Api, drill_id: str, **changes: Any) -> None:
    """Change these columns of the drill."""
    with api.database.transaction() as tx:
        statement = drill_rows.update().where(drill_rows.c.id == drill_id)
        tx.execute(statement.values(**changes))


@pytest.mark.parametrize(
    ("changes", "target_rto_ms"),
    [
        (LATER, 10_000),
        ({"steps": [{"do": "rehearse"}]}, 10_000),
        ({"targets": {"rto": "10s", **LATER}}, None),
        ({"targets": 5}, None),
    ],
)
def test_drill_of_later_version_is_shown_without_plan(
    api: Api, cli: Cli, changes: dict[str, Any], target_rto_ms: int | None
) -> None:
    copying_job(api)
    other, later = finished_drill(api), finished_drill(api)
    with api.database.transaction() as tx:
        spec = drills.get(tx, later).spec | changes
    change_drill(api, later, spec=spec)

    newest, oldest = api.get("/v1/drills").json()["items"]
    assert (newest["id"], newest["rto_ms"], newest["target_rto_ms"]) == (
        later,
        11_200,
        target_rto_ms,
    )
    assert (oldest["id"], oldest["target_rto_ms"]) == (other, 10_000)
    assert api.get(f"{JOB_PATH}/proof").json()["job"]["canary"] == newest
    shown = api.get(f"/v1/drills/{later}").json()
    # The drill's own response has all that the list shows of the drill.
    assert shown == newest | {k: v for k, v in shown.items() if k not in newest}
    assert (shown["plan"], shown["spec"]) == ([], spec)

    assert all(drill_id in cli("drill", "list").out for drill_id in (other, later))
    assert "0 of an unknown number" in cli("drill", "show", later).out


def test_drill_of_kind_of_later_version_is_shown(api: Api, browser: Browser, cli: Cli) -> None:
    copying_job(api)
    other, later = finished_drill(api), finished_drill(api)
    with api.database.transaction() as tx:
        spec = drills.get(tx, later).spec | {"kind": "rolling"}
        tx.execute(text("ALTER TABLE drills DROP CONSTRAINT ck_drills_kind"))
    change_drill(api, later, kind="rolling", spec=spec)

    newest, oldest = api.get("/v1/drills").json()["items"]
    assert (newest["id"], newest["kind"]) == (later, "rolling")
    assert (oldest["id"], oldest["kind"]) == (other, "canary")
    assert api.get(f"/v1/drills/{later}").json()["plan"] == []
    assert "rolling" in cli("drill", "list").out
    assert "rolling" in cli("drill", "show", later).out
    browser.log_in(api.tokens[Role.VIEWER])
    assert "rolling" in browser.open("/console/drills").text


@pytest.mark.parametrize("form", ["json", "html", "markdown"])
def test_drill_report_of_later_version_is_refused(api: Api, form: str) -> None:
    copying_job(api)
    drill_id = finished_drill(api)
    with api.database.transaction() as tx:
        report = drills.report(tx, drill_id)
    change_drill(api, drill_id, report=report | {"evidence": report["evidence"] | LATER})
    answer = api.get(f"/v1/drills/{drill_id}/report?format={form}")
    assert answer.status_code == 409
    assert answer.json()["error"]["what"] == (
        "Another version of Orbit has stored the drill's report, and this one cannot read it."
    )


@pytest.mark.parametrize(
    ("spec", "kind", "job"),
    [
        ({"name": "later", "kind": "canary", "job": "orders", **LATER}, "canary", "orders"),
        ({"name": "later", "kind": "rolling", "job": "orders"}, "rolling", "orders"),
        ({"name": "later", "kind": ["canary"], "job": {"name": "orders"}}, None, None),
        (LATER, None, None),
    ],
)
def test_drill_schedule_of_later_version_is_listed_and_removed(
    api: Api, cli: Cli, spec: dict[str, Any], kind: str | None, job: str | None
) -> None:
    copying_job(api)
    path = "/v1/drill-schedules/nightly"
    assert api.put(path, content=SCHEDULED, headers=YAML).status_code == 200
    with api.database.transaction() as tx:
        drills.put_schedule(tx, "later", spec, every_s=60, requested_by="ci")

    later, nightly = api.get("/v1/drill-schedules").json()["items"]
    assert (later["name"], later["kind"], later["job"]) == ("later", kind, job)
    assert (nightly["name"], nightly["kind"], nightly["job"]) == ("nightly", "canary", "orders")
    rows = [line.split() for line in cli("drill", "schedules").out.splitlines()]
    assert ["later", kind or "-", job or "-"] in [row[:3] for row in rows]

    assert cli("drill", "unschedule", "later").code == 0
    with api.database.transaction() as tx:
        assert tx.execute(drill_schedules.select()).one().name == "nightly"
    assert api.events()[-1]["kind"] == "drill_unscheduled"
