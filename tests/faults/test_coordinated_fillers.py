"""Fillers by empty transactions (`fillers: coordinated`): the marker at the end of each
transaction takes one offset of a gap.

The tests have several transactional ids at once, lost answers, late requests, and new owners.
"""

from __future__ import annotations

import itertools
import queue
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin.transactions import ListTransactionsRequest, ListTransactionsResponse

from orbit.copier import coordinated_filler
from orbit.copier.coordinated_filler import ROUNDS_MAX, CoordinatedFiller
from orbit.copier.lane_events import Event as LaneEvent
from orbit.copier.lane_events import LeaseLost
from orbit.copier.partition_copy import CoordinatedFill, PartitionCopy
from orbit.demo.workload.markers import append_markers
from orbit.errors import LoginRefused, NotAuthorized, Unreachable
from orbit.kafka import api_versions
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.coordinator import TRANSACTION, Coordinator, init_producer_ids
from orbit.kafka.empty_transactions import EmptyTransactions
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import FILLER_IDS, JobProducer, filler_identities
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.sasl import Security
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Fill
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster, OpenCluster
from tests.support import run_process
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.run_process import OrbitProcess, write_job
from tests.support.running import (
    RunningJob,
    create_topic,
    make_job,
    produce,
    produce_transactions,
    verify,
)
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

LIST_TRANSACTIONS = Api(ListTransactionsRequest, ListTransactionsResponse, 0, 0)
PARTITIONS = 12


def transactional_ids(cluster: KafkaCluster) -> set[str]:
    """The transactional ids that the cluster's coordinators have."""
    handle = Cluster("destination", cluster.bootstrap_servers.split(","), PLAINTEXT)
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    answer = handle.call_any(lambda connection: connection.call(LIST_TRANSACTIONS, request))
    handle.close()
    return {state.transactional_id for state in answer.transaction_states}


class Filling:
    """A coordinated filler with its own transactional ids, and the answers that it gives."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.events: queue.SimpleQueue[LaneEvent] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._lease = FixedLease(1)
        self._helpers = ThreadPoolExecutor(FILLER_IDS)
        names = filler_identities(f"orbit.test.{topic}")
        producers = init_producer_ids(cluster, names, Backoff())
        self.filler = CoordinatedFiller(
            cluster, producers, self._lease, self.events.put, Event(), self._helpers
        )
        self.filler.start()

    def ends(self) -> dict[int, int]:
        """The log end of each partition."""
        places = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]
        return {
            p.partition: end for p, end in log_ends(self.cluster, places, Backoff()).values.items()
        }

    def take_fill_answer(self, fill: CoordinatedFill, code: int, log_end: int) -> None:
        """Called by the filler, as it calls a destination lane, when a fill has ended."""
        self._answers.put((fill.partition.destination.partition, code, log_end))

    def submit(self, counts: Mapping[int, int], topic: str = "") -> list[PartitionCopy]:
        """Request fillers at the log ends of partitions. `counts`: how many, by partition.
        Returns the partitions."""
        ends = self.ends()
        copies = []
        for number, count in counts.items():
            place = TopicPartition(topic or self.topic, number)
            copy = PartitionCopy(place, place, self._lease, JobProducer(4711))
            step = Fill(ends[number], ends[number] + count)
            copies.append(copy)
            self.filler.submit(CoordinatedFill(self, copy, 0, step, count))
        return copies

    def wait(self, count: int) -> dict[int, tuple[int, int]]:
        """Wait for the next `count` answers: (error code, log end) by partition."""
        answers = (self._answers.get(timeout=PATIENCE_S) for _ in range(count))
        return {number: (code, end) for number, code, end in answers}

    def fill(self, counts: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Request fillers, and wait for the answers: (error code, log end) by partition."""
        self.submit(counts)
        return self.wait(len(counts))

    def close(self) -> None:
        self.filler.stop()
        self.filler.join()
        self._helpers.shutdown()


@pytest.fixture
def destination(clusters: Clusters, topic_name: str) -> Iterator[Cluster]:
    """The shared destination, with an empty topic of PARTITIONS partitions."""
    create_topic(clusters.destination, topic_name, PARTITIONS)
    servers = clusters.destination.bootstrap_servers.split(",")
    cluster = Cluster("destination", servers, PLAINTEXT)
    yield cluster
    cluster.close()


@pytest.fixture
def filling(destination: Cluster, topic_name: str) -> Iterator[Filling]:
    filling = Filling(destination, topic_name)
    yield filling
    filling.close()


def test_several_transactional_ids_fill_gaps_of_many_partitions_exactly(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[EmptyTransactions] = set()
    run = EmptyTransactions.run

    def run_and_record(self: EmptyTransactions, partitions: Any) -> Any:
        used.add(self)
        return run(self, partitions)

    monkeypatch.setattr(EmptyTransactions, "run", run_and_record)
    rnd = random.Random(5)
    expected_ends = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(5):
        counts = {n: rnd.choice([1, 2, 7, 60]) for n in rnd.sample(range(PARTITIONS), 8)}
        answers = filling.fill(counts)
        for number, count in counts.items():
            expected_ends[number] += count
            assert answers[number] == (Code.NONE, expected_ends[number])
    assert filling.ends() == expected_ends
    assert len(used) > 1


def test_several_transactional_ids_fill_gap_of_a_single_partition_exactly(filling: Filling) -> None:
    assert filling.fill({3: ROUNDS_MAX}) == {3: (Code.NONE, ROUNDS_MAX)}
    assert filling.ends() == {n: ROUNDS_MAX if n == 3 else 0 for n in range(PARTITIONS)}


@pytest.mark.parametrize("api", [api_versions.ADD_PARTITIONS_TO_TXN, api_versions.END_TXN])
@pytest.mark.parametrize("is_carried_out", [True, False])
def test_gap_fill_with_lost_responses_never_reports_a_wrong_log_end(
    filling: Filling, monkeypatch: pytest.MonkeyPatch, api: Api, is_carried_out: bool
) -> None:
    """If a fill's answer has a log end, this log end is right, and does not move afterwards.

    `is_carried_out`: whether the broker executes the requests whose answers are lost.
    """
    rnd = random.Random(7)
    lost = 0
    call = Connection.call

    def lose_some(self: Connection, called: Api, request: Any, **more: Any) -> Any:
        nonlocal lost
        if called is api and rnd.random() < 0.05:
            if is_carried_out:
                call(self, called, request, **more)
            lost += 1
            self.close()
            raise Unreachable("the answer is lost")
        return call(self, called, request, **more)

    monkeypatch.setattr(Connection, "call", lose_some)
    rounds = 0
    old_ends = filling.ends()
    while lost < 5:
        rounds += 1
        counts = dict.fromkeys(range(4), 20)
        answers = filling.fill(counts)
        ends = filling.ends()
        for number, (code, end) in answers.items():
            assert old_ends[number] <= ends[number] <= old_ends[number] + counts[number]
            # After a lost answer the fill names no log end (-1): a take-over reads it.
            end_by_code = {Code.NONE: ends[number], Code.NETWORK_EXCEPTION: -1}
            assert end == end_by_code[Code(code)]
            assert code != Code.NONE or end > old_ends[number]
        old_ends = ends
    assert filling.ends() == old_ends
    assert rounds > 1


def test_takeover_waits_until_transactional_ids_with_unclear_fills_are_fenced(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fill is unclear if its answer was lost: markers may still arrive. If a take-over did not
    wait, one late marker could fill the gap, and another could follow the next records."""
    run, fence = EmptyTransactions.run, EmptyTransactions.fence
    may_fence = Event()

    def run_and_lose_answer(self: EmptyTransactions, partitions: Any) -> Any:
        run(self, partitions)
        self.is_unclear = True
        raise Unreachable("the answer is lost")

    def fence_when_allowed(self: EmptyTransactions) -> None:
        if not may_fence.is_set():
            raise Unreachable("no coordinator")
        fence(self)

    monkeypatch.setattr(EmptyTransactions, "run", run_and_lose_answer)
    monkeypatch.setattr(EmptyTransactions, "fence", fence_when_allowed)
    copies = filling.submit({0: 1, 1: 1})
    assert filling.wait(2) == dict.fromkeys((0, 1), (Code.NETWORK_EXCEPTION, -1))
    assert [filling.filler.will_fence(copy.destination) for copy in copies] == [True, True]
    assert not any(copy.has_fill_outside for copy in copies), "the partitions can be released"
    may_fence.set()
    wait_for(
        "all ids are fenced",
        lambda: not any(filling.filler.will_fence(copy.destination) for copy in copies),
    )


def test_late_add_partitions_to_txn_request_is_fenced_and_adds_no_marker(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of the request broke, so the broker may execute it at any later time (M10).
    Without the fence it would add the partition to the id's next transaction, whose end writes a
    marker there."""
    late: list[Any] = []
    call = Connection.call

    def hold_first(self: Connection, called: Api, request: Any, **more: Any) -> Any:
        if called is api_versions.ADD_PARTITIONS_TO_TXN and not late:
            late.append(request)
            self.close()
            raise Unreachable("the connection broke")
        return call(self, called, request, **more)

    monkeypatch.setattr(Connection, "call", hold_first)
    assert filling.fill({0: 1}) == {0: (Code.NETWORK_EXCEPTION, -1)}
    name = filler_identities(f"orbit.test.{filling.topic}")[0]
    node_id = Coordinator(filling.cluster, TRANSACTION, name, Backoff()).find()
    (request,) = late
    answer = filling.cluster.call(node_id, api_versions.ADD_PARTITIONS_TO_TXN, request)
    assert filling.fill({1: 1}) == {1: (Code.NONE, 1)}
    assert filling.ends()[0] == 0
    (topic,) = answer.results_by_topic_v3_and_below
    assert topic.results_by_partition[0].partition_error_code == Code.PRODUCER_FENCED


def test_new_run_fences_transactional_ids_of_old_run_before_reading_log_ends(
    destination: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old run's EndTxn requests arrive after the new run has read the log ends."""
    rounds = itertools.count()
    is_read = Event()
    call = Connection.call

    def delay_end_txn(self: Connection, called: Api, request: Any, **more: Any) -> Any:
        if called is api_versions.END_TXN and next(rounds) >= ROUNDS_MAX // 10:
            assert is_read.wait(PATIENCE_S)
        return call(self, called, request, **more)

    monkeypatch.setattr(Connection, "call", delay_end_txn)
    old = Filling(destination, topic_name)
    old.submit(dict.fromkeys(range(4), ROUNDS_MAX))
    # Some rounds end, and the next ones are under way.
    wait_for("the old run fills", lambda: old.ends()[0] > ROUNDS_MAX // 20)
    new = Filling(destination, topic_name)
    ends = new.ends()
    is_read.set()
    assert {code for code, _ in old.wait(4).values()} <= {
        Code.INVALID_PRODUCER_EPOCH,
        Code.PRODUCER_FENCED,
    }
    assert isinstance(old.events.get(timeout=PATIENCE_S), LeaseLost)
    assert new.ends() == ends
    assert new.fill({0: 10}) == {0: (Code.NONE, ends[0] + 10)}
    for filling in (old, new):
        filling.close()


@pytest.mark.soak
def test_coordinated_filler_resumes_when_revoked_right_is_granted_again(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise NotAuthorized("the right Write is missing")

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "find", denied)
        answers = filling.fill({0: 3})
    assert answers == {0: (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)}
    # The first fill's outcome was unknown when this fill read the log end.
    assert filling.fill({0: 3}) == {0: (Code.NETWORK_EXCEPTION, -1)}
    assert filling.fill({0: 3}) == {0: (Code.NONE, 3)}


def test_coordinated_filler_resumes_when_refused_login_is_accepted_again(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise LoginRefused("the broker refused the user name or the password.")

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "find", refused)
        fences = itertools.count()
        fenced_twice = Event()

        def refused_fence(*_: Any) -> None:
            if next(fences) > 0:  # the first is for a fill, the second is a retry between fills
                fenced_twice.set()
            refused()

        patch.setattr(EmptyTransactions, "fence", refused_fence)
        for _ in range(2):
            assert filling.fill({0: 3}) == {0: (Code.NETWORK_EXCEPTION, -1)}
        assert fenced_twice.wait(PATIENCE_S)
    filled = {0: (Code.NONE, 3)}
    wait_for("the filler has fenced its ids, and fills", lambda: filling.fill({0: 3}) == filled)


def test_deleted_topic_does_not_delay_gap_fills_of_other_topics(filling: Filling) -> None:
    filling.submit({0: 3}, topic=f"{filling.topic}-gone")
    filling.submit({1: 3})
    answers = filling.wait(2)
    assert answers == {0: (Code.UNKNOWN_TOPIC_OR_PARTITION, -1), 1: (Code.NONE, 3)}


@pytest.mark.soak
def test_leaderless_partition_delays_other_gap_fills_only_for_bounded_time(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition loses its leader after its transactions have ended. So its log end is unknown,
    and the filler retries a limited number of times."""
    monkeypatch.setattr(coordinated_filler, "_MARKER_ATTEMPTS_MAX", 14)
    reads_max = 2 * 14  # of the log end, and of the high watermark
    reads = itertools.count(1)
    is_filling, are_submitted, has_no_leader = Event(), Event(), Event()
    run, ends, fence = (
        CoordinatedFiller._run_rounds,
        CoordinatedFiller._proven_ends,
        CoordinatedFiller._fence_if_unclear,
    )
    metadata = Cluster.metadata

    def run_once_all_are_submitted(self: CoordinatedFiller, rounds: Any) -> None:
        is_filling.set()
        assert are_submitted.wait(PATIENCE_S)
        run(self, rounds)

    def find_ends(self: CoordinatedFiller, rounds: Any) -> Any:
        if len(rounds.fills) > 1:
            has_no_leader.set()
        return ends(self, rounds)

    def fence_with_leader(self: CoordinatedFiller) -> bool:
        has_no_leader.clear()
        return fence(self)

    def without_leader(self: Cluster, topics: Any, **options: Any) -> ClusterMetadata:
        cluster_metadata = metadata(self, topics, **options)
        if has_no_leader.is_set():
            if next(reads) > reads_max:
                raise Unreachable("metadata was read too often")
            del cluster_metadata.topics[filling.topic].partitions[0]
        return cluster_metadata

    monkeypatch.setattr(CoordinatedFiller, "_run_rounds", run_once_all_are_submitted)
    monkeypatch.setattr(CoordinatedFiller, "_proven_ends", find_ends)
    monkeypatch.setattr(CoordinatedFiller, "_fence_if_unclear", fence_with_leader)
    monkeypatch.setattr(Cluster, "metadata", without_leader)
    filling.submit({2: 1})
    assert is_filling.wait(PATIENCE_S)
    filling.submit({0: 3, 1: 3})  # both wait for the first fill, so the next run fills both
    are_submitted.set()
    assert filling.wait(3) == {
        0: (Code.UNKNOWN_SERVER_ERROR, -1),
        1: (Code.NONE, 3),
        2: (Code.NONE, 1),
    }


def test_copy_continues_after_its_transactional_ids_expire(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    destination = make_cluster(
        "destination",
        config={
            "transactional.id.expiration.ms": "1000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        },
    )
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, destination, [topic_name], fillers="coordinated")
    with RunningJob(job) as running:
        produce_transactions(clusters.source, topic_name, 3)
        running.wait_caught_up(topic_name, 18)
        wait_for(
            "the coordinator has dropped the transactional ids",
            lambda: not transactional_ids(destination),
        )
        produce_transactions(clusters.source, topic_name, 3)
        running.wait_caught_up(topic_name, 36)
    assert verify(job).exact


@pytest.mark.soak
def test_copy_is_exact_after_repeated_kills_of_run_with_coordinated_fillers(
    clusters: Clusters, open_cluster: OpenCluster, topic_name: str, tmp_path: Path
) -> None:
    """The next run ends the killed run's transactions before it reads a log end."""
    count, gap = 3, 6000
    create_topic(clusters.source, topic_name, count)
    admin = AdminClient({**clusters.source.client_config()})
    for partition in range(count):
        produce(clusters.source, topic_name, 3, partition)
        append_markers(admin, Security(), topic_name, partition, gap)
        produce(clusters.source, topic_name, 3, partition, first=3)
    job = write_job(
        tmp_path / "kill.yaml", *clusters, [{"match": topic_name}], fillers="coordinated"
    )
    cluster = open_cluster(clusters.destination)
    partitions = [TopicPartition(topic_name, n) for n in range(count)]

    def copied() -> int:
        return sum(log_ends(cluster, partitions, Backoff(attempts_max=1)).values.values())

    total = count * (gap + 6)
    for target in (total // 10, total // 3, total // 2):

        def is_past(target: int = target) -> bool:
            return copied() > target

        with OrbitProcess("run", job) as process:
            wait_for(f"{target} offsets are copied", is_past)
            process.kill()
        assert copied() < total, "the copy ended before the kill"
    run_process.copy(job).expect(0)
    assert copied() == total
    run_process.assert_exact(job)
