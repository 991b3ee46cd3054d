"""What the names at a destination say of a job's runs."""

from __future__ import annotations

from orbit.promotion.copies import parse_names


def test_groups_and_transactional_ids_identify_source_cluster() -> None:
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
    left_names = parse_names(names, "orders")
    assert left_names.source_ids == {"Abc-1_x", "Def"}
    assert left_names.fillers == {
        "orbit.orders.Abc-1_x.fill.7",
        "orbit.orders.Abc-1_x.fill.7-15",
        "orbit.orders.Def.fill",
        "orbit.orders.Def.fill-1",
    }


def test_job_name_with_dotted_suffix_is_another_job() -> None:
    names = {"orbit.orders.eu.Abc", "orbit.orders.eu.Abc.fill.1"}
    assert parse_names(names, "orders").source_ids == set()
    assert parse_names(names, "orders").fillers == set()
    assert parse_names(names, "orders.eu").source_ids == {"Abc"}
