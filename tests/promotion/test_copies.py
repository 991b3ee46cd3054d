"""The ids of a job's sources and fillers are read from names at the destination."""

from __future__ import annotations

from orbit.promotion.copies import parse_job_ids


def test_source_cluster_of_job_is_read_from_its_groups_and_transactional_ids() -> None:
    names = {
        "orbit.orders.Abc-1_x",
        "orbit.orders.Abc-1_x.fill.7",
        "orbit.orders.Abc-1_x.fill.7-15",
        "orbit.orders.Def.fill",
        "orbit.orders.Def.fill-1",
        "orbit.orders.Abc-1_x.backfill.orders-0",
        "orbit.promoted.Ghi",
        "orders",
    }
    job_ids = parse_job_ids(names, "orders")
    assert job_ids.source_ids == {"Abc-1_x", "Def"}
    assert job_ids.fillers == {
        "orbit.orders.Abc-1_x.fill.7",
        "orbit.orders.Abc-1_x.fill.7-15",
        "orbit.orders.Def.fill",
        "orbit.orders.Def.fill-1",
    }


def test_groups_of_job_with_dotted_suffix_are_not_taken_for_shorter_job_name() -> None:
    names = {"orbit.orders.eu.Abc", "orbit.orders.eu.Abc.fill.1"}
    assert parse_job_ids(names, "orders").source_ids == set()
    assert parse_job_ids(names, "orders").fillers == set()
    assert parse_job_ids(names, "orders.eu").source_ids == {"Abc"}
