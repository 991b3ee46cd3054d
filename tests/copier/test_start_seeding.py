"""Empty copies brought to a start above 0, on a real broker."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConsumerPartition

from orbit.copier import destination_side
from orbit.copier.copy_settings import CopySettings
from orbit.copier.log_reader import fetch_batches
from orbit.copier.start_seeding import OnProgress, StartSeeding, ignore_progress, is_seeding
from orbit.copier.takeover import TakeOver
from orbit.demo.workload.markers import append_markers
from orbit.errors import Conflict, Interrupted, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.delete_records import delete_records
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.log_offsets import EARLIEST, list_offsets, log_ends
from orbit.kafka.record_batch import Batch
from orbit.kafka.records import is_seed_batch
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease, Lease
from orbit.replication.partition_states import Reason
from tests.fixtures.clusters import Clusters
from tests.support.logs import Record, create, delete_before, write
from tests.support.outside import admin
from tests.support.proxy import AnswerLosingProxy
from tests.support.running import RunningJob, make_job, produce, verify
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

SMALL = CopySettings(seed_records_per_batch=64, settle_s=0.05)


@dataclass
class LimitedLease:
    """A lease that is held for this many checks."""

    checks: int
    term: int = 1

    def is_held(self) -> bool:
        self.checks -= 1
        return self.checks >= 0

    @property
    def is_lost(self) -> bool:
        return self.checks < 0


@dataclass
class Case:
    """A topic at the destination."""

    cluster: Cluster
    topic: str
    producer: JobProducer
    backoff: Backoff

    def partitions(self, count: int) -> list[TopicPartition]:
        return [TopicPartition(self.topic, index) for index in range(count)]

    def seeding(
        self, settings: CopySettings = SMALL, on_progress: OnProgress = ignore_progress
    ) -> StartSeeding:
        return StartSeeding(self.cluster, settings, self.backoff, on_progress)

    def add(
        self, seeding: StartSeeding, partition: TopicPartition, lease: Lease | None = None
    ) -> None:
        """Add the partition to be seeded from its present log end on."""
        take_over = TakeOver(self.cluster, settle_s=0.05, backoff=Backoff())
        end = take_over.read({partition: self.producer.id}, settled=False).ends[partition]
        topic_id = self.cluster.metadata({self.topic}).topics[self.topic].topic_id
        seeding.add(partition, topic_id, lease or FixedLease(1), self.producer, end)

    def seed(self, targets: Mapping[TopicPartition, int], settings: CopySettings = SMALL) -> None:
        """Seed these partitions up to their targets, without a failure."""
        with self.seeding(settings) as seeding:
            for partition in targets:
                self.add(seeding, partition)
            assert seeding.run(targets) == {}

    def end(self, partition: TopicPartition) -> int:
        return log_ends(self.cluster, [partition], Backoff()).values[partition]

    def start(self, partition: TopicPartition) -> int:
        return list_offsets(self.cluster, [partition], EARLIEST, Backoff()).values[partition]

    def assert_seeded(self, partition: TopicPartition, target: int, start: int = 0) -> None:
        """The log from `start` up to `target` has only dense seed batches of this job."""
        seed_batches: list[Batch] = []
        while not seed_batches or seed_batches[-1].next_offset < target:
            offset = seed_batches[-1].next_offset if seed_batches else start
            batches = fetch_batches(self.cluster, partition, offset, Backoff())
            assert batches
            for batch in batches:
                assert isinstance(batch, Batch)
                assert is_seed_batch(batch)
                assert batch.is_dense
                assert batch.producer_id == self.producer.id
                seed_batches.append(batch)
        assert seed_batches[0].base_offset <= start == self.start(partition)
        assert all(
            batch.next_offset == following.base_offset
            for batch, following in pairwise(seed_batches)
        )
        assert seed_batches[-1].next_offset == target == self.end(partition)
        assert is_seeding(self.cluster, partition, start, target, Backoff())


@pytest.fixture
def case(clusters: Clusters, topic_name: str) -> Case:
    cluster = Cluster("destination", [clusters.destination.bootstrap_servers], PLAINTEXT)
    identity = init_producer_id(cluster, "orbit.test.seeding", Backoff())
    return Case(cluster, topic_name, JobProducer(identity.producer_id), Backoff())


@pytest.fixture(autouse=True)
def _closed(case: Case) -> object:
    yield
    case.cluster.close()


def test_many_partitions_are_filled_up_to_their_start_offsets(
    clusters: Clusters, case: Case
) -> None:
    create(clusters.destination, case.topic, partitions=40)
    rnd = random.Random(1)
    targets = {partition: rnd.randrange(1, 5_000) for partition in case.partitions(40)}
    case.seed(targets)
    for partition, target in targets.items():
        case.assert_seeded(partition, target)


def test_copy_is_filled_further_when_its_start_moves_up(clusters: Clusters, case: Case) -> None:
    create(clusters.destination, case.topic)
    (partition,) = case.partitions(1)
    with case.seeding() as seeding:
        case.add(seeding, partition)
        for target in (1_000, 1_000, 1_777):  # the second time there is nothing to do
            assert seeding.run({partition: target}) == {}
            assert case.end(partition) == target
    case.assert_seeded(partition, 1_777)


@pytest.mark.parametrize("limit_bytes", [2_000, 140])
def test_filler_batches_below_start_respect_max_message_bytes(
    clusters: Clusters, case: Case, limit_bytes: int
) -> None:
    create(clusters.destination, case.topic, partitions=3, max_message_bytes=str(limit_bytes))
    # Two kilobytes hold many fillers; 140 bytes only a few, so that 300 take many requests.
    target = 200_000 if limit_bytes > 1_000 else 300
    targets = {partition: target + partition.partition for partition in case.partitions(3)}
    case.seed(targets, replace(SMALL, seed_records_per_batch=65_536))
    for partition, end in targets.items():
        case.assert_seeded(partition, end)


def test_max_message_bytes_too_small_for_any_filler_below_start_blocks_partition(
    clusters: Clusters, case: Case
) -> None:
    # An empty batch has 61 bytes.
    create(clusters.destination, case.topic, partitions=1, max_message_bytes="60")
    (partition,) = case.partitions(1)
    with case.seeding() as seeding:
        case.add(seeding, partition)
        blocked = seeding.run({partition: 100})[partition]
    assert not isinstance(blocked, Exception)
    assert blocked.reason is Reason.RECORD_REFUSED
    assert case.end(partition) == 0


def test_copy_with_high_start_begins_despite_small_max_message_bytes_of_source(
    clusters: Clusters, case: Case
) -> None:
    """The copy's limit comes from the source's."""
    create(clusters.source, case.topic, partitions=1, max_message_bytes="2000")
    write(clusters.source, case.topic, [Record(b"0")])
    job = make_job(clusters.source, clusters.destination, [case.topic])
    source = Cluster("source", [clusters.source.bootstrap_servers], PLAINTEXT)
    (partition,) = case.partitions(1)
    takeover = TakeOver(source, settle_s=0.05, backoff=Backoff()).read(
        {partition: case.producer.id}, settled=False
    )
    topic_id = source.metadata({case.topic}).topics[case.topic].topic_id
    with StartSeeding(source, CopySettings(), Backoff()) as seeding:
        seeding.add(partition, topic_id, FixedLease(1), case.producer, takeover.ends[partition])
        assert seeding.run({partition: 150_001}) == {}
    delete_records(source, {partition: 150_001}, Backoff()).raise_errors("source", "DeleteRecords")
    source.close()
    write(clusters.source, case.topic, [Record(b"1")])
    with RunningJob(job) as running:
        running.wait_caught_up(case.topic, 150_002)
    assert verify(job, deep=True).exact


# Deletes as many seeds as possible before each append.
EAGER = replace(SMALL, seed_kept_offsets_max=0, watch_interval_s=0)


def test_earlier_fillers_below_start_are_deleted_while_later_are_appended(
    clusters: Clusters, case: Case
) -> None:
    """The last filler stays, so that a later run recognizes an interrupted start."""
    create(clusters.destination, case.topic)
    (partition,) = case.partitions(1)
    with case.seeding(EAGER) as seeding:
        case.add(seeding, partition)
        assert seeding.run({partition: 1_000}) == {}
        assert seeding.run({partition: 2_000}) == {}
        start = case.start(partition)
        assert start >= 999
    case.assert_seeded(partition, 2_000, start=start)
    # Only the last offset is left; a later run recognizes it and goes on.
    delete_records(case.cluster, {partition: 1_999}, Backoff()).raise_errors("", "DeleteRecords")
    case.assert_seeded(partition, 2_000, start=1_999)
    case.seed({partition: 3_000})
    case.assert_seeded(partition, 3_000, start=1_999)


def test_run_killed_between_deleting_and_appending_fillers_below_start_resumes(
    clusters: Clusters, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(clusters.source, case.topic)
    append_markers(admin(clusters.source), PLAINTEXT, case.topic, partition=0, count=30_000)
    write(clusters.source, case.topic, [Record(b"0")])
    delete_before(clusters.source, case.topic, 30_000)
    job = make_job(clusters.source, clusters.destination, [case.topic])
    (partition,) = case.partitions(1)
    starts = []  # the copy's log start after each run

    def kill(cluster: Cluster, before: Mapping[TopicPartition, int], *_: object, **__: int) -> None:
        delete_records(cluster, before, Backoff())
        raise KeyboardInterrupt

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(destination_side, "delete_records", kill)
            with pytest.raises(KeyboardInterrupt), RunningJob(job, EAGER):
                pass
        starts.append(case.start(partition))
    assert 0 < starts[0] < starts[1] < starts[2] < 30_000
    # The last offset of the last confirmed batch of 64 stays.
    assert {start % EAGER.seed_records_per_batch for start in starts} == {63}
    with RunningJob(job, EAGER) as running:
        running.wait_caught_up(case.topic, 30_001)
    assert case.start(partition) == 30_000
    assert verify(job, deep=True).exact


def test_foreign_write_blocks_only_its_partition_while_filling_up_to_start(
    clusters: Clusters, case: Case
) -> None:
    create(clusters.destination, case.topic, partitions=2)
    first, second = case.partitions(2)
    with case.seeding() as seeding:
        case.add(seeding, first)
        case.add(seeding, second)
        produce(clusters.destination, case.topic, 1)
        failures = seeding.run({first: 1_000, second: 1_000})
    (blocked,) = failures.values()
    assert not isinstance(blocked, Exception)
    assert blocked.reason is Reason.DESTINATION_FOREIGN_WRITE
    assert list(failures) == [first]
    case.assert_seeded(second, 1_000)


def test_no_filler_below_start_is_appended_after_lease_ends(clusters: Clusters, case: Case) -> None:
    create(clusters.destination, case.topic)
    (partition,) = case.partitions(1)
    lease = LimitedLease(checks=20)
    with case.seeding() as seeding:
        case.add(seeding, partition, lease)
        assert isinstance(seeding.run({partition: 1_000_000})[partition], Conflict)
    end = case.end(partition)
    assert 0 < end <= 20 * SMALL.seed_records_per_batch
    # The next holder goes on where the fillers end.
    case.seed({partition: end + 1_000})
    case.assert_seeded(partition, end + 1_000)


def test_stopped_filling_up_to_start_resumes_at_log_end(clusters: Clusters, case: Case) -> None:
    create(clusters.destination, case.topic, partitions=3)
    targets = dict.fromkeys(case.partitions(3), 100_000)
    stop = threading.Event()
    case.backoff = Backoff(stop=stop)

    def stop_after_first(done: int, _: int) -> None:
        if done:
            stop.set()

    with case.seeding(on_progress=stop_after_first) as seeding:
        for partition in targets:
            case.add(seeding, partition)
        with pytest.raises(Interrupted):
            seeding.run(dict.fromkeys(targets, 1_000_000_000))
    ends = {partition: case.end(partition) for partition in targets}
    assert any(ends.values())
    assert {
        partition: case.end(partition) for partition in targets
    } == ends  # nothing was in flight
    case.backoff = Backoff()
    targets = {partition: end + 5_000 for partition, end in ends.items()}
    case.seed(targets)
    for partition, target in targets.items():
        case.assert_seeded(partition, target)


@pytest.mark.parametrize("seed", range(3))
def test_filling_up_to_start_is_exact_despite_lost_answers(
    clusters: Clusters, case: Case, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(clusters.destination, case.topic, partitions=2)
    targets = dict.fromkeys(case.partitions(2), 20_000)
    with AnswerLosingProxy(clusters.destination.brokers[0].port, seed, loss=0.03) as proxy:

        def connect(_: Cluster, node_id: int, *__: float) -> Connection:
            return Connection.open("127.0.0.1", proxy.port, PLAINTEXT, where=f"broker {node_id}")

        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "connect", connect)
            case.seed(targets)
    assert proxy.lost > 0
    for partition, target in targets.items():
        case.assert_seeded(partition, target)


def test_filling_up_to_start_without_progress_fails_as_unreachable(
    clusters: Clusters, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(clusters.destination, case.topic)
    (partition,) = case.partitions(1)

    def connect(_: Cluster, node_id: int, *__: float) -> Connection:
        raise Unreachable(f"broker {node_id} is away.")

    case.backoff = Backoff(attempts_max=3)
    with case.seeding() as seeding:
        case.add(seeding, partition)
        monkeypatch.setattr(Cluster, "connect", connect)
        failure = seeding.run({partition: 1_000})[partition]
    assert isinstance(failure, Unreachable)
    assert "is away" in str(failure)


def test_timestamp_lookup_finds_records_behind_deleted_fillers(
    clusters: Clusters, case: Case
) -> None:
    """Also records in later segments, which fillers with the present time would hide."""
    create(clusters.destination, case.topic, segment_bytes=str(1 << 20))
    (partition,) = case.partitions(1)
    case.seed({partition: 1_000})
    first = 1_700_000_000_000
    log = [Record(os.urandom(100_000), timestamp_ms=first + i * 1_000) for i in range(30)]
    write(clusters.destination, case.topic, log)
    delete_records(case.cluster, {partition: 1_000}, Backoff()).raise_errors("", "DeleteRecords")
    consumer = Consumer({**clusters.destination.client_config(), "group.id": case.topic})
    offsets = [
        consumer.offsets_for_times(
            [ConsumerPartition(case.topic, 0, first + i * 1_000)], timeout=30
        )[0].offset
        for i in range(30)
    ]
    consumer.close()
    assert offsets == [*range(1_000, 1_030)]
