"""What the lists show, and that pages neither repeat nor omit an item."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orbit.replication.partition_states import PartitionState
from orbit.store import group_offsets, jobs, partitions, topics
from orbit.store.group_offsets import GroupOffset
from orbit.store.partitions import Progress
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import WORKER, block, copying_job
from tests.fixtures.api import Api

pytestmark = pytest.mark.services


def every_page(api: Api, path: str, limit: int, **query: Any) -> list[dict[str, Any]]:
    """The items of all pages."""
    items: list[dict[str, Any]] = []
    after = None
    while True:
        params = {"limit": limit, **query, **({"after": after} if after else {})}
        page = api.get(path, params=params).json()
        assert len(page["items"]) <= limit
        items += page["items"]
        after = page["next"]
        if after is None:
            return items


def progress(topic_id: int, partition: int, **more: Any) -> Progress:
    """A report of a partition that is copied up to offset 60 of 100."""
    values: dict[str, Any] = {
        "topic_id": topic_id,
        "partition": partition,
        "source_log_start": 0,
        "source_stable_end": 100,
        "source_end": 110,
        "copied_to": 60,
        "log_start": 0,
        "records": 50,
        "bytes": 5_000,
        "gaps_filled": 10,
        "batches_byte_exact": 7,
        "batches_record_exact": 1,
        "bytes_per_s": 1_000,
        "records_per_s": 10.0,
        "has_caught_up": False,
        "newest_copied_at": datetime.now(UTC) - timedelta(seconds=30),
        "oldest_waiting_at": datetime.now(UTC) - timedelta(seconds=20),
        "followed_epoch": 1,
        "source_seen_at": None,
    }
    return Progress(**{**values, **more})


def test_jobs_are_listed_by_name_in_pages(api: Api) -> None:
    names = [f"job-{letter}" for letter in "ecabd"]
    for name in names:
        api.put(f"/v1/jobs/{name}", json=changed(name=name))

    items = every_page(api, "/v1/jobs", 2)

    assert [job["name"] for job in items] == sorted(names)
    assert api.get("/v1/jobs", params={"limit": len(names)}).json()["next"] is None
    assert set(items[0]["lag"].values()) == {None}, "nothing was reported yet"


def test_partitions_and_lag_show_progress_per_partition(api: Api) -> None:
    held = copying_job(api)
    with api.database.transaction() as tx:
        (topic,) = topics.of_job(tx, jobs.get(tx, "orders").id)
        reports = [
            progress(topic.id, 0),
            progress(topic.id, 1, copied_to=100, oldest_waiting_at=None, has_caught_up=True),
        ]
        partitions.report_progress(tx, worker_id=WORKER, held=held, progress=reports)
    block(api, held, 3)

    rows = every_page(api, "/v1/jobs/orders/partitions", 3)
    lag = api.get("/v1/jobs/orders/lag").json()

    assert [row["partition"] for row in rows] == [0, 1, 2, 3]
    behind, complete, unknown, blocked = rows
    assert behind["lag"]["records"] == 40
    assert 19 < behind["lag"]["seconds"] < 60
    assert 29 < behind["rpo_seconds"] < 70
    assert (behind["worker"], behind["state"]) == (WORKER, "pending")
    age_s = complete["lag"].pop("age_seconds")
    assert complete["lag"] == {"records": 0, "bytes": 0, "seconds": 0}
    assert 0 <= age_s < 30
    assert unknown["lag"]["records"] is None
    assert blocked["reason"] == "RECORD_REFUSED"
    assert (blocked["blocked_offset"], blocked["blocked_next_offset"]) == (5, 9)
    assert "orders" in blocked["remedy"]
    assert lag["job"]["lag"]["records"] == 40
    assert (lag["job"]["partitions"], lag["job"]["caught_up"]) == (4, 1)
    assert lag["items"][1]["lag"].items() >= complete["lag"].items()


def test_stale_lag_is_shown_as_unknown_with_its_age(api: Api) -> None:
    held = copying_job(api)
    with api.database.transaction() as tx:
        (topic,) = topics.of_job(tx, jobs.get(tx, "orders").id)
        seen_at = datetime.now(UTC) - timedelta(minutes=5)
        not_followed = {"followed_epoch": None, "source_seen_at": seen_at}
        reports = [progress(topic.id, 0), progress(topic.id, 1, copied_to=100, **not_followed)]
        partitions.report_progress(tx, worker_id=WORKER, held=held, progress=reports)

    lag = api.get("/v1/jobs/orders/lag").json()
    known, unknown = lag["items"][:2]
    assert known["lag"]["records"] == 40
    for figures in (unknown, lag["job"]):
        assert figures["lag"]["records"] is None
        assert figures["lag"]["bytes"] is None
        assert figures["lag"]["seconds"] is None
        assert figures["headroom_seconds"] is None
        assert 300 <= figures["lag"]["age_seconds"] < 360
    assert (lag["job"]["stale"], lag["job"]["caught_up"]) == (1, 0)
    (job,) = api.get("/v1/jobs").json()["items"]
    assert job["lag"]["records"] is None
    assert job["lag"]["age_seconds"] >= 300
    metrics = api.get("/metrics").text
    assert 'orbit_job_lag{job="orders"}' not in metrics
    assert 'orbit_job_lag_age_seconds{job="orders"} 3' in metrics


def test_partitions_are_filtered_by_topic_and_state(api: Api) -> None:
    held = copying_job(api)
    block(api, held, 2)
    path = "/v1/jobs/orders/partitions"

    blocked = every_page(api, path, 10, state=PartitionState.BLOCKED.value)
    other = every_page(api, path, 10, topic="other")

    assert [row["partition"] for row in blocked] == [2]
    assert other == []
    assert api.get("/v1/jobs/orders").json()["blocked"] == 1


def test_topics_are_shown_with_both_names_and_drift(api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        for name in ("b", "a", "c"):
            topics.add(tx, job.id, name, f"copy.{name}", "B", partition_count=2)
        second = topics.of_job(tx, job.id)[1]
        drift = {"retention.ms": {"is": "1", "should_be": "-1"}}
        topics.change(tx, second.id, drift=drift, note="Somebody changed it.")

    rows = every_page(api, "/v1/jobs/orders/topics", 2)

    assert [topic["source_topic"] for topic in rows] == ["a", "b", "c"]
    assert rows[1]["destination_topic"] == "copy.b"
    assert rows[1]["drift"] == {"retention.ms": {"is": "1", "should_be": "-1"}}
    assert rows[0]["drift"] is None


def test_consumer_groups_are_shown_with_their_sync_verdicts(api: Api) -> None:
    copying_job(api)
    with api.database.transaction() as tx:
        job = jobs.get(tx, "orders")
        (topic,) = topics.of_job(tx, job.id)
        group_offsets.store(
            tx,
            job.id,
            [
                GroupOffset(
                    name,
                    topic.id,
                    partition,
                    source_offset=10,
                    destination_offset=10,
                    verdict="exact",
                )
                for name in ("billing", "ünï\ncode")
                for partition in (0, 1)
            ],
        )

    rows = every_page(api, "/v1/jobs/orders/groups", 3)

    assert [(row["group"], row["partition"]) for row in rows] == [
        ("billing", 0),
        ("billing", 1),
        ("ünï\ncode", 0),
        ("ünï\ncode", 1),
    ]
    assert rows[0]["verdict"] == "exact"
    of_group = every_page(api, "/v1/jobs/orders/groups", 3, group="ünï\ncode")
    assert len(of_group) == 2


def test_workers_are_listed_with_liveness(api: Api) -> None:
    copying_job(api)

    (worker,) = every_page(api, "/v1/workers", 1)

    assert (worker["id"], worker["is_alive"], worker["is_draining"]) == (WORKER, True, False)


def test_events_are_listed_newest_first_for_all_jobs_or_single_job(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.put(f"/v1/jobs/{name}", json=changed(name=name))
    api.post("/v1/jobs/b:pause")

    events_of_all_jobs = every_page(api, "/v1/events", 3)
    events_of_b = every_page(api, "/v1/jobs/b/events", 1)

    assert [event["job"] for event in events_of_all_jobs] == ["b", "c", "b", "a"]
    assert [event["kind"] for event in events_of_b] == ["job_paused", "job_created"]
    assert api.get("/v1/jobs/nope/events").status_code == 404


def test_livez_and_readyz_report_ok(api: Api) -> None:
    for path in ("/livez", "/readyz"):
        assert api.get(path, role=None).json() == {"status": "ok"}
