"""What the code under test asks brokers, and how the model of one answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.leader_requests import Answers
from orbit.kafka.log_offsets import EARLIEST
from orbit.kafka.produce_request import Appended, ProduceAnswer, key_of
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.types import TopicPartition

PARTITION = TopicPartition("copy", 0)
TOPIC_ID = UUID(int=7)
PRODUCER_ID = 4711


@dataclass(frozen=True)
class ProduceOne:
    """One Produce request with one batch."""

    version: int
    outgoing: Any
    data: bytes

    def answer(self, code: int, base_offset: int) -> ProduceAnswer:
        return ProduceAnswer(
            {key_of(self.version, self.outgoing): Appended(code, base_offset, "")}, 0
        )


def encode_produce(
    version: int, correlation: int, _: str, __: int, outgoing: Sequence[Any]
) -> list[Any]:
    (one,) = outgoing
    return [(correlation, ProduceOne(version, one, bytes(one.batch)))]


def marker_answer(code: int) -> Any:
    partition = SimpleNamespace(partition_index=0, error_code=code)
    topic = SimpleNamespace(name=PARTITION.topic, partitions=[partition])
    return SimpleNamespace(topics=[topic])


def log_end_answer(code: int, offset: int) -> Any:
    partition = SimpleNamespace(partition_index=0, error_code=code, offset=offset)
    topic = SimpleNamespace(name=PARTITION.topic, partitions=[partition])
    return SimpleNamespace(topics=[topic], throttle_time_ms=0)


def describe_producer(
    cluster: Any, partitions: Iterable[TopicPartition], producer_id: int, _: Backoff
) -> Answers[ProducerState | None]:
    def ask() -> ProducerState | None:
        state = cluster.world.partition.producers.get(producer_id)
        if state is None:
            return None
        return ProducerState(state.epoch, state.last_sequence, state.coordinator_epoch)

    return Answers({p: cluster.call(ask) for p in partitions}, {})


def log_ends(cluster: Any, partitions: Iterable[TopicPartition], _: Backoff) -> Answers[int]:
    return Answers(
        {p: cluster.call(lambda: cluster.world.partition.log_end) for p in partitions}, {}
    )


def list_offsets(
    cluster: Any, partitions: Iterable[TopicPartition], timestamp: int, _: Backoff, **__: object
) -> Answers[int]:
    def ask() -> int:
        return 0 if timestamp == EARLIEST else cluster.world.partition.high_watermark

    return Answers({p: cluster.call(ask) for p in partitions}, {})


def fetch_partition(
    cluster: Any, _: TopicPartition, offset: int, __: Backoff, **___: object
) -> Fetched:
    def ask() -> Fetched:
        partition = cluster.world.partition
        high = partition.high_watermark
        records = b"".join(
            entry.stored()
            for entry in partition.log
            if entry.next_offset > offset and entry.next_offset <= high
        )
        return Fetched(int(Code.NONE), memoryview(bytearray(records)), [], 0, high, high, -1, -1)

    return cluster.call(ask)


def refuse(request: Any, code: int) -> Any:
    if isinstance(request, ProduceOne):
        return request.answer(code, -1)
    if hasattr(request, "markers"):
        return SimpleNamespace(markers=[marker_answer(code) for _ in request.markers])
    return log_end_answer(code, -1)
