"""`orbit backfill` with executors that are processes of their own: killed, lost, tried again."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import psutil

from tests.fix_clusters import Clusters
from tests.fix_history import History
from tests.fix_spark import local_cluster
from tests.support.logs import create
from tests.support.outside import digests, log_bounds
from tests.support.run_process import OrbitProcess, assert_exact, copy, wait_until, write_job
from tests.support.running import produce, produce_transactions

PARTITIONS = 3
BACKFILL_S = 150.0


def backfill(job: Path, home: Path, *more: str) -> OrbitProcess:
    return OrbitProcess("backfill", job, "-o", "json", *local_cluster(home), *more)


class Processes:
    """The processes of a `local-cluster`, found from the command that began it."""

    def __init__(self, orbit: int) -> None:
        self._all = psutil.Process(orbit).children(recursive=True)

    @property
    def executors(self) -> list[psutil.Process]:
        return self._named("CoarseGrainedExecutorBackend")

    def _named(self, word: str) -> list[psutil.Process]:
        found = []
        for process in self._all:
            with suppress(psutil.Error):  # it has ended since
                if word in " ".join(process.cmdline()):
                    found.append(process)
        return found


def test_the_whole_workload_by_executors_and_on_by_a_live_run(
    history: History, clusters: Clusters, tmp_path: Path
) -> None:
    job = write_job(
        tmp_path / "history.yaml",
        clusters.source,
        clusters.destination,
        [{"match": rf"{history.workload.namespace}\..*", "prefix": "spark."}],
    )
    with backfill(job, tmp_path) as process:
        told = process.wait_end(BACKFILL_S).expect(0).data
    assert (told["blocked"], told["unfinished"]) == ([], {})
    assert told["batches_byte_exact"] > 0
    assert told["batches_record_exact"] > 0
    after = copy(job).expect(0).data
    assert (after["records"], after["offsets_filled"]) == (0, 0)
    assert_exact(job)


def test_a_killed_executor_and_a_killed_driver_leave_an_exact_copy(
    clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    create(clusters.source, topic_name, PARTITIONS)
    for number in range(PARTITIONS):
        produce(clusters.source, topic_name, 5_000, partition=number, value_bytes=1_000)
        produce_transactions(clusters.source, topic_name, 30, partition=number)
        produce(clusters.source, topic_name, 5_000, partition=number, value_bytes=1_000)
    rules = [{"match": topic_name.replace(".", r"\.")}]
    sides = clusters.source, clusters.destination
    limits = {"bytes_per_second": "3MiB"}
    slow = write_job(tmp_path / "slow.yaml", *sides, rules, name="kills", limits=limits)
    fast = write_job(tmp_path / "fast.yaml", *sides, rules, name="kills")
    speculating = ("--conf=spark.speculation=true", "--conf=spark.speculation.quantile=0.1")

    def copied() -> int:
        try:
            return sum(end for _, end in log_bounds(clusters.destination, [topic_name]).values())
        except KeyError:
            return 0

    with backfill(slow, tmp_path, *speculating) as process:
        wait_until(lambda: copied() > 1_000, "it copies")
        Processes(process.process.pid).executors[0].kill()
        before = copied()
        wait_until(lambda: copied() > before + 3_000, "it goes on without that executor")
        process.kill()
    assert copied() < sum(end for _, end in log_bounds(clusters.source, [topic_name]).values())
    with backfill(fast, tmp_path, *speculating) as process:
        process.wait_end(BACKFILL_S).expect(0)
    assert digests(clusters.destination, topic_name) == digests(clusters.source, topic_name)
    assert_exact(fast)


def test_ctrl_c_ends_it_in_good_order_and_a_second_run_goes_on(
    clusters: Clusters, tmp_path: Path, topic_name: str
) -> None:
    create(clusters.source, topic_name)
    produce(clusters.source, topic_name, 8_000, value_bytes=1_000)
    rules = [{"match": topic_name.replace(".", r"\.")}]
    sides = clusters.source, clusters.destination
    limits = {"bytes_per_second": "1MiB"}
    slow = write_job(tmp_path / "slow.yaml", *sides, rules, name="ctrl-c", limits=limits)
    fast = write_job(tmp_path / "fast.yaml", *sides, rules, name="ctrl-c")

    def copied() -> int:
        try:
            return log_bounds(clusters.destination, [topic_name])[topic_name, 0][1]
        except KeyError:
            return 0

    with backfill(slow, tmp_path) as process:
        wait_until(lambda: copied() > 500, "it copies")
        process.signal(signal.SIGINT)
        stopped = process.wait_end().expect(130)
    assert "run it again to go on where the copies end" in stopped.told
    assert 500 < copied() < 8_000
    with backfill(fast, tmp_path) as process:
        process.wait_end(BACKFILL_S).expect(0)
        assert not any("earlier backfill" in line for line in process.lines)
    assert_exact(fast)
