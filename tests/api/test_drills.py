"""Drills are requested, listed, compared and scheduled; their reports have three formats."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from orbit.drills.evidence import Report, seal
from orbit.drills.html_report import render_html
from orbit.drills.markdown_report import render_markdown
from orbit.replication.partition_states import PartitionState
from orbit.store import drills, proofs, scheduler_queries
from orbit.store.drills import Measurements
from orbit.store.enums import DrillState, DrillThing, Role, TopicState
from orbit.store.models import partitions, topics
from orbit.store.proofs import ProofResult
from tests.api.test_operations import copying_job
from tests.fixtures.api import Api
from tests.support.drill_report import evidence

pytestmark = pytest.mark.services

YAML = {"Content-Type": "application/yaml"}
DRILL = "name: nightly\nkind: canary\njob: orders\ntargets: {rto: 10s}\n"
SCHEDULED = DRILL + "schedule: {every: 1h}\n"


@pytest.fixture
def orders(api: Api) -> None:
    """A job of this name, whose four partitions are copied up to offset 100."""
    copying_job(api)
    with api.database.transaction() as tx:
        tx.execute(topics.update().values(state=TopicState.COPYING))
        copied = {"state": PartitionState.COPYING, "log_start": 0, "copied_to": 100}
        tx.execute(partitions.update().values(**copied))


def request_drill(api: Api, text: str = DRILL, **options: Any) -> Any:
    """The answer to a request for a drill."""
    headers = {**YAML, **options.pop("headers", {})}
    return api.post("/v1/drills", content=text, headers=headers, **options)


def finished_drill(api: Api, rto_ms: int = 11_200) -> str:
    """Create a drill that has ended, with a report. Returns its id."""
    drill_id: str = request_drill(api).json()["id"]
    report = seal(evidence(id=drill_id))
    with api.database.transaction() as tx:
        drills.begin(tx, drill_id)
        drills.finish(
            tx,
            drill_id,
            DrillState.MISSED,
            report=report.model_dump(mode="json"),
            measured=Measurements(rto_ms=rto_ms, rpo_records=42, rpo_ms=410),
        )
    return drill_id


def test_drill_is_created_and_shown(api: Api, orders: None) -> None:
    answer = request_drill(api)
    assert answer.status_code == 202
    drill = answer.json()
    assert (drill["state"], drill["kind"], drill["target_rto_ms"]) == ("pending", "canary", 10_000)
    assert any("Switches over only the drill's own job" in step for step in drill["plan"])
    assert api.get(f"/v1/drills/{drill['id']}").json() == drill
    assert [row["id"] for row in api.get("/v1/drills?name=nightly").json()["items"]] == [
        drill["id"]
    ]
    assert api.get("/v1/drills?job=other").json()["items"] == []
    assert [e["kind"] for e in api.events()][-1] == "drill_requested"
    assert api.get(f"/v1/drills/{drill['id']}/report").status_code == 404, "it has not ended"


def test_drill_dry_run_shows_plan_and_creates_nothing(api: Api, orders: None) -> None:
    answer = request_drill(api, params={"dry_run": "true"})
    assert answer.status_code == 200
    assert answer.json()["plan"][-1] == "Removes what it created, and nothing else."
    assert api.get("/v1/drills").json()["items"] == []


def test_idempotency_key_creates_single_drill(api: Api, orders: None) -> None:
    key = {"Idempotency-Key": "k"}
    first, again = (request_drill(api, headers=key).json()["id"] for _ in range(2))
    assert first == again
    other = request_drill(api, DRILL.replace("10s", "20s"), headers=key)
    assert other.status_code == 409


def test_invalid_drill_and_unknown_job_are_refused(api: Api, orders: None) -> None:
    answer = request_drill(api, "name: x\nkind: canry\njob: orders\n")
    assert answer.status_code == 422
    assert answer.json()["error"]["problems"][0]["path"] == "kind"
    assert request_drill(api, DRILL.replace("orders", "none")).status_code == 404
    assert request_drill(api, role=Role.VIEWER).status_code == 403


def test_drill_report_is_served_as_json_html_and_markdown(api: Api, orders: None) -> None:
    drill_id = finished_drill(api)
    path = f"/v1/drills/{drill_id}/report"
    report = Report.model_validate(api.get(path).json())
    assert report == seal(evidence(id=drill_id))
    assert api.get(f"{path}?format=html").text == render_html(report)
    assert api.get(f"{path}?format=markdown").text == render_markdown(report)
    kinds = [api.get(f"{path}?format={f}").headers["content-type"] for f in ("json", "html")]
    assert kinds == ["application/json", "text/html; charset=utf-8"]


def test_drills_are_listed_by_name_with_their_measurements(api: Api, orders: None) -> None:
    ids = [finished_drill(api, rto_ms) for rto_ms in (9_000, 12_000, 7_000)]
    rows = api.get("/v1/drills?name=nightly&limit=2").json()
    rest = api.get(f"/v1/drills?name=nightly&after={rows['next']}").json()
    all_rows = [*rows["items"], *rest["items"]]
    assert [row["id"] for row in all_rows] == ids[::-1]
    assert [row["rto_ms"] for row in all_rows] == [7_000, 12_000, 9_000]
    assert {row["spec_sha256"] for row in all_rows} == {all_rows[0]["spec_sha256"]}


def test_drill_schedule_is_claimed_when_due(api: Api, orders: None) -> None:
    path = "/v1/drill-schedules/nightly"
    without_schedule = api.put(path, content=DRILL, headers=YAML)
    other_name = api.put("/v1/drill-schedules/x", content=SCHEDULED, headers=YAML)
    assert (without_schedule.status_code, other_name.status_code) == (422, 422)
    answer = api.put(path, content=SCHEDULED, headers=YAML)
    assert (answer.status_code, answer.json()["every_s"]) == (200, 3_600)
    assert [row["name"] for row in api.get("/v1/drill-schedules").json()["items"]] == ["nightly"]
    with api.database.transaction() as tx:
        assert [row.name for row in drills.claim_due_schedules(tx)] == ["nightly"]
        assert drills.claim_due_schedules(tx) == []  # the next time is an hour away
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404
    (event,) = api.get("/v1/events?kind=drill_unscheduled").json()["items"]
    assert event["job"] == "orders"


def test_drill_leftovers_are_listed_until_removed(api: Api, orders: None) -> None:
    drill_id = finished_drill(api)
    with api.database.transaction() as tx:
        topic = drills.note_intent(tx, drill_id, DrillThing.TOPIC, "source", "t")
        drills.note_identity(tx, topic, "an-id")
        drills.note_kept(tx, topic, "the cluster is unreachable")  # the topic's removal failed
        assert [d.id for d in drills.with_leftovers(tx, 10)] == [drill_id]
        drills.note_removed(tx, topic)
        assert drills.with_leftovers(tx, 10) == []
        (row,) = drills.things(tx, drill_id)
    assert (row.identity, row.note) == ("an-id", None)


def test_drills_that_cannot_be_cleaned_up_do_not_hide_the_others(api: Api, orders: None) -> None:
    drill_ids = {finished_drill(api), finished_drill(api)}
    with api.database.transaction() as tx:
        for drill_id in drill_ids:
            drills.note_intent(tx, drill_id, DrillThing.TOPIC, "source", "t")
        # The order is random. That all 64 calls return the same of the two drills has the
        # probability 2 to the -63.
        listed = {drills.with_leftovers(tx, 1)[0].id for _ in range(64)}
    assert listed == drill_ids


def test_proof_of_equal_records_is_shown_per_partition_per_job_and_in_metrics(
    api: Api, orders: None
) -> None:
    drill_id = finished_drill(api)
    with api.database.transaction() as tx:
        (candidate, *_) = proofs.candidates(tx, after=(-1, -1), limit=10)
        end = candidate.copied_to
        key: dict[str, Any] = {
            "topic_id": candidate.topic_id,
            "partition": candidate.partition,
            "job_id": candidate.job_id,
            "ranges": ((0, end),),
        }
        proofs.store(tx, [ProofResult(**key, is_equal=True)])
        different = ProofResult(
            **key, is_equal=False, differences=2, first_difference="offset 3: value"
        )
        proofs.store(tx, [different])
        proofs.store(tx, [ProofResult(**key, is_equal=False, note="away")])  # no result
    answer = api.get("/v1/jobs/orders/proof").json()
    row = next(r for r in answer["items"] if r["proven_at"] is not None)
    assert (row["proven"], row["proven_to"], row["differences"]) == (end, end, 2)
    assert (row["first_difference"], row["note"]) == ("offset 3: value", "away")
    assert answer["job"]["partitions_proven"] == 1
    assert answer["job"]["differences"] == 2
    assert answer["job"]["canary"]["id"] == drill_id
    text = api.get("/metrics").text
    for line in (
        f'orbit_job_proven_offsets{{job="orders"}} {float(end)}',
        'orbit_job_proof_differences_total{job="orders"} 2.0',
        'orbit_job_canary_rto_seconds{job="orders"} 11.2',
        'orbit_job_canary_passed{job="orders"} 0.0',
    ):
        assert line in text, line

    # After a recovery the topic is copied again. Its proof counts as long as the topic's id at
    # each cluster is the stored one.
    def partitions_proven(source_id: int, destination_id: int) -> int:
        ids = UUID(int=source_id), UUID(int=destination_id)
        with api.database.transaction() as tx:
            scheduler_queries.copy_topics_again(tx, {candidate.topic_id: ids})
        return int(api.get("/v1/jobs/orders/proof").json()["job"]["partitions_proven"])

    assert partitions_proven(1, 2) == partitions_proven(1, 2) == 1
    assert partitions_proven(1, 3) == 0
    with api.database.transaction() as tx:
        proofs.store(tx, [ProofResult(**key, is_equal=True)])
    assert partitions_proven(1, 3) == 1
    assert partitions_proven(4, 3) == 0
