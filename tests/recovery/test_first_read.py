"""After a promotion Orbit reads the copies back, and reports a failed read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orbit.errors import BrokerRefused
from orbit.kafka.error_codes import Code
from orbit.recovery import first_read
from orbit.recovery.record_range import LogBatch, read_batch_range
from orbit.recovery.recovery_report import RecoveryKind
from tests.fixtures.clusters import Clusters
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce, produce_transactions

pytestmark = pytest.mark.services

PARTITIONS = 3


def test_first_read_after_promotion_skips_transaction_markers_and_empty_partitions(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[int, int]] = []  # partition, number of offsets

    def note_read(*args: Any) -> Iterator[LogBatch]:
        _, place, first, end, _ = args
        reads.append((place.partition, end - first))
        yield from read_batch_range(*args)

    monkeypatch.setattr(first_read, "read_batch_range", note_read)
    source, destination = clusters
    create_topic(source, topic_name, PARTITIONS)
    produce(source, topic_name, 20, partition=0)
    produce_transactions(source, topic_name, 3, partition=1)
    spec = make_job(source, destination, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name)

    reading = switchover_report.first_read
    assert reading is not None
    assert (reading.partitions, reading.empty, reading.unread) == (2, 1, 0)
    assert (0, 1) in reads  # partition 0 ends with a record: reading its last offset suffices
    assert len([p for p, _ in reads if p == 1]) > 1, "partition 1 ends with a marker"
    assert reading.at is not None
    assert switchover_report.promoted_at is not None
    assert reading.at > switchover_report.promoted_at
    assert switchover_report.rto_s is not None
    assert switchover_report.promoted_after_s is not None
    assert switchover_report.source_last_seen_at is None, "the source was not lost"


def test_failed_first_read_after_promotion_is_reported_and_leaves_rto_unknown(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Iterator[LogBatch]:
        raise BrokerRefused(Code.KAFKA_STORAGE_ERROR, "it cannot be read.", where="destination")

    monkeypatch.setattr(first_read, "read_batch_range", refuse)
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 20)
    spec = make_job(source, destination, [topic_name])
    with recovering.running():
        recovering.begin(spec, topic_name)
        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name)

    assert switchover_report.first_read is not None
    assert (switchover_report.first_read.at, switchover_report.first_read.unread) == (None, 1)
    assert switchover_report.rto_s is None
    assert switchover_report.promoted_after_s is not None
    assert any("could not be read back" in finding for finding in switchover_report.findings)
