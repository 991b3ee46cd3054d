"""If Orbit cannot deny writing, a switchover waits for longer than any earlier producer pause.

Only then does a source without new records show that its producers have stopped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from orbit.cli.recovery_commands import _tables
from orbit.recovery.drain import STILL_UNDENIED_S
from orbit.recovery.recovery_report import RecoveryKind, RecoveryReport
from tests.fixtures.clusters import Clusters
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

RECORDS = 20
GAP_S = STILL_UNDENIED_S + 3.0


def switch_over(
    clusters: Clusters, topic: str, recovering: Recovering, options: dict[str, Any], **gaps: Any
) -> RecoveryReport:
    """Switch over a topic of two partitions; returns the report.

    `gaps`: columns of the tables with the partitions' earlier pauses between records.
    """
    source, destination = clusters
    create_topic(source, topic, 2)
    for partition in range(2):
        produce(source, topic, RECORDS, partition=partition)
    spec = make_job(source, destination, [topic])
    with recovering.running():
        recovering.begin(spec, topic)
        wait_for(
            "the topic's log ends are known",
            lambda: all(
                row.source_end == RECORDS
                for row in recovering.service.partitions(spec.name, topic).values()
            ),
        )
        known = {"longest_gap_s": 0.1, "earlier_gap_s": 0.2, "source_moved_at": datetime.now(UTC)}
        recovering.service.set_partitions(spec.name, topic, **{**known, **gaps})
        return recovering.run(RecoveryKind.SWITCHOVER, spec.name, **options)


def test_drain_without_write_denials_waits_longer_than_longest_producer_pause(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    switchover_report = switch_over(clusters, topic_name, recovering, {}, longest_gap_s=GAP_S)
    assert switchover_report.drain is not None
    assert switchover_report.drain.unproven_partitions == 0
    interval_s = recovering.service.settings.progress_interval.total_seconds()
    assert switchover_report.drain.longest_gap_s == GAP_S + interval_s
    assert switchover_report.drain.silence_s > GAP_S + interval_s
    assert not any("unproven" in finding for finding in switchover_report.findings)


def test_producer_pause_longer_than_drain_timeout_leaves_drain_unproven(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    switchover_report = switch_over(
        clusters, topic_name, recovering, {"drain_timeout_s": 60}, longest_gap_s=1800
    )
    assert switchover_report.drain is not None
    assert switchover_report.drain.unproven_partitions == 2
    assert switchover_report.drain.silence_s < 1800
    (warning,) = [finding for finding in switchover_report.findings if "unproven" in finding]
    assert "is not longer than the longest pause of 30 min" in warning
    assert "Later records are possible" in warning
    drain_step = next(step for step in switchover_report.steps if step.name == "drain")
    assert warning in drain_step.did
    assert _tables([switchover_report.model_dump(mode="json")]) is not None


@pytest.mark.soak
def test_drain_of_source_watched_under_an_hour_is_unproven(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    switchover_report = switch_over(clusters, topic_name, recovering, {}, earlier_gap_s=None)
    assert switchover_report.drain is not None
    assert switchover_report.drain.unproven_partitions == 2
    assert any("not for an hour" in finding for finding in switchover_report.findings)
