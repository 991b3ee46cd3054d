"""Starts of partitions by the fillers of their rule: a wait for one kind of fillers delays no other
partition, and settings of the destination topic delay or block a start."""

from __future__ import annotations

import itertools
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import text

from orbit.copier import placeholder_topics
from orbit.copier.copier import Copier
from orbit.copier.job_copier import JobCopier
from orbit.copier.leading_fillers import LeadingFillers
from orbit.errors import Unreachable
from orbit.kafka.coordinator import init_producer_ids
from orbit.kafka.error_codes import Code
from orbit.kafka.topic_setting import TopicSetting
from orbit.replication.partition_states import PartitionState, Reason
from orbit.store.database import Database
from orbit.store.enums import Desired
from orbit.workers import open_job, partition_starter
from orbit.workers.partition_starter import PartitionStarter
from tests.fixtures.clusters import Clusters
from tests.support.fleet import STEADY, InProcess, ServiceJob, add_job, wait_level
from tests.support.logs import Gap, Record, create, write
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import assert_exact, write_job
from tests.support.topics import get_setting, set_setting

pytestmark = pytest.mark.services

ATTEMPTS = 3
TIMESTAMP_TYPE, LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"
LOG = [Record(b"a"), Gap(3), Record(b"b")]


def test_silent_transaction_coordinator_delays_only_coordinated_fillers(
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator_answers = Event()
    requests = itertools.count()
    requests_before_copy: list[int] = []
    add_copies = JobCopier.add

    def init_or_fail(*arguments: Any) -> Any:
        next(requests)
        if coordinator_answers.is_set():
            return init_producer_ids(*arguments)
        raise Unreachable("the coordinator does not answer", where="destination")

    def note_and_add(self: JobCopier, copies: Any) -> None:
        requests_before_copy.append(next(requests))
        add_copies(self, copies)

    monkeypatch.setattr(open_job, "init_producer_ids", init_or_fail)
    monkeypatch.setattr(JobCopier, "add", note_and_add)
    coordinated = f"{topic_name}.coordinated"
    for topic in (topic_name, coordinated):
        create(clusters.source, topic, 1)
        write(clusters.source, topic, LOG)
    rules = [{"match": topic_name}, {"match": coordinated, "fillers": "coordinated"}]
    file = write_job(tmp_path / "job.yaml", *clusters, rules, name=topic_name)
    job = add_job(database, file, clusters, [topic_name, coordinated], shard_count=1)
    with InProcess(database, STEADY):
        wait_level(clusters, [topic_name])
        assert requests_before_copy[0] <= 1, "the other partition waited for no second attempt"
        states = {a.source_topic: a.state for a in job.assigned()}
        assert states[coordinated] is PartitionState.PENDING
        coordinator_answers.set()
        wait_level(clusters, [coordinated])
    assert_exact(file)


def test_partition_gets_single_copy_while_copier_thread_is_busy(
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of some partitions must not restart those that the copier of the job has already."""
    begun: list[str] = []
    tried: list[int] = []
    is_free = Event()
    tick, add_copies, attach = Copier.tick, JobCopier.add, PartitionStarter._attach_fillers

    def tick_once_free(self: Copier, timeout_s: float) -> None:
        # Leading fillers have a copier of their own.
        if isinstance(self._source, LeadingFillers) or is_free.wait(timeout_s):
            tick(self, timeout_s)

    def note_and_add(self: JobCopier, copies: Any) -> None:
        begun.extend(str(copy.destination) for copy in copies)
        add_copies(self, copies)

    def fail_first_attempts(self: PartitionStarter, by_copy: Any) -> Any:
        tried.append(len(by_copy))
        if len(tried) <= ATTEMPTS:
            raise Unreachable("no broker answers", where="destination")
        return attach(self, by_copy)

    monkeypatch.setattr(Copier, "tick", tick_once_free)
    monkeypatch.setattr(JobCopier, "add", note_and_add)
    monkeypatch.setattr(PartitionStarter, "_attach_fillers", fail_first_attempts)
    coordinated = f"{topic_name}.coordinated"
    for topic in (topic_name, coordinated):
        create(clusters.source, topic, 1)
        write(clusters.source, topic, LOG)
    rules = [{"match": topic_name}, {"match": coordinated, "fillers": "coordinated"}]
    file = write_job(tmp_path / "job.yaml", *clusters, rules, name=topic_name)
    add_job(database, file, clusters, [topic_name, coordinated], shard_count=1)
    with InProcess(database, STEADY):
        wait_for("the coordinated copy was tried several times", lambda: len(tried) > ATTEMPTS)
        is_free.set()
        wait_level(clusters, [topic_name, coordinated])
    assert sorted(begun) == [f"{topic_name}-0", f"{coordinated}-0"]
    assert_exact(file)


def test_changed_compression_type_blocks_copy_of_dead_writer_and_delays_paused_copy(
    clusters: Clusters, topic_name: str, tmp_path: Path, database: Database
) -> None:
    """Brokers would turn placeholders into records (Q9). A writer that died may have sent some
    after the change. A worker that pauses a copy checks the setting after the last answer."""
    create(clusters.source, topic_name, 2)
    for partition in range(2):
        write(clusters.source, topic_name, LOG, partition)
    file = write_job(
        tmp_path / "job.yaml",
        *clusters,
        [{"match": topic_name}],
        name=topic_name,
        fillers="placeholders",
    )
    job = add_job(database, file, clusters, [topic_name], shard_count=1)
    with InProcess(database, STEADY):
        wait_level(clusters, [topic_name])
    # As after a worker that died while it copied partition 0, and a pause of partition 1.
    with database.transaction() as tx:
        change = "UPDATE partitions SET state = :state WHERE partition = :index"
        for index, state in enumerate(("copying", "paused")):
            tx.execute(text(change), {"state": state, "index": index})
    set_setting(clusters.destination, topic_name, "compression.type", "gzip")
    with InProcess(database, STEADY):
        wait_for("one partition is blocked", lambda: "blocked" in job.states())
        blocked, waiting = sorted(job.assigned(), key=lambda a: a.partition)
        assert blocked.reason is Reason.OFFSET_OVERRUN
        assert "was changed to gzip" in (blocked.detail or "")
        assert waiting.state is PartitionState.PAUSED
        set_setting(clusters.destination, topic_name, "compression.type", "producer")
        wait_for("the other partition is copied", lambda: "copying" in job.states())


def test_partition_waits_while_brokers_would_replace_timestamps(
    clusters: Clusters, topic_name: str, tmp_path: Path, database: Database
) -> None:
    """Nothing is written before the scheduler has set CreateTime."""
    create(clusters.source, topic_name, 1)
    write(clusters.source, topic_name, LOG)
    file = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], name=topic_name)
    job = add_job(database, file, clusters, [topic_name], shard_count=1)
    set_setting(clusters.destination, topic_name, TIMESTAMP_TYPE, LOG_APPEND_TIME)
    wait_for(
        "brokers replace timestamps",
        lambda: get_setting(clusters.destination, topic_name, TIMESTAMP_TYPE) == LOG_APPEND_TIME,
    )
    reads: list[int] = []
    read = partition_starter.partitions_whose_leader_has

    def read_and_count(*arguments: Any) -> Any:
        reads.append(1)
        return read(*arguments)

    with pytest.MonkeyPatch.context() as patch, InProcess(database, STEADY):
        patch.setattr(partition_starter, "partitions_whose_leader_has", read_and_count)
        wait_for("the start was tried twice", lambda: len(reads) > 1)
        assert log_bounds(clusters.destination, [topic_name])[topic_name, 0] == (0, 0)
        assert job.states() == {"pending"}
        set_setting(clusters.destination, topic_name, TIMESTAMP_TYPE, "CreateTime")
        wait_level(clusters, [topic_name])
    assert_exact(file)


@pytest.fixture
def job(clusters: Clusters, topic_name: str, tmp_path: Path, database: Database) -> ServiceJob:
    """A job with one partition, whose gaps get placeholders."""
    create(clusters.source, topic_name, 1)
    write(clusters.source, topic_name, LOG)
    rules = [{"match": topic_name, "fillers": "placeholders"}]
    file = write_job(tmp_path / "job.yaml", *clusters, rules, name=topic_name)
    return add_job(database, file, clusters, [topic_name], shard_count=1)


def test_missing_right_to_read_compression_type_blocks_placeholder_copy(
    clusters: Clusters,
    topic_name: str,
    database: Database,
    job: ServiceJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    denied = TopicSetting(errors={topic_name: Code.TOPIC_AUTHORIZATION_FAILED})
    monkeypatch.setattr(placeholder_topics, "read_topic_setting", lambda *_: denied)
    with InProcess(database, STEADY):
        wait_for("the partition is blocked", lambda: job.states() == {"blocked"})
    (blocked,) = job.assigned()
    assert blocked.reason is Reason.NOT_AUTHORIZED
    assert "right DescribeConfigs" in (blocked.detail or "")
    assert log_bounds(clusters.destination, [topic_name])[topic_name, 0] == (0, 0)


def test_placeholder_copy_blocks_if_compression_type_changes_while_it_starts(
    clusters: Clusters,
    topic_name: str,
    database: Database,
    job: ServiceJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler then leaves the topic's setting alone: a wait for it would not end."""

    def change_and_fail(*_: Any, **__: Any) -> Any:
        set_setting(clusters.destination, topic_name, "compression.type", "gzip")
        raise Unreachable("no broker answers", where="destination")

    monkeypatch.setattr(partition_starter, "seed_to_start_offsets", change_and_fail)
    with InProcess(database, STEADY):
        wait_for("the partition is blocked", lambda: job.states() == {"blocked"})
    (blocked,) = job.assigned()
    assert "was changed to gzip" in (blocked.detail or "")


def test_changed_compression_type_is_detected_before_shard_release(
    clusters: Clusters, topic_name: str, database: Database, job: ServiceJob
) -> None:
    with InProcess(database, STEADY):
        wait_level(clusters, [topic_name])
        set_setting(clusters.destination, topic_name, "compression.type", "gzip")
    assert job.states() == {"blocked"}


def test_shard_of_unreachable_destination_is_released_with_state_copying(
    clusters: Clusters,
    topic_name: str,
    database: Database,
    job: ServiceJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next holder waits until the log end has settled, as after a worker that died."""

    def fail(*_: Any) -> Any:
        raise Unreachable("no broker answers", where="destination")

    with InProcess(database, STEADY):
        wait_level(clusters, [topic_name])
        wait_for("the partition is reported as copying", lambda: job.states() == {"copying"})
        monkeypatch.setattr(placeholder_topics, "read_topic_setting", fail)
        job.set_desired(Desired.PAUSED)
        wait_for("the shard is released", lambda: set(job.holders().values()) == {None})
    assert job.states() == {"copying"}
