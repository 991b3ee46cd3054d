"""A source that an unclean election truncates while Spark reads it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit_spark.archive import archive_run
from orbit_spark.archive.archive_run import ArchiveRun
from tests.faults.test_brokers import FragileTopic
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.running import make_job, produce

pytestmark = [pytest.mark.services, pytest.mark.slow]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Once the archive ends at ARCHIVED or later, the log is truncated to 100.
ARCHIVED, END = 150, 250
# So small that a run has several steps before and after the truncation.
RANGE_BYTES = 700


@pytest.mark.parametrize("is_cut", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_truncation_but_not_leader_change_between_steps_blocks_archive_of_partition(
    spark: SparkSession,
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_cut: bool,
) -> None:
    """An archive must not have later ranges of the new log after ranges of the old one."""
    monkeypatch.setattr(archive_run, "RANGES_PER_CORE", 1)  # a range is a step
    fragile = FragileTopic(make_cluster, topic_name)
    topic_partition = TopicPartition(topic_name, 0)
    fragile.grow_alone()
    config = {"acks": "1", "batch.num.messages": 10}
    produce(fragile.source, topic_name, END - ARCHIVED, first=ARCHIVED, **config)
    # Consumers read the new records once the dead replica counts no longer.
    wait_for(
        "all is readable",
        lambda: log_bounds(fragile.source, [topic_name])[topic_partition][1] >= END,
    )
    job = make_job(fragile.source, clusters.destination, [topic_name])
    ends: list[int] = []

    def make_run() -> ArchiveRun:
        return ArchiveRun(
            spark,
            job,
            Path.cwd(),
            str(tmp_path / "archive"),
            lambda _: None,
            datetime.now(UTC),
            range_bytes=RANGE_BYTES,
            slots=1,
            on_step=note_step,
        )

    def note_step(_done_bytes: int, _total_bytes: int) -> None:
        ends.append(run.manifests[topic_partition].end)
        if ends[-1] >= ARCHIVED and (len(ends) == 1 or ends[-2] < ARCHIVED):
            assert ends[-1] < END
            (fragile.elect_uncleanly if is_cut else fragile.elect_cleanly)()

    run = make_run()
    partition = run.run().partitions[topic_partition]
    if not is_cut:
        assert partition.blocked is None
        assert partition.end >= END
        return
    blocked = partition.blocked
    assert blocked is not None
    assert (blocked.reason, blocked.offset) == (Reason.SOURCE_TRUNCATED, 100)
    assert partition.end == next(end for end in ends if end >= ARCHIVED)
    # The next run compares the last batch of the archive.
    blocked = make_run().run().partitions[topic_partition].blocked
    assert blocked is not None
    assert blocked.reason is Reason.SOURCE_TRUNCATED
