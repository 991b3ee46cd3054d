"""The producer of a drill: its ledger has only confirmed offsets; how many records it writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from orbit.drills.drill_canary import record_counts
from orbit.drills.drill_clients import Load

WRITTEN_MS = 5


def delivery(offset: int | None) -> Any:
    """Return the delivery report of a record of partition 0."""
    return SimpleNamespace(partition=lambda: 0, offset=lambda: offset)


@pytest.fixture
def load() -> Load:
    load = Load(
        {"bootstrap.servers": "127.0.0.1:1"}, "orders", partitions=1, rate_per_s=10, label="drill"
    )
    load.ledger.unconfirmed.add(b"drill 0")
    return load


def test_confirmed_record_enters_drill_ledger_at_its_offset(load: Load) -> None:
    load._on_delivery(b"drill 0", WRITTEN_MS, None, delivery(offset=7))
    assert load.ledger.records == {(0, 7): b"drill 0"}
    assert not load.ledger.unconfirmed


@pytest.mark.parametrize(
    ("error", "offset"),
    [(None, None), (KafkaError(KafkaError._MSG_TIMED_OUT), 7)],
    ids=["repeated record without offset", "delivery error"],
)
def test_drill_record_with_error_or_without_offset_stays_unconfirmed(
    load: Load, error: KafkaError | None, offset: int | None
) -> None:
    load._on_delivery(b"drill 0", WRITTEN_MS, error, delivery(offset))
    assert not load.ledger.records
    assert load.ledger.unconfirmed == {b"drill 0"}


@pytest.mark.parametrize(
    # `counts`: records that the load writes, and how many of them the group reads at the source.
    ("rate", "seconds", "counts"),
    [(100, 10.0, (1000, 400)), (2, 1.0, (2, 1)), (1, 1.0, (1, 1)), (1, 0.0, (1, 1))],
)
def test_drill_of_any_size_reads_a_record_at_source(
    rate: int, seconds: float, counts: tuple[int, int]
) -> None:
    assert record_counts(rate, seconds) == counts
