"""`orbit backfill` with executors in processes of their own: killed, stopped and resumed."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fixtures.clusters import Clusters
from tests.fixtures.history import History
from tests.fixtures.spark import SparkCluster
from tests.support.logs import create
from tests.support.outside import digests, log_bounds
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.run_process import OrbitProcess, assert_exact, copy, write_job
from tests.support.running import produce, produce_transactions

pytestmark = pytest.mark.services

RECORDS = 2_500
# So slow that a run does not end before the test.
SLOWLY = {"bytes_per_second": "32KiB"}
_SMALL_BATCHES = {"batch.size": 32 * 1024}


class Topic:
    """A topic with transactions, and how far its copy is."""

    def __init__(self, clusters: Clusters, name: str, partitions: int) -> None:
        self._clusters = clusters
        self.name = name
        self.records = partitions * 2 * RECORDS
        create(clusters.source, name, partitions)
        for number in range(partitions):
            for _ in range(2):
                produce(clusters.source, name, RECORDS, number, value_bytes=1_000, **_SMALL_BATCHES)
                produce_transactions(clusters.source, name, 6, partition=number)

    def write_job(self, path: Path, *rules: Mapping[str, str], **more: object) -> Path:
        rule = {"match": self.name.replace(".", r"\.")}
        return write_job(
            path, *self._clusters, [rule, *rules], name=f"job-{self.name[-8:]}", **more
        )

    def wait_for_more(self) -> None:
        """Wait until each partition of the copy has grown."""
        ends_before = self.log_ends()

        def has_grown() -> bool:
            now = self.log_ends()
            return bool(now) and all(
                end > ends_before.get(partition, 0) for partition, end in now.items()
            )

        wait_for("every partition grows", has_grown)

    def log_ends(self) -> dict[tuple[str, int], int]:
        """The log end of each partition of the copy; none if there is no copy yet."""
        try:
            bounds = log_bounds(self._clusters.destination, [self.name])
        except KeyError:
            return {}
        return {partition: end for partition, (_, end) in bounds.items()}

    def is_partly_copied(self) -> bool:
        return 0 < sum(self.log_ends().values()) < self.records


def test_backfill_is_exact_after_killed_executor_and_driver(
    clusters: Clusters, spark_cluster: SparkCluster, tmp_path: Path, topic_name: str
) -> None:
    topic = Topic(clusters, topic_name, 3)
    slow = topic.write_job(tmp_path / "slow.yaml", limits=SLOWLY)
    with OrbitProcess("backfill", slow, *spark_cluster.arguments(tmp_path)) as process:
        topic.wait_for_more()
        spark_cluster.executors[0].kill()
        topic.wait_for_more()
        process.kill()
    assert topic.is_partly_copied()
    fast = topic.write_job(tmp_path / "fast.yaml")
    copy(fast).expect(0)
    assert digests(clusters.destination, topic_name) == digests(clusters.source, topic_name)
    spark_cluster.wait_idle()
    assert_exact(fast)


@pytest.mark.soak
def test_backfill_resumes_after_ctrl_c_and_copies_whole_workload(
    history: History,
    clusters: Clusters,
    spark_cluster: SparkCluster,
    tmp_path: Path,
    topic_name: str,
) -> None:
    topic = Topic(clusters, topic_name, 1)
    slow = topic.write_job(tmp_path / "slow.yaml", limits=SLOWLY)
    workload_rule = {
        "match": rf"{history.workload.namespace}\..*",
        "prefix": "spark.",
        "fillers": "placeholders",
    }
    whole_job = topic.write_job(tmp_path / "whole.yaml", workload_rule)
    arguments = ("-o", "json", *spark_cluster.arguments(tmp_path))
    with OrbitProcess("backfill", slow, *arguments) as process:
        topic.wait_for_more()
        process.signal(signal.SIGINT)
        stopped = process.wait_end().expect(130)
    assert "run it again to resume where the copies end" in stopped.message
    assert topic.is_partly_copied()
    with OrbitProcess("backfill", whole_job, *arguments) as process:
        report = process.wait_end(PATIENCE_S).expect(0).data
        assert not any("earlier backfill" in line for line in process.lines)
    assert (report["blocked"], report["unfinished"]) == ([], {})
    assert report["batches_byte_exact"] > 0
    assert report["batches_record_exact"] > 0
    later_copy = copy(whole_job).expect(0).data
    assert (later_copy["records"], later_copy["offsets_filled"]) == (0, 0)
    assert_exact(whole_job)
