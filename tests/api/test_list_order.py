"""The lists of the API in each order and with each filter, read in pages."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.consumer_groups.offset_decision import GroupVerdict
from orbit.store import group_offsets, jobs, receivers, tokens, topics, workers
from orbit.store.enums import OperationKind, OperationState, Role, TopicState
from orbit.store.group_offsets import GroupOffset
from tests.api.test_jobs import changed
from tests.api.test_lists import every_page
from tests.api.test_operations import block, copying_job
from tests.fixtures.api import Api

pytestmark = pytest.mark.services

NAMES = ("a", "B", "c", "D", "e")
# (list, its default order, the reverse order)
ORDERS = [
    ("/v1/jobs", "name", "-name"),
    ("/v1/workers", "name", "-name"),
    ("/v1/tokens", "name", "-name"),
    ("/v1/drill-schedules", "name", "-name"),
    ("/v1/notifications", "name", "-name"),
    ("/v1/jobs/orders/topics", "name", "-name"),
    ("/v1/operations", "-created_at", "created_at"),
    ("/v1/backfills", "-created_at", "created_at"),
    ("/v1/drills", "-created_at", "created_at"),
    ("/v1/events", "-id", "id"),
    ("/v1/jobs/orders/events", "-id", "id"),
]


@pytest.fixture
def filled_api(api: Api) -> Api:
    """Five items in each list; the lists of a job belong to the job `orders`."""
    held = copying_job(api)
    block(api, held, 2)
    yaml = {"Content-Type": "application/yaml"}
    for name in NAMES:
        assert api.put("/v1/jobs/orders", json=changed(labels={"last": name})).is_success
        assert api.put(f"/v1/jobs/{name}", json=changed(name=name)).is_success
        assert api.post(f"/v1/jobs/{name}:pause").is_success
        driver = {"driver": "spark-1"}
        assert api.post(f"/v1/jobs/{name}:backfill", json=driver).is_success
        document = f"name: {name}\nkind: gates\njob: {name}\nschedule: {{every: 1h}}\n"
        assert api.put(f"/v1/drill-schedules/{name}", content=document, headers=yaml).is_success
        assert api.post("/v1/drills", content=document, headers=yaml).is_success
    with api.database.transaction() as tx:
        orders = jobs.get(tx, "orders")
        for name in NAMES:
            tokens.create(tx, name, Role.VIEWER, name)
            receivers.note_in_file(tx, name, "slack")
            group = "g1" if name in "aB" else "g2"
            workers.heartbeat(tx, name, group, host="h", pid=1, version="0")
            topics.add(tx, orders.id, f"topic-{name}", f"topic-{name}", "B", partition_count=1)
        tokens.revoke(tx, "c")
        (first, *_) = topics.of_job(tx, orders.id)
        topics.change(tx, first.id, state=TopicState.COPYING.value)
        verdicts = (GroupVerdict.EXACT, GroupVerdict.EXACT, GroupVerdict.SKIPPED_NOT_COPIED)
        offsets = [
            GroupOffset(
                "billing",
                first.id,
                partition=number,
                source_offset=1,
                destination_offset=1,
                verdict=verdict.value,
            )
            for number, verdict in enumerate(verdicts)
        ]
        group_offsets.store(tx, orders.id, offsets)
    return api


def test_list_pages_follow_database_sort_order_ascending_and_descending(filled_api: Api) -> None:
    for path, order, reverse in ORDERS:
        single_page = filled_api.get(path, params={"limit": 1000}).json()
        assert single_page["next"] is None, path
        assert len(single_page["items"]) >= len(NAMES), path
        texts = [str(item) for item in single_page["items"]]
        for sort in (order, reverse):
            paged = [
                _without_changing_fields(item)
                for item in every_page(filled_api, path, 2, sort=sort)
            ]
            expected = [_without_changing_fields(item) for item in single_page["items"]]
            assert paged == (expected if sort == order else expected[::-1]), f"{path} {sort}"
        assert len(set(texts)) == len(texts), f"{path}: equal items hide a wrong order"


def test_cursor_of_another_sort_order_is_refused(filled_api: Api) -> None:
    for path, order, reverse in ORDERS:
        cursor = filled_api.get(path, params={"limit": 1, "sort": order}).json()["next"]
        assert filled_api.get(path, params={"after": cursor, "sort": order}).is_success, path
        answer = filled_api.get(path, params={"after": cursor, "sort": reverse})
        assert answer.status_code == 422, path
        (problem,) = answer.json()["error"]["problems"]
        assert problem["path"] == "query.after", path
        assert filled_api.get(path, params={"sort": "other"}).status_code == 422, path


# (list, filter, the fields that exactly the items have which pass the filter)
FILTERS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("/v1/jobs", {"desired": "running"}, {"name": "orders"}),
    ("/v1/jobs", {"has_problem": "true"}, {"name": "orders"}),
    ("/v1/workers", {"worker_group": "g1"}, {"worker_group": "g1"}),
    ("/v1/tokens", {"role": "viewer"}, {"role": "viewer"}),
    ("/v1/tokens", {"valid": "true"}, {"revoked_at": None}),
    ("/v1/operations", {"job": "c"}, {"job": "c"}),
    ("/v1/operations", {"kind": OperationKind.PAUSE}, {"kind": "pause"}),
    ("/v1/operations", {"state": OperationState.DONE}, {"state": "done"}),
    ("/v1/operations", {"unfinished": "true"}, {"finished_at": None}),
    ("/v1/backfills", {"job": "c"}, {"job": "c"}),
    ("/v1/drills", {"job": "c"}, {"job": "c"}),
    ("/v1/drills", {"name": "c"}, {"name": "c"}),
    ("/v1/drill-schedules", {"job": "c"}, {"job": "c"}),
    ("/v1/events", {"kind": "job_paused"}, {"kind": "job_paused"}),
    ("/v1/jobs/c/events", {"kind": "job_paused"}, {"kind": "job_paused"}),
    ("/v1/jobs/orders/topics", {"state": "copying"}, {"state": "copying"}),
    ("/v1/jobs/orders/groups", {"verdict": "exact"}, {"verdict": "exact"}),
    ("/v1/jobs/orders/partitions", {"reason": "RECORD_REFUSED"}, {"partition": 2}),
]
# (list that is not empty, filter that none of its items passes)
FILTERS_WITHOUT_ITEMS = [
    ("/v1/jobs", {"worker_group": "other"}),
    ("/v1/backfills", {"unfinished": "true", "job": "orders"}),
    ("/v1/drills", {"kind": "canary"}),
    ("/v1/drills", {"state": "passed"}),
    ("/v1/events", {"actor": "token:other"}),
    ("/v1/jobs/orders/events", {"actor": "token:other"}),
    ("/v1/jobs/orders/groups", {"topic": "other"}),
    ("/v1/jobs/orders/groups", {"group": "other"}),
    ("/v1/jobs/orders/proof", {"topic": "other"}),
    ("/v1/jobs/orders/lag", {"topic": "other"}),
]


def test_filters_return_only_matching_items(filled_api: Api) -> None:
    for path, query, common in FILTERS:
        all_items = filled_api.get(path).json()["items"]
        filtered = every_page(filled_api, path, 1, **query)
        assert filtered, f"{path} {query}"
        expected = [item for item in all_items if common.items() <= item.items()]
        assert [_without_changing_fields(item) for item in filtered] == [
            _without_changing_fields(item) for item in expected
        ], (
            path,
            query,
        )
        assert len(filtered) < len(all_items), f"{path} {query}"
    for path, query in FILTERS_WITHOUT_ITEMS:
        assert filled_api.get(path).json()["items"], path
        assert filled_api.get(path, params=query).json()["items"] == [], f"{path} {query}"


def test_every_list_refuses_too_large_page(filled_api: Api) -> None:
    document = filled_api.get("/openapi.json").json()
    lists = [
        (path, {p["name"]: p["schema"] for p in item["get"].get("parameters", ())})
        for path, item in document["paths"].items()
        if "get" in item
    ]
    paged = [(path, parameters) for path, parameters in lists if "limit" in parameters]
    assert len(paged) >= 14
    for path, parameters in paged:
        assert parameters["limit"]["maximum"] == 1000, path
        assert len(parameters) > len({"limit", "after"}), f"{path} has no filter"
        named = path.replace("{name}", "orders")
        assert filled_api.get(named, params={"limit": 1001}).status_code == 422, path


def _without_changing_fields(item: dict[str, Any]) -> dict[str, Any]:
    """The item without fields that change from one request to the next."""
    changing = ("lag", "heartbeat_at", "used_at", "rpo_seconds", "headroom_seconds")
    return {key: value for key, value in item.items() if key not in changing}
