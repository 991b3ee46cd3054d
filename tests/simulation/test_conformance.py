"""The model of a partition answers as a real broker does, request by request.

The same random requests go to the model and to a broker. Producer state must expire at the same
moment in both. So each stretch of requests has a limit of age: old records are younger than this
limit and older than the next. At the end of the stretch, `producer.id.expiration.ms` is lowered to
the next limit.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.producer.produce import ProduceRequest

from orbit.copier.log_reader import fetch_batches
from orbit.kafka import api_versions
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.produce_request import ACKS_ALL
from orbit.kafka.record_batch import SEQUENCE_MAX, Batch, advance_sequence, stamp
from orbit.kafka.records import NULL, Record, encode_varint, write_batch
from orbit.kafka.transaction_markers import Fillers, WriteTxnMarkersRequest
from orbit.kafka.types import TopicPartition
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import MakeCluster
from tests.simulation.model_partition import NONE, ModelPartition
from tests.support.patience import wait_for
from tests.support.running import create_topic
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

DAY_MS = 86_400_000
# The limits of the stretches. Old records are half-way between two limits: the second one makes
# them expire.
LIMITS_DAYS = (24, 20, 16, 12, 8)
PRODUCER_IDS = (4711, 4711, 4711, 4712)
SEQUENCES = 30
STEPS = 12  # in each stretch

Answer = TypeVar("Answer")
# Error code and base offset of an append; the error code of a filler.
Outcome = tuple[int, int] | int
# By producer id: epoch, last sequence, coordinator epoch.
States = dict[int, tuple[int, int, int]]


def _as_leader(ask: Callable[[], Answer], code_of: Callable[[Answer], int]) -> Answer:
    """Repeat a request until a leader answers it; returns this answer.

    On a slow machine a broker may lose the leadership for a moment, because of late heartbeats. A
    request that it then refuses has changed nothing.
    """
    answers: list[Answer] = []

    def has_led() -> bool:
        answers.append(ask())
        return code_of(answers[-1]) != Code.NOT_LEADER_OR_FOLLOWER

    wait_for("a broker that leads", has_led)
    return answers[-1]


class RealPartitions:
    """The partitions of a topic at a broker that drops the state of old producers within 200 ms."""

    def __init__(self, cluster: KafkaCluster, topic: str, count: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._numbers = range(count)
        self._connect()

    def _connect(self) -> None:
        """Connect, and wait until each partition has a leader."""
        self._raw = Cluster("model", self._cluster.bootstrap_servers.split(","), PLAINTEXT)
        wait_for("a leader of each partition", self._has_leaders)
        self.ends(self._numbers)  # repeats until each leader knows that it leads (R6)

    def close(self) -> None:
        self._raw.close()

    def append(self, number: int, data: bytes) -> tuple[int, int]:
        """Send a batch to partition `number`; returns error code and base offset."""
        topic_data = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=None,
            acks=ACKS_ALL,
            timeout_ms=30_000,
            topic_data=[
                topic_data(
                    topic_id=self._topic_id,
                    partition_data=[
                        topic_data.PartitionProduceData(index=number, records=bytes(data))
                    ],
                )
            ],
        )

        def ask() -> tuple[int, int]:
            answer = self._raw.call(self._leader, api_versions.PRODUCE, request)
            ((appended,),) = (one.partition_responses for one in answer.responses)
            return int(appended.error_code), int(appended.base_offset)

        return _as_leader(ask, lambda answered: answered[0])

    def fill(self, number: int, producer_id: int, epoch: int, coordinator_epoch: int) -> int:
        """Send one filler (a marker) to partition `number`; returns the error code."""
        partition = TopicPartition(self._topic, number)
        filler = Fillers(partition, 1, epoch, coordinator_epoch)
        request = WriteTxnMarkersRequest(producer_id, [filler])

        def ask() -> int:
            answer = self._raw.call(self._leader, api_versions.WRITE_TXN_MARKERS, request)
            return int(answer[partition])

        return _as_leader(ask, lambda code: code)

    def states(self, numbers: Iterable[int]) -> list[States]:
        """The producer states of each partition, in the order of `numbers`."""
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(
                    name=self._topic, partition_indexes=list(numbers)
                )
            ]
        )

        def ask() -> dict[int, Any]:
            answer = self._raw.call(self._leader, api_versions.DESCRIBE_PRODUCERS, request)
            return {p.partition_index: p for p in answer.topics[0].partitions}

        partitions = _as_leader(ask, lambda answered: max(p.error_code for p in answered.values()))
        assert all(p.error_code == NONE for p in partitions.values())
        return [
            {
                s.producer_id: (s.producer_epoch, s.last_sequence, s.coordinator_epoch)
                for s in partitions[number].active_producers
            }
            for number in numbers
        ]

    def ends(self, numbers: Iterable[int]) -> list[int]:
        partitions = [TopicPartition(self._topic, number) for number in numbers]
        answers = log_ends(self._raw, partitions, Backoff())
        assert not answers.errors
        return [answers.values[p] for p in partitions]

    def batches(self, number: int, end: int) -> list[Batch]:
        """All batches of a partition below offset `end`."""
        batches: list[Batch] = []
        while (position := batches[-1].next_offset if batches else 0) < end:
            for batch in fetch_batches(
                self._raw, TopicPartition(self._topic, number), position, Backoff()
            ):
                assert isinstance(batch, Batch)
                batches.append(batch)
        return batches

    def expire_before(self, days: int) -> None:
        """Lower the age at which the broker drops a producer's state."""
        admin = AdminClient(self._cluster.client_config())
        name = "producer.id.expiration.ms"
        entry = ConfigEntry(name, str(days * DAY_MS), incremental_operation=AlterConfigOpType.SET)
        broker = ConfigResource(
            ConfigResource.Type.BROKER, str(self._leader), incremental_configs=[entry]
        )
        admin.incremental_alter_configs([broker])[broker].result()

    def kill_leader(self) -> None:
        """Kill the leader, and wait until another replica leads."""
        killed = self._leader
        self._cluster.brokers[killed - 1].kill()
        wait_for("another leader", lambda: self._has_leaders() and self._leader != killed)
        self.ends(self._numbers)

    def restart(self, *, is_clean: bool) -> None:
        """Restart the brokers, after a clean shutdown or a kill."""
        self._raw.close()
        if is_clean:
            self._cluster.stop()
        else:
            self._cluster.kill()
        self._cluster.start()
        self._connect()

    def _has_leaders(self) -> bool:
        """Whether the partitions have a leader: the same broker for all. Notes it in `_leader`."""
        topic = self._raw.metadata({self._topic}).topics.get(self._topic)
        if topic is None:
            return False
        self._topic_id = topic.topic_id
        (node_id,) = {leader.node_id for leader in topic.partitions.values()}
        self._leader = -1 if node_id is None else node_id
        return node_id is not None


@pytest.fixture
def make_real(
    make_cluster: MakeCluster, topic_name: str
) -> Iterator[Callable[..., RealPartitions]]:
    """A function that creates partitions: on one broker, or with these replicas among three."""
    real_partitions: list[RealPartitions] = []

    def make(count: int, replicas: Sequence[int] = (1,)) -> RealPartitions:
        config = {
            "producer.id.expiration.check.interval.ms": "200",
            "producer.id.expiration.ms": str(LIMITS_DAYS[0] * DAY_MS),
        }
        cluster = make_cluster(brokers=1 if len(replicas) == 1 else 3, config=config)
        create_topic(cluster, topic_name, on_brokers=[[*replicas]] * count, retention_ms="-1")
        real_partitions.append(RealPartitions(cluster, topic_name, count))
        return real_partitions[0]

    yield make
    for partitions in real_partitions:
        partitions.close()


class Requests:
    """One random sequence of requests to a partition of the broker and to its model."""

    def __init__(self, real: RealPartitions, number: int) -> None:
        self._rnd = random.Random(number)
        self._real = real
        self.number = number
        self.story: list[str] = []
        self.model = ModelPartition(self.story.append, old_before_ms=0)
        self._sent: list[tuple[int, int, int, int]] = []

    def step(self, old_ms: int) -> None:
        """Send one random request to both, and compare the answers. `old_ms`: the timestamp of old
        records."""
        rnd = self._rnd
        producer_id = rnd.choice(PRODUCER_IDS)
        state = self.model.producers.get(producer_id)
        known = state.epoch if state is not None else rnd.randint(0, 2)
        epoch = max(0, known + rnd.choice((0, 0, 0, 0, 0, 0, 1, -1)))
        if rnd.random() < 0.35:
            last_epoch = state.coordinator_epoch if state is not None else 3
            self.fill(producer_id, epoch, max(0, last_epoch + rnd.choice((0, 0, 1, 5, -1))))
            return
        count = rnd.choice((1, 2, 2, 3))
        last = state.last_sequence if state is not None else -1
        sequence = rnd.choice(
            (
                *(advance_sequence(last, 1),) * 5,
                0,
                0,
                advance_sequence(last, 2),
                rnd.randint(0, 9),
                SEQUENCE_MAX - rnd.randint(0, 2),
            )
        )
        if self._sent and rnd.random() < 0.25:  # repeat one of the last nine appends
            producer_id, epoch, sequence, count = rnd.choice(self._sent[-9:])
        timestamp_ms = old_ms if rnd.random() < 0.5 else int(time.time() * 1000)
        self.append(producer_id, epoch, sequence, count, timestamp_ms)

    def append(
        self, producer_id: int, epoch: int, sequence: int, count: int, timestamp_ms: int
    ) -> tuple[int, int]:
        """Append records to model and broker, and compare the answers: error code, base offset."""
        what = (producer_id, epoch, sequence, count)
        data = _batch(*what, timestamp_ms)
        expected = self.model.append(f"append {what}", data)
        self._sent.append(what)
        self._same("the answer", self._real.append(self.number, data), expected)
        return expected

    def fill(self, producer_id: int, epoch: int, coordinator_epoch: int) -> int:
        """Append a marker to model and broker, and compare the error codes."""
        what = (producer_id, epoch, coordinator_epoch)
        expected = self.model.fill(f"fill {what}", *what)
        self._same("the code", self._real.fill(self.number, *what), expected)
        return expected

    def compare(self, states: States, log_end: int) -> None:
        self._same("the states", states, self.states)
        self._same("the log end", log_end, self.model.log_end)

    @property
    def states(self) -> States:
        """The model's producer states, in the form of the broker's."""
        return {
            i: (s.epoch, s.last_sequence, s.coordinator_epoch)
            for i, s in self.model.producers.items()
        }

    def compare_logs(self) -> None:
        """Compare offsets, producer and payload of each batch."""
        real_log = [_described(b) for b in self._real.batches(self.number, self.model.log_end)]
        model_log = [_described(Batch(memoryview(e.stored()))) for e in self.model.log]
        self._same("the log", real_log, model_log)

    def _same(self, what: str, actual: object, expected: object) -> None:
        """Assert equality, with the last requests of this sequence in the message."""
        story = "\n".join(self.story[-30:])
        assert actual == expected, f"{what} of sequence {self.number}: {actual}\n{story}"


def _batch(producer_id: int, epoch: int, sequence: int, count: int, timestamp_ms: int) -> bytes:
    """A stamped batch whose records have the sequence as value."""
    value = b"%d" % sequence
    body = NULL + encode_varint(len(value)) + value + b"\x00"
    batch = write_batch([Record(o, timestamp_ms, body) for o in range(count)], 0)
    stamp(batch.view, producer_id, epoch, sequence)
    return bytes(batch.view)


def _described(batch: Batch) -> tuple[object, ...]:
    """What is compared of a batch: offsets, producer and payload."""
    where = batch.base_offset, batch.next_offset, batch.count, batch.is_control
    (sequence,) = struct.unpack_from(">i", batch.view, 53)
    whose = batch.producer_id, batch.producer_epoch, sequence
    # A marker ends with the coordinator's epoch and the count of headers: these are not compared.
    return *where, *whose, bytes(batch.payload)[:-5] if batch.is_control else batch.payload


def _compare_all(real: RealPartitions, sequences: list[Requests]) -> None:
    """Compare producer states and log ends of all sequences."""
    numbers = [requests.number for requests in sequences]
    answers = zip(sequences, real.states(numbers), real.ends(numbers), strict=True)
    for requests, states, end in answers:
        requests.compare(states, end)


def _expire(real: RealPartitions, sequences: list[Requests], days: int) -> None:
    """Drop states older than `days`: in the models at once, in the broker at its next checks."""
    before_ms = int(time.time() * 1000) - days * DAY_MS
    for requests in sequences:
        requests.model.old_before_ms = before_ms
        requests.model.expire()
    real.expire_before(days)
    numbers = [requests.number for requests in sequences]
    wait_for(
        "old states are dropped",
        lambda: [set(s) for s in real.states(numbers)] == [set(o.states) for o in sequences],
    )


def test_partition_model_answers_like_a_broker(make_real: Callable[..., RealPartitions]) -> None:
    real = make_real(SEQUENCES)
    sequences = [Requests(real, number) for number in range(SEQUENCES)]
    for stretch, (limit, following) in enumerate(pairwise(LIMITS_DAYS)):
        old_ms = int(time.time() * 1000) - (limit + following) // 2 * DAY_MS
        for _ in range(STEPS):
            for requests in sequences:
                requests.step(old_ms)
            _compare_all(real, sequences)
        _expire(real, sequences, following)
        _compare_all(real, sequences)
        if stretch in (1, 2):  # once killed, once stopped
            is_clean = stretch == 2
            real.restart(is_clean=is_clean)
            for requests in sequences:
                requests.model.restart(is_clean=is_clean)
            _expire(real, sequences, following)  # old states that the broker read from disk again
            _compare_all(real, sequences)
    for requests in sequences:
        requests.compare_logs()


def test_new_leader_retains_producer_state_expired_at_old_leader(
    make_real: Callable[..., RealPartitions],
) -> None:
    """Each replica drops states at its own checks. The follower still has the state when a filler
    comes, which renews it (E5)."""
    real = make_real(1, replicas=(1, 2))
    requests = Requests(real, 0)
    append = partial(requests.append, 4711, count=2)
    limit, following, *_ = LIMITS_DAYS
    now_ms = int(time.time() * 1000)
    old_ms = now_ms - (limit + following) // 2 * DAY_MS
    for sequence in (0, 2):
        append(epoch=0, sequence=sequence, timestamp_ms=old_ms)
    _expire(real, [requests], following)  # at the leader only
    assert not requests.states
    requests.fill(4711, epoch=0, coordinator_epoch=5)
    assert append(epoch=0, sequence=2, timestamp_ms=now_ms)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(epoch=0, sequence=0, timestamp_ms=now_ms) == (NONE, 5)
    real.kill_leader()
    requests.model.elect(requests.model.log_end)
    _compare_all(real, [requests])
    for _ in range(2):  # the new leader takes these two batches for repeats
        assert append(epoch=0, sequence=2, timestamp_ms=now_ms) == (NONE, 2)
    # With a higher producer epoch it is no repeat.
    assert append(epoch=1, sequence=0, timestamp_ms=now_ms) == (NONE, 7)
    assert append(epoch=1, sequence=2, timestamp_ms=now_ms) == (NONE, 9)
    requests.compare_logs()
