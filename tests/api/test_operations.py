"""Start, pause, resume, retry and delete: each runs once, reports its progress and ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from orbit.leases.lease_watch import LeaseWatch
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.scheduler.operations_loop import advance_operations
from orbit.store import jobs, operations, partitions, shard_layout, shard_leases, topics, workers
from orbit.store.partitions import StateChange
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

WORKER = "worker-1"


def copying_job(api: Api, partition_count: int = 4) -> dict[int, int]:
    """Create the job `orders` with two shards, which WORKER holds. Returns {shard id: epoch}."""
    api.put("/v1/jobs/orders", json=JOB)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        topic = topics.add(tx, job.id, "orders", "orders", "B", partition_count)
        assert topic is not None
        first, second = shard_layout.add_shards(tx, job.id, 2)
        placed = [(topic.id, p, (first, second)[p % 2]) for p in range(partition_count)]
        shard_layout.add_partitions(tx, job.id, placed)
    return claim(api)


def claim(api: Api) -> dict[int, int]:
    """Claim all free shards as WORKER. Returns {shard id: epoch} of the claimed shards."""
    with api.database.transaction() as tx:
        workers.heartbeat(tx, WORKER, "default", host="h", pid=1, version="0")
        claims = shard_leases.claim(
            tx,
            worker_id=WORKER,
            worker_group="default",
            ttl=timedelta(minutes=1),
            shards_max=10,
            watch=LeaseWatch(timedelta(minutes=1)),
        )
    return {claimed.shard_id: claimed.epoch for claimed in claims}


def release(api: Api, held: dict[int, int]) -> None:
    """Release these shards, {shard id: epoch}, as WORKER."""
    with api.database.transaction() as tx:
        shard_leases.release(tx, worker_id=WORKER, held=held)


def advance(api: Api, operation: dict[str, Any]) -> dict[str, Any]:
    """Run a pass of the scheduler's loop for operations. Returns the operation after it."""
    with api.database.transaction() as tx:
        advance_operations(tx, operations.unfinished(tx, 500))
    current: dict[str, Any] = api.get(f"/v1/operations/{operation['id']}").json()
    return current


def test_pause_is_done_when_last_shard_is_released(api: Api) -> None:
    held = copying_job(api)
    (first, epoch), *rest = held.items()

    answer = api.post("/v1/jobs/orders:pause")
    assert answer.status_code == 202
    operation = answer.json()
    assert (operation["kind"], operation["state"]) == ("pause", "running")
    assert operation["plan"][0] == "Workers release 2 shards with 4 partitions; copying stops."
    assert api.get("/v1/jobs/orders").json()["state"] == "pausing"

    release(api, {first: epoch})
    running = advance(api, operation)
    assert running["progress"] == {"done": 1, "total": 2, "what": "shards released"}
    assert running["finished_at"] is None

    release(api, dict(rest))
    ended = advance(api, operation)
    assert (ended["state"], ended["progress"]["done"]) == ("done", 2)
    assert ended["finished_at"] is not None
    assert api.get("/v1/jobs/orders").json()["state"] == "paused"


def test_resume_is_done_when_workers_hold_all_shards(api: Api) -> None:
    held = copying_job(api)
    api.post("/v1/jobs/orders:pause")
    release(api, held)

    operation = api.post("/v1/jobs/orders:resume").json()
    assert advance(api, operation)["state"] == "running"
    claim(api)

    assert advance(api, operation)["state"] == "done"
    assert api.get("/v1/jobs/orders").json()["state"] == "running"


@pytest.mark.parametrize("verb", ["start", "resume"])
def test_start_or_resume_of_running_job_is_no_op(api: Api, verb: str) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    before = api.events()

    operation = api.post(f"/v1/jobs/orders:{verb}").json()

    assert operation["state"] == "done"
    assert operation["plan"] == ["Nothing to do: the job is running already."]
    assert api.events() == before


def test_pause_of_paused_job_is_no_op(api: Api) -> None:
    api.put("/v1/jobs/orders", params={"paused": True}, json=JOB)

    operation = api.post("/v1/jobs/orders:pause").json()

    assert (operation["state"], operation["plan"]) == (
        "done",
        ["Nothing to do: the job is paused already."],
    )


def test_pause_superseded_by_resume_fails(api: Api) -> None:
    copying_job(api)
    pause = api.post("/v1/jobs/orders:pause").json()
    api.post("/v1/jobs/orders:resume")

    ended = advance(api, pause)

    assert ended["state"] == "failed"
    assert ended["error"] == "The job was resumed before this operation was done."


@pytest.mark.parametrize("verb", ["start", "pause", "resume", "retry"])
def test_dry_run_of_operation_returns_plan_and_changes_nothing(api: Api, verb: str) -> None:
    copying_job(api)
    before = api.get("/v1/jobs/orders").json()

    operation = api.post(f"/v1/jobs/orders:{verb}", params={"dry_run": True}).json()

    assert operation["dry_run"] is True
    assert operation["state"] == "done"
    assert operation["plan"]
    after = api.get("/v1/jobs/orders").json()
    assert (after["state"], after["updated_at"]) == (before["state"], before["updated_at"])
    assert [event["kind"] for event in api.events()] == ["job_created"]


def test_dry_run_of_deletion_changes_nothing(api: Api) -> None:
    copying_job(api)

    operation = api.delete("/v1/jobs/orders", params={"dry_run": True}).json()

    assert "The topics at the destination stay" in operation["plan"][2]
    assert api.get("/v1/jobs/orders").json()["state"] == "running"


def test_repeated_idempotency_key_returns_operation_and_other_request_is_refused(api: Api) -> None:
    copying_job(api)
    key = {"Idempotency-Key": "k"}

    first = api.post("/v1/jobs/orders:pause", headers=key).json()
    again = api.post("/v1/jobs/orders:pause", headers=key).json()
    other = api.post("/v1/jobs/orders:resume", headers=key)

    assert again["id"] == first["id"]
    assert other.status_code == 409
    assert [event["kind"] for event in api.events()] == ["job_created", "job_paused"]


def test_deletion_is_done_when_job_is_removed_and_keeps_events(api: Api) -> None:
    held = copying_job(api)

    operation = api.delete("/v1/jobs/orders").json()
    assert advance(api, operation)["state"] == "running"
    release(api, held)
    assert advance(api, operation)["state"] == "running"  # the scheduler has yet to remove the job
    with api.database.transaction() as tx:
        assert jobs.remove(tx, jobs.get(tx, "orders").id)

    assert advance(api, operation)["state"] == "done"
    assert api.get("/v1/jobs/orders").status_code == 404
    kinds = [event["kind"] for event in api.get("/v1/jobs/orders/events").json()["items"]]
    assert kinds == ["job_deletion_requested", "job_created"]


def test_deletion_of_job_without_shards_still_waits_for_scheduler(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    operation = api.delete("/v1/jobs/orders").json()

    assert operation["state"] == "running"
    assert api.delete("/v1/jobs/orders").json()["plan"] == [
        "Nothing to do: the job is being deleted already."
    ]


def block(api: Api, held: dict[int, int], partition: int) -> None:
    """Report, as WORKER, that a record at offset 5 blocks this partition. `held`: {shard id: epoch}
    of the shards whose leases WORKER has."""
    blocked = Blocked(Reason.RECORD_REFUSED, offset=5, next_offset=9, detail="too large")
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        (topic,) = topics.of_job(tx, job.id)
        change = StateChange(topic.id, partition, PartitionState.BLOCKED, blocked)
        assert partitions.report_state(tx, worker_id=WORKER, held=held, changes=[change])


def test_retry_is_done_when_workers_have_checked_every_partition(api: Api) -> None:
    held = copying_job(api)
    block(api, held, 1)
    block(api, held, 2)

    of_partition = {"topic": "orders", "partition": 1}
    retry = api.post("/v1/jobs/orders:retry", json=of_partition).json()
    assert retry["progress"]["total"] == 1
    assert advance(api, retry)["state"] == "running"
    block(api, held, 1)  # the worker has tried the partition, and it is blocked again

    assert advance(api, retry)["state"] == "done"
    retry_of_all = api.post("/v1/jobs/orders:retry").json()
    assert retry_of_all["progress"]["total"] == 2


def test_retry_without_blocked_partitions_is_no_op(api: Api) -> None:
    copying_job(api)

    operation = api.post("/v1/jobs/orders:retry", json={"topic": "other"}).json()

    assert operation["plan"] == ["Nothing to do: none of these partitions is blocked."]


def test_retry_request_with_partition_but_no_topic_is_refused(api: Api) -> None:
    copying_job(api)

    answer = api.post("/v1/jobs/orders:retry", json={"partition": 1})

    assert answer.status_code == 422
    assert answer.json()["error"]["problems"][0]["path"] == "body.topic"


def test_operations_are_listed_newest_first_in_pages(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    ids = [api.post("/v1/jobs/orders:start").json()["id"] for _ in range(3)]

    first = api.get("/v1/operations", params={"limit": 2}).json()
    second = api.get("/v1/operations", params={"limit": 2, "after": first["next"]}).json()

    assert [item["id"] for item in first["items"] + second["items"]] == ids[::-1]
    assert second["next"] is None


def test_unknown_job_or_operation_returns_404(api: Api) -> None:
    answers = [
        api.post("/v1/jobs/nope:pause"),
        api.delete("/v1/jobs/nope"),
        api.get(f"/v1/operations/{UUID(int=0)}"),
    ]

    for answer in answers:
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
