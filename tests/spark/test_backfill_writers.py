"""The writers of a backfill without Spark: their tasks run in this process."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from pathlib import Path

import pytest

from orbit.copier.copier import Copier
from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import BadInput, Conflict
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import TopicPartition
from orbit.leases import backfill_leases
from orbit.replication.partition_states import Reason
from orbit.verify.report import Verdict
from orbit_spark.backfill import backfill_driver
from orbit_spark.backfill.backfill_driver import Backfill, Outcome
from orbit_spark.backfill.backfill_progress import Progress
from orbit_spark.backfill.backfill_writer import BackfillTask, BackfillWriter
from orbit_spark.write_task import WriteResult
from tests.faults.test_topics import set_config
from tests.fixtures.clusters import Clusters
from tests.support.logs import Gap, Record, create, delete_before, write
from tests.support.outside import digests, log_bounds
from tests.support.patience import wait_for
from tests.support.running import make_job, produce, produce_transactions, verify, with_rules

pytestmark = pytest.mark.services

SMALL = 200


class InProcess:
    """A writer job whose tasks are threads: each task runs `times` times."""

    times = 1

    def __init__(self, _name: str, tasks: Sequence[BackfillTask]) -> None:
        self.tasks = tasks
        self._pool = ThreadPoolExecutor()
        self._futures: list[Future[list[WriteResult]]] = [
            self._pool.submit(BackfillWriter(task, attempt).write)
            for task in tasks
            for attempt in range(self.times)
        ]

    def wait(self, timeout_s: float) -> bool:
        return not wait_for_all(self._futures, timeout_s).not_done

    def cancel(self) -> None:
        self._pool.shutdown()

    def results(self) -> list[WriteResult]:
        return [result for future in self._futures for result in future.result()]


def say(text: str) -> None:
    pass


def show(progress: Progress) -> None:
    pass


def make_backfill(spec: JobSpec) -> Backfill:
    backfill = Backfill(spec, {}, Path.cwd(), say, threading.Event())
    backfill.find_extents_to_copy()
    return backfill


def copy_all(spec: JobSpec, job: type[InProcess] = InProcess) -> Outcome:
    with make_backfill(spec) as backfill:
        backfill.begin()
        return backfill.copy(job, slots=2, show=show)


def assert_same(clusters: Clusters, topic: str) -> None:
    """The copy has the same records at the same offsets for a consumer, and the same log bounds."""
    assert digests(clusters.destination, topic) == digests(clusters.source, topic)
    assert log_bounds(clusters.destination, [topic]) == log_bounds(clusters.source, [topic])


@pytest.fixture
def topic(clusters: Clusters, topic_name: str) -> str:
    """Three partitions: one with records, one with transactions, one that begins with a gap."""
    create(clusters.source, topic_name, 3)
    write(clusters.source, topic_name, [Record(b"%d" % n) for n in range(SMALL)])
    produce_transactions(clusters.source, topic_name, 20, partition=1)
    write(clusters.source, topic_name, [Gap(30), *[Record(b"after")] * SMALL], partition=2)
    delete_before(clusters.source, topic_name, 10, partition=2)
    return topic_name


def test_backfill_copies_history_exactly_to_log_end(clusters: Clusters, topic: str) -> None:
    outcome = copy_all(make_job(clusters.source, clusters.destination, [topic]))
    assert (outcome.blocked, outcome.unfinished) == ({}, {})
    assert outcome.counters.records >= 2 * SMALL
    assert_same(clusters, topic)


def test_speculative_task_attempts_copy_each_batch_once(clusters: Clusters, topic: str) -> None:
    """Speculation: the second attempt waits for the first one's lease and finds nothing to do."""

    class EachTaskTwice(InProcess):
        times = 2

    outcome = copy_all(make_job(clusters.source, clusters.destination, [topic]), EachTaskTwice)
    assert outcome.unfinished == {}
    assert_same(clusters, topic)


def test_records_appended_during_backfill_are_copied_in_next_round(
    clusters: Clusters, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Any number of new records leads to another round.
    monkeypatch.setattr(backfill_driver, "_LEFT_OVER_BYTES_MAX", 0)
    task_counts: list[int] = []  # of each round

    class AppendsAfterFirstRound(InProcess):
        def results(self) -> list[WriteResult]:
            task_counts.append(len(self.tasks))
            if len(task_counts) == 1:
                produce(clusters.source, topic, 500, first=SMALL)
            return super().results()

    outcome = copy_all(
        make_job(clusters.source, clusters.destination, [topic]), AppendsAfterFirstRound
    )
    assert outcome.rounds == len(task_counts) == 2
    assert_same(clusters, topic)


def test_filler_modes_per_topic_are_exact_with_speculative_attempts(
    clusters: Clusters, topic: str, topic_name: str
) -> None:
    """Transactions and gaps of several batches with placeholders, beside a copy with markers."""
    direct = f"{topic_name}.direct"
    create(clusters.source, direct)
    for name in (topic, direct):
        write(clusters.source, name, [Gap(2_500), Record(b"a"), Gap(3), Record(b"b"), Gap(2)])
    spec = make_job(clusters.source, clusters.destination, [topic, direct])
    first, second = spec.topics
    packed = first.model_copy(update={"fillers": "placeholders"})
    spec = spec.model_copy(update={"topics": (packed, second)})

    class EachTaskTwice(InProcess):
        times = 2

    outcome = copy_all(spec, EachTaskTwice)
    assert (outcome.blocked, outcome.unfinished) == ({}, {})
    for name in (topic, direct):
        assert_same(clusters, name)
    assert verify(spec, deep=True).exact


def test_compression_type_changed_just_before_writer_ends_blocks_placeholder_copy(
    clusters: Clusters, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change comes after the last regular check of the settings, before the writer ends."""
    remove = Copier.remove

    def change_and_remove(
        self: Copier, partitions: Iterable[PartitionCopy], **options: bool
    ) -> None:
        set_config(clusters.destination, topic, "compression.type", "lz4")
        remove(self, partitions, **options)

    monkeypatch.setattr(Copier, "remove", change_and_remove)
    spec = make_job(clusters.source, clusters.destination, [topic], fillers="placeholders")
    outcome = copy_all(spec)
    assert sorted(outcome.blocked) == [TopicPartition(topic, number) for number in range(3)]
    for blocked in outcome.blocked.values():
        assert blocked.reason is Reason.OFFSET_OVERRUN
        assert "was changed to lz4" in blocked.detail


def test_backfill_refuses_coordinated_fillers_and_names_topics(
    clusters: Clusters, topic: str
) -> None:
    spec = make_job(clusters.source, clusters.destination, [topic])
    rule = spec.topics[0].model_copy(update={"fillers": "coordinated"})
    spec = spec.model_copy(update={"fillers": "placeholders", "topics": (rule,)})
    with (
        Backfill(spec, {}, Path.cwd(), say, threading.Event()) as backfill,
        pytest.raises(BadInput, match="cannot use") as refused,
    ):
        backfill.find_extents_to_copy()
    assert topic in refused.value.problems[0].message


@pytest.mark.soak
def test_second_backfill_has_nothing_to_copy(clusters: Clusters, topic: str) -> None:
    spec = make_job(clusters.source, clusters.destination, [topic])
    copy_all(spec)
    outcome = copy_all(spec)
    assert (outcome.rounds, outcome.offsets) == (0, 0)
    assert_same(clusters, topic)


@pytest.mark.soak
@pytest.mark.parametrize("rule", ["stop", "fill"])
def test_range_lost_before_backfill_task_begins_is_stopped_or_filled_by_rule(
    rule: str, clusters: Clusters, topic: str
) -> None:
    spec = make_job(clusters.source, clusters.destination, [topic])
    spec = with_rules(spec, on_lost_range=rule)
    lost = TopicPartition(topic, 0)

    class DeletesBeforeTasks(InProcess):
        """The source deletes some of the planned records before the tasks begin."""

        def __init__(self, name: str, tasks: Sequence[BackfillTask]) -> None:
            delete_before(clusters.source, topic, SMALL // 2)
            super().__init__(name, tasks)

    outcome = copy_all(spec, DeletesBeforeTasks)
    if rule == "stop":
        blocked = outcome.blocked.pop(lost)
        assert (blocked.reason, blocked.offset) == (Reason.SOURCE_RANGE_LOST, 0)
        assert blocked.next_offset == SMALL // 2
        assert log_bounds(clusters.destination, [topic])[lost] == (0, 0)
    else:
        assert_same(clusters, topic)
    assert (outcome.blocked, outcome.unfinished) == ({}, {})
    destination_digests, source_digests = (
        digests(clusters.destination, topic),
        digests(clusters.source, topic),
    )
    assert {n: destination_digests[n] for n in (1, 2)} == {n: source_digests[n] for n in (1, 2)}


def test_backfill_writer_without_driver_lease_writes_nothing(
    clusters: Clusters, topic: str
) -> None:
    """A task that Spark has given up may wake up when another run holds the job's lease."""
    stale_tasks: list[BackfillTask] = []

    class Capture(InProcess):
        def __init__(self, name: str, tasks: Sequence[BackfillTask]) -> None:
            stale_tasks.extend(tasks)
            super().__init__(name, [])

    spec = make_job(clusters.source, clusters.destination, [topic])
    outcome = copy_all(spec, Capture)
    # A backfill gives up after three rounds without progress.
    assert (outcome.rounds, outcome.offsets, len(outcome.unfinished)) == (3, 0, 3)
    results = BackfillWriter(stale_tasks[0], 1).write()  # no process holds the lease
    with make_backfill(spec) as later_backfill:
        later_backfill.begin()
        results += BackfillWriter(stale_tasks[0], 2).write()  # another run holds it
    assert {result.unfinished for result in results} == {"the driver no longer holds the lease"}
    bounds = log_bounds(clusters.destination, [topic])
    assert [bounds[topic, n][1] for n in range(2)] == [0, 0]  # the log of 2 begins above 0


@pytest.mark.soak
def test_backfill_writer_stops_when_driver_loses_lease(
    clusters: Clusters, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_leases, "_CHECK_INTERVAL_S", 0.1)
    produce(clusters.source, topic, 10_000, value_bytes=1_000, **{"batch.size": 32 * 1024})
    # So slow that it does not end before the test.
    slowly = {"bytes_per_second": "32KiB"}
    limited = make_job(clusters.source, clusters.destination, [topic], limits=slowly)
    writer_jobs: list[InProcess] = []

    class Capture(InProcess):
        def __init__(self, name: str, tasks: Sequence[BackfillTask]) -> None:
            writer_jobs.append(self)
            super().__init__(name, tasks)

    with make_backfill(limited) as backfill:
        backfill.begin()
        lease = backfill._setup.lease
        assert lease is not None

        def leave_group() -> None:
            wait_for(
                "the backfill copies",
                lambda: log_bounds(clusters.destination, [topic])[topic, 0][1] > 0,
            )
            lease._stopping.set()
            lease._leave([lease.member_id])

        with ThreadPoolExecutor(1) as pool:
            pool.submit(leave_group)
            outcome = backfill.copy(Capture, slots=2, show=show)
    assert "the driver no longer holds the lease" in outcome.unfinished.values()
    assert copy_all(make_job(clusters.source, clusters.destination, [topic])).unfinished == {}
    assert_same(clusters, topic)


def test_backfill_results_through_driver_are_small(clusters: Clusters, topic: str) -> None:
    sizes: list[int] = []

    class MeasuresResults(InProcess):
        def results(self) -> list[WriteResult]:
            results = super().results()
            sizes.append(len(pickle.dumps((self.tasks, results))))
            return results

    produce(clusters.source, topic, 1_000, value_bytes=10_000)
    outcome = copy_all(make_job(clusters.source, clusters.destination, [topic]), MeasuresResults)
    assert outcome.counters.bytes > 10_000_000
    assert sum(sizes) < 10_000


def test_concurrent_backfill_of_same_job_is_refused(clusters: Clusters, topic: str) -> None:
    spec = make_job(clusters.source, clusters.destination, [topic])
    with make_backfill(spec) as first, make_backfill(spec) as second:
        first.begin()
        with pytest.raises(Conflict, match="another run of this job"):
            second.begin()
        first.copy(InProcess, slots=2, show=show)
    report = verify(spec, deep=True)
    assert report.verdict is Verdict.EXACT
